package redrive

import (
	"context"
	"errors"
	"time"

	"golang.org/x/time/rate"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/internal/text"
	"github.com/redrive-go/redrive/dlq/payload"
	"github.com/redrive-go/redrive/internal/wait"
)

// How a run is driven.
const (
	publishing     = 2   // batches that are published at once, so that the store works while the broker does
	firstBatch     = 250 // entries; batches grow while publishing is fast
	batchFast      = 250 * time.Millisecond
	batchSlow      = time.Second
	batchBytes     = 16 << 20       // payload in one batch
	settleLimit    = driver.MaxPage // items that one transaction settles
	settleFast     = 20 * time.Millisecond
	settleSlow     = time.Second
	settleBusy     = 250 * time.Millisecond // while there is something to publish
	settleShare    = 10                     // at most this fraction of the time: 1/10
	maxRunRefusals = 3                      // of one message, or of whole batches in a row
	refusalPause   = time.Second
	maxStoreErrors = 10 // in a row, of a store that responds
	drainDeadline  = 10 * time.Second
)

// runDriver drives one run as a pipeline: while up to two batches are being published, one transaction claims the next
// and records the previous one, and the entries after them are read. All fields belong to the goroutine of drive; the
// other goroutines send their results through channels.
//
// A claim is durable before its message is published, and the publish is recorded in the transaction of the next claim.
// So when the process dies, the store knows its claims, but not whether the broker has their messages: the next holder
// first waits for their outcomes, until the claims expire, and redrives only those without one.
type runDriver struct {
	runner *Runner
	holder string
	// linger keeps the run after it has ended or was paused, to record the outcomes of outstanding messages.
	linger bool

	run     *Run
	jq      string // of its spec, for reading ahead
	limiter *rate.Limiter

	ahead   []readItem     // read, not claimed yet
	reading chan readItems // the result of the read in flight; nil without one
	after   int64          // the last item that was read
	atEnd   bool           // nothing is waiting after it
	reread  time.Time      // the earliest time for another read, because nothing was found
	size    int            // of the next batch

	out     chan published // has room for every batch in flight
	under   int            // batches being published
	refused map[int64]int  // how often, by entry
	step    Step           // what the next step records

	refusals  int    // batches in a row that the broker refused entirely
	refusal   string // why
	notBefore time.Time
	settledAt time.Time
	settleIn  time.Duration
	settling  time.Duration // duration of the last settling
	warned    bool          // about destinations without a reader
	awaiting  bool          // nothing more may be claimed until outcomes arrive
}

func (rn *Runner) newDriver(holder string, run *Run, linger bool) (*runDriver, error) {
	d := &runDriver{
		runner: rn, holder: holder, linger: linger, run: run, out: make(chan published, publishing),
		size:    min(rn.batch, firstBatch),
		refused: map[int64]int{}, settleIn: settleFast, jq: run.Spec.JQ,
	}
	if run.Spec.JQ != "" {
		if err := payload.Check(run.Spec.JQ); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// drive runs until the run has ended, or is not running and everything is recorded. When the context ends, claiming
// stops; batches in flight are awaited and recorded.
func (d *runDriver) drive(ctx context.Context) error {
	readCtx, stopReading := context.WithCancel(ctx)
	defer d.endReading(stopReading)
	for storeErrors := 0; ; {
		if ctx.Err() != nil {
			return errors.Join(ctx.Err(), d.drain(ctx))
		}
		done, err := d.turn(ctx, readCtx)
		switch {
		case err == nil && done:
			return nil
		case err == nil:
			storeErrors = 0
		case errors.Is(err, ErrLeaseLost), errors.Is(err, dlq.ErrNotFound), errors.Is(err, dlq.ErrClosed):
			d.abandon()
			return err
		case isPanic(err):
			return err
		case ctx.Err() == nil:
			storeErrors++
			if storeErrors >= maxStoreErrors && d.refuse(ctx, err) {
				storeErrors = 0
				continue
			}
			d.look(ctx) // a person may have changed it in the meantime
			d.runner.logger.WarnContext(ctx, "redrive run: the store did not respond; it is retried", "run", d.run.ID,
				"error", err)
			_ = wait.For(ctx, min(asking.After(storeErrors), d.runner.runLease/4))
		}
	}
}

// asking are the pauses between attempts at a store that does not respond; a quarter of the lease bounds them.
var asking = wait.Backoff{First: 200 * time.Millisecond, Longest: 6400 * time.Millisecond}

// refuse stops a run that the store rejects although it responds: retrying would never end. It reports whether it
// did; a store that does not respond is retried until it does.
func (d *runDriver) refuse(ctx context.Context, cause error) bool {
	if d.runner.store.Ping(ctx) != nil {
		return false
	}
	return d.change(ctx, ActionStop, "the store refuses it: "+text.Clean(cause.Error(), text.MaxName)) == nil
}

// turn does the next thing that is due: one transaction or two, or a wait.
func (d *runDriver) turn(ctx, readCtx context.Context) (done bool, err error) {
	d.collect()
	if at := d.runner.now(ctx); d.run.LeaseUntil.Sub(at) < d.runner.runLease/2 {
		run, err := d.runner.runs.LeaseRun(ctx, d.run.ID, d.holder, at, d.runner.runLease)
		if err != nil {
			return false, err
		}
		d.run = run
	}
	if d.run.State == Preparing {
		run, err := d.runner.freeze(ctx, d.run.ID, d.holder)
		if err != nil {
			return false, err
		}
		d.run = run
		return false, nil
	}
	if err := d.settle(ctx); err != nil {
		return false, err
	}
	if changed, err := d.judge(ctx); changed || err != nil {
		return false, err
	}
	if err := d.readAhead(readCtx); err != nil {
		return false, err
	}
	claims, until := d.next()
	if len(claims) > 0 || d.recordable() {
		return false, d.advance(ctx, claims)
	}
	if d.over() {
		return true, nil
	}
	d.pause(ctx, until)
	return false, nil
}

// over reports whether there is nothing left to do here.
func (d *runDriver) over() bool {
	if d.run.State == Running || d.run.State == Preparing || d.under > 0 || d.recordable() {
		return false
	}
	return !d.linger || d.run.Counts.Open() == 0
}

// next picks what may be claimed now, or returns the time until which nothing may.
func (d *runDriver) next() (claims []Claim, until time.Time) {
	now := time.Now()
	r := d.run
	d.awaiting = false
	if r.State != Running || d.under == publishing || r.Counts.Waiting == 0 || d.refusals >= maxRunRefusals {
		return nil, time.Time{}
	}
	if now.Before(d.notBefore) {
		return nil, d.notBefore
	}
	allowed := r.canary()
	if most := int64(r.Spec.MaxOut); most > 0 {
		left := most - r.Counts.Open()
		if left < min(int64(d.size), most/4, r.Counts.Waiting) {
			left = 0 // a batch is worth waiting for
		}
		allowed = min(allowed, left)
	}
	d.awaiting = allowed <= 0
	allowed, until = d.paced(now, min(allowed, int64(d.size)))
	if allowed <= 0 {
		return nil, until
	}
	n := min(int(allowed), len(d.ahead))
	for i := range d.ahead[:n] {
		item := &d.ahead[i]
		claims = append(claims, Claim{EntryID: item.EntryID, Version: item.Version, Body: item.edited})
	}
	return claims, time.Time{}
}

// settle records outcomes: often while they arrive, rarely while they do not. settleIn is not a pause after failures
// but the time to the next look while other work continues, so it is counted here and not by package wait.
func (d *runDriver) settle(ctx context.Context) error {
	began := time.Now()
	if d.run.Counts.Open() == 0 || began.Sub(d.settledAt) < d.settleEvery() {
		return nil
	}
	for {
		run, n, err := d.runner.runs.SettleRun(ctx, d.run.ID, d.holder, d.runner.now(ctx), settleLimit)
		if err != nil {
			return err
		}
		d.run, d.settledAt = run, time.Now()
		d.settling = d.settledAt.Sub(began)
		if n == 0 {
			d.settleIn = min(2*d.settleIn, settleSlow)
		} else {
			d.settleIn = settleFast
		}
		if n < settleLimit {
			return nil
		}
	}
}

func (d *runDriver) settleEvery() time.Duration {
	if !d.awaiting && (d.under > 0 || len(d.ahead) > 0) {
		return max(settleBusy, d.settleIn, settleShare*d.settling)
	}
	return max(d.settleIn, 3*d.settling)
}

// pause waits for a batch, the next settling, the rate, or a change to the run.
func (d *runDriver) pause(ctx context.Context, until time.Time) {
	next := d.runner.workEvery
	if d.run.Counts.Open() > 0 {
		next = min(next, d.settleEvery()-time.Since(d.settledAt))
	}
	if !until.IsZero() {
		next = min(next, time.Until(until))
	}
	timer := time.NewTimer(max(0, next))
	defer timer.Stop()
	select {
	case p := <-d.out:
		d.take(p)
	case r := <-d.reading:
		d.reading <- r // for readAhead
	case <-timer.C:
		d.look(ctx)
	case <-ctx.Done():
	}
}

// look reads the run, which someone may have paused or cancelled.
func (d *runDriver) look(ctx context.Context) {
	if run, err := d.runner.runs.Run(ctx, d.run.ID); err == nil {
		d.run = run
	}
}

// drain waits for what is being published and records it, after the context has ended.
func (d *runDriver) drain(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.runner.publishTime+drainDeadline)
	defer cancel()
	for d.under > 0 {
		d.take(<-d.out)
	}
	for d.recordable() {
		err := d.advance(ctx, nil)
		if err == nil || errors.Is(err, ErrLeaseLost) || errors.Is(err, dlq.ErrClosed) {
			return err
		}
		if wait.For(ctx, 100*time.Millisecond) != nil {
			return err // the claims expire, and their outcomes show which messages were published
		}
	}
	return nil
}

// abandon waits for batches of a process that no longer holds the run: the outcomes show what happened.
func (d *runDriver) abandon() {
	for d.under > 0 {
		<-d.out
		d.under--
	}
}
