package redrive

import (
	"context"
	"errors"
	"fmt"
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
	maxInFlight    = 2   // batches that are published at once, so that the store works while the broker does
	firstBatch     = 250 // entries; batches grow while publishing is fast
	batchFast      = 250 * time.Millisecond
	batchSlow      = time.Second
	batchBytes     = 16 << 20       // payload in one read, and read ahead before another one
	settleLimit    = driver.MaxPage // items that one transaction settles
	settleFast     = 20 * time.Millisecond
	settleSlow     = time.Second
	settleBusy     = 250 * time.Millisecond // while there is something to publish
	settleShare    = 10                     // at most this fraction of the time: 1/10
	maxRunRefusals = 3                      // of one message, or of whole batches in a row
	refusalPause   = time.Second
	maxFailures    = 10 // of steps in a row, while the store responds
	drainDeadline  = 10 * time.Second
)

// runDriver drives one run as a pipeline: while up to two batches are being published, one transaction claims the next
// and records the previous one, and the entries after them are read. Only the goroutine of drive uses the fields; the
// others send it their results through channels.
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

	results  chan published // of batches; has room for all that are in flight
	inFlight int            // batches being published
	refused  map[int64]int  // how often the broker refused an entry's message
	step     Step           // what the next step records

	refusals      int       // batches in a row of which the broker accepted nothing
	refusal       string    // why
	notBefore     time.Time // the earliest time for another claim after a refusal
	settledAt     time.Time
	settleIn      time.Duration
	settling      time.Duration // duration of the last settling, bounded
	warned        bool          // about destinations without a reader
	awaitOutcomes bool          // nothing more may be claimed until outcomes arrive
	failures      int           // of steps in a row
}

func (rn *Runner) newDriver(holder string, run *Run, linger bool) (*runDriver, error) {
	d := &runDriver{
		runner: rn, holder: holder, linger: linger, run: run, results: make(chan published, maxInFlight),
		size:    min(rn.cfg.Batch, firstBatch),
		refused: map[int64]int{}, settleIn: settleFast, jq: run.Spec.JQ,
	}
	if run.Spec.JQ != "" {
		if err := payload.Check(run.Spec.JQ); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// drive returns when the run has ended, or is not running and everything is recorded. When the context ends, it claims
// nothing more, and waits for batches in flight to record them.
func (d *runDriver) drive(ctx context.Context) error {
	readCtx, stopReading := context.WithCancel(ctx)
	defer func() { // the read in flight ends first
		stopReading()
		if d.reading != nil {
			<-d.reading
			d.reading = nil
		}
	}()
	for {
		if ctx.Err() != nil {
			return errors.Join(ctx.Err(), d.drain(ctx))
		}
		done, err := d.tick(ctx, readCtx)
		switch {
		case err == nil && done:
			return nil
		case err == nil && d.reading != nil: // whether it succeeds is not known
		case err == nil:
			d.failures = 0
		case errors.Is(err, ErrLeaseLost), errors.Is(err, dlq.ErrNotFound), errors.Is(err, dlq.ErrClosed):
			d.abandon()
			return err
		case isPanic(err):
			return err
		case ctx.Err() == nil:
			d.failures++
			if d.failures >= maxFailures && d.stopFailing(ctx, err) {
				d.failures = 0
				continue
			}
			d.reload(ctx) // a person may have paused or cancelled it meanwhile
			d.runner.cfg.Logger.WarnContext(ctx, "redrive run: a step failed; it is retried", "run", d.run.ID,
				"error", err)
			_ = wait.For(ctx, min(failureBackoff.After(d.failures), d.runner.cfg.Lease/4))
		}
	}
}

// failureBackoff has the pauses after failed steps; they are at most a quarter of the lease.
var failureBackoff = wait.Backoff{First: 200 * time.Millisecond, Longest: 6400 * time.Millisecond}

// stopFailing stops a run whose steps fail although the store responds, because retries would never end, and reports
// whether it did. A store that does not respond is retried until it does.
func (d *runDriver) stopFailing(ctx context.Context, cause error) bool {
	if d.runner.cfg.Store.Ping(ctx) != nil {
		return false
	}
	note := "it fails although the store responds: " + text.Clean(cause.Error(), text.MaxName)
	return d.change(ctx, ActionStop, note) == nil
}

// tick does the next thing that is due: a transaction or two, or a wait.
func (d *runDriver) tick(ctx, readCtx context.Context) (done bool, err error) {
	d.collect()
	if at := d.runner.now(ctx); d.run.LeaseUntil.Sub(at) < d.runner.cfg.Lease/2 {
		run, err := d.runner.runs.LeaseRun(ctx, d.run.ID, d.holder, at, d.runner.cfg.Lease)
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
	claims, until := d.claimable()
	if len(claims) > 0 || d.recordable() {
		return false, d.advance(ctx, claims)
	}
	if d.finished() {
		return true, nil
	}
	d.pause(ctx, until)
	return false, nil
}

// finished reports whether there is nothing left to do for the run in this process.
func (d *runDriver) finished() bool {
	if d.run.State == Running || d.run.State == Preparing || d.inFlight > 0 || d.recordable() {
		return false
	}
	return !d.linger || d.run.Counts.Open() == 0
}

// pause waits for a batch, a read, the next settling or the time until which nothing may be claimed, and reloads the
// run after that.
func (d *runDriver) pause(ctx context.Context, until time.Time) {
	next := d.runner.cfg.WorkInterval
	if d.run.Counts.Open() > 0 {
		next = min(next, d.settleEvery()-time.Since(d.settledAt))
	}
	if !until.IsZero() {
		next = min(next, time.Until(until))
	}
	select {
	case p := <-d.results:
		d.recordBatch(p)
	case r := <-d.reading:
		d.reading <- r // for readAhead
	case <-time.After(max(0, next)):
		d.reload(ctx)
	case <-ctx.Done():
	}
}

// reload reads the run, which a person may have paused or cancelled.
func (d *runDriver) reload(ctx context.Context) {
	if run, err := d.runner.runs.Run(ctx, d.run.ID); err == nil {
		d.run = run
	}
}

// drain records the batches in flight after the context has ended.
func (d *runDriver) drain(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.runner.cfg.PublishTimeout+drainDeadline)
	defer cancel()
	for d.inFlight > 0 {
		d.recordBatch(<-d.results)
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

// abandon waits for batches in flight when another process has the run: outcomes will show what happened to them.
func (d *runDriver) abandon() {
	for d.inFlight > 0 {
		<-d.results
		d.inFlight--
	}
}

// settle reads the outcomes of claimed and published items from their entries: often while outcomes arrive, rarely
// while they do not.
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
		d.settling = min(d.settledAt.Sub(began), settleSlow) // a frozen server delays the next one by seconds
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
	if !d.awaitOutcomes && (d.inFlight > 0 || len(d.ahead) > 0) {
		return max(settleBusy, d.settleIn, settleShare*d.settling)
	}
	return max(d.settleIn, 3*d.settling)
}

// judge ends a run that is complete, and stops one that fails too often.
func (d *runDriver) judge(ctx context.Context) (changed bool, err error) {
	r := d.run
	if r.State != Running {
		return false, nil
	}
	outcomes := r.outcomes()
	share := r.failureShare()
	step, ended := r.canaryEnded()
	ended = ended && outcomes > 0 && d.inFlight == 0 && !d.recordable()
	switch {
	case ended && share > r.Spec.Stop.Share && r.Counts.Waiting > 0:
		return true, d.change(ctx, ActionStop,
			fmt.Sprintf("canary step %d of %d: %.0f %% of its %d outcomes are failures, more than %.0f %%",
				step+1, len(r.Spec.Canary), share*100, outcomes, r.Spec.Stop.Share*100))
	case outcomes >= int64(r.Spec.Stop.MinSample) && share > r.Spec.Stop.Share && r.Counts.Waiting > 0:
		return true, d.change(ctx, ActionStop, fmt.Sprintf("%.0f %% of %d outcomes are failures, more than %.0f %%",
			share*100, outcomes, r.Spec.Stop.Share*100))
	case ended && r.Counts.Waiting > 0: // the next step is judged by its own outcomes
		return true, d.change(ctx, ActionCanary,
			fmt.Sprintf("step %d of %d: %.0f %% of %d failed", step+1, len(r.Spec.Canary), share*100, outcomes))
	case r.Counts.Waiting == 0 && r.Counts.Open() == 0 && d.inFlight == 0 && !d.recordable():
		return true, d.change(ctx, ActionComplete, "")
	case d.refusals >= maxRunRefusals && d.inFlight == 0 && !d.recordable():
		d.refusals = 0
		return true, d.change(ctx, ActionStop, d.refusal)
	default:
		return false, nil
	}
}

func (d *runDriver) change(ctx context.Context, action driver.Action, note string) error {
	run, err := d.runner.changeRun(ctx, d.run.ID, action, dlq.By{Actor: "redrive", Note: note})
	if errors.Is(err, dlq.ErrConflict) { // a person was faster
		run, err = d.runner.runs.Run(ctx, d.run.ID)
	}
	if err == nil {
		d.run = run
	}
	return err
}

// outcomes are those since the last start, resume or canary step, which have not been judged yet.
func (r *Run) outcomes() int64 { return r.Counts.Outcomes() - r.Baseline.Outcomes() }

// canaryEnded reports whether a step of the canary, counted from 0, has all its outcomes and nothing after it has
// begun.
func (r *Run) canaryEnded() (step int, ended bool) {
	total := int64(0)
	for step, size := range r.Spec.Canary {
		if total += int64(size); r.Counts.Started() == total {
			return step, r.Counts.Open() == 0
		}
	}
	return 0, false
}
