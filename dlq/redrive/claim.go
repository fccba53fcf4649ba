package redrive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"golang.org/x/time/rate"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/internal/guarded"
	"github.com/redrive-go/redrive/dlq/internal/text"
	"github.com/redrive-go/redrive/envelope"
)

// claimable returns what may be claimed now, or the time until which nothing may.
func (d *runDriver) claimable() (claims []Claim, until time.Time) {
	now := time.Now()
	r := d.run
	d.awaitOutcomes = false
	if r.State != Running || d.inFlight == maxInFlight || r.Counts.Waiting == 0 || d.refusals >= maxRunRefusals {
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
	d.awaitOutcomes = allowed <= 0
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

// canary is how many entries may be claimed before the current step of the canary has to be judged. It is judged when
// every publish of it is confirmed, because outcomes may arrive earlier than confirms.
func (r *Run) canary() (left int64) {
	started, total := r.Counts.Started(), int64(0)
	for _, size := range r.Spec.Canary {
		total += int64(size)
		if started < total {
			return total - started
		}
		if started == total && (r.Counts.Open() > 0 || r.outcomes() > 0) {
			return 0
		}
	}
	return math.MaxInt64
}

// maxPace bounds the wait for a rate.
const maxPace = time.Hour

// paced returns how many of n messages the rate allows now; when it allows none, until is when it will.
func (d *runDriver) paced(now time.Time, n int64) (allowed int64, until time.Time) {
	limit := rate.Limit(d.run.Spec.Rate)
	switch {
	case limit == 0:
		d.limiter = nil
		return n, time.Time{}
	case n <= 0: // the limiter is kept: a new one would allow a burst
		return n, time.Time{}
	}
	if d.limiter == nil || d.limiter.Limit() != limit {
		// A tenth of a second's worth at once: smooth enough for a consumer, and big enough for batches.
		d.limiter = rate.NewLimiter(limit, max(1, int(min(limit/10, 1e9))))
	}
	tokens := d.limiter.TokensAt(now)
	if tokens >= 1 {
		return min(n, int64(tokens)), time.Time{}
	}
	// A rate of one in a thousand years must not overflow into the past, which would poll the store without a pause.
	seconds := min((1-tokens)/float64(limit), maxPace.Seconds())
	return 0, now.Add(time.Duration(seconds*float64(time.Second)) + time.Microsecond)
}

// recordable reports whether anything has happened that is not in the store yet.
func (d *runDriver) recordable() bool {
	return len(d.step.Published)+len(d.step.Released)+len(d.step.Skipped) > 0
}

// advance does one step: it records the published entries and claims the next batch, whose publish it starts.
func (d *runDriver) advance(ctx context.Context, claims []Claim) error {
	s := d.step
	s.Run, s.Holder, s.At, s.Lease, s.Actor = d.run.ID, d.holder, d.runner.now(ctx), d.runner.cfg.Lease, d.run.CreatedBy
	s.ClosePublished, s.OutcomeTimeout, s.ClaimTimeout = d.run.Spec.CloseOnPublish, d.run.Spec.OutcomeTimeout.Duration(),
		2*d.runner.cfg.PublishTimeout
	s.Claims = claims
	s.Known = maps.Clone(d.step.Known)
	if s.Known == nil {
		s.Known = make(map[int64]*dlq.Entry, len(claims))
	}
	for i := range d.ahead[:len(claims)] {
		if e := d.ahead[i].Entry; e != nil {
			s.Known[e.ID] = e
		}
	}
	began := time.Now()
	stepped, err := d.runner.runs.StepRun(ctx, s)
	if err != nil {
		return err
	}
	d.run, d.step = stepped.Run, Step{}
	if d.limiter != nil {
		d.limiter.AllowN(began, len(stepped.Claimed))
	}
	first := d.ahead[:len(claims)]
	d.send(ctx, len(claims), stepped.Claimed)
	if !d.warned && len(claims) > 0 {
		d.warned = true
		d.runner.warn(ctx, d.run, first) // while they are being published, so that it costs the run no time
	}
	clear(first) // their array is still in use, and would keep the messages
	return nil
}

// send publishes the claims among the first items ahead. The publish continues after the context ends: its result is
// awaited.
func (d *runDriver) send(ctx context.Context, claims int, claimed []dlq.Entry) {
	read := make(map[int64]*readItem, claims)
	for i := range d.ahead[:claims] {
		read[d.ahead[i].EntryID] = &d.ahead[i]
	}
	batch := make([]outgoing, 0, len(claimed))
	for i := range claimed {
		e, item := &claimed[i], read[claimed[i].ID]
		if item.Entry != nil {
			e.Body = cmp.Or(item.edited, item.Entry.Body)
		}
		if e.Body == nil { // it was unarchived after the read; the next one will find it
			d.step.Released = append(d.step.Released, Refusal{EntryID: e.ID, Detail: "its message had not been read"})
			continue
		}
		m := dlq.RedriveMessage(e) //nolint:contextcheck // the message has its own
		batch = append(batch, outgoing{e, item.Entry.Status, d.runner.address(d.run, e), m})
		e.Body = nil
	}
	d.ahead = d.ahead[claims:]
	if len(batch) == 0 {
		return
	}
	d.inFlight++
	go func() { d.results <- d.runner.publishAll(context.WithoutCancel(ctx), batch) }()
}

// outgoing is the message of a claimed entry.
type outgoing struct {
	entry   *dlq.Entry // as it was claimed, without its body
	before  dlq.Status // before the claim
	origin  envelope.Origin
	message *message.Message
}

// published is a batch that has been published.
type published struct {
	batch []outgoing
	errs  []error
	took  time.Duration
}

// publishAll publishes a batch and returns when every message is confirmed or refused, or after the publish timeout.
func (rn *Runner) publishAll(ctx context.Context, batch []outgoing) published {
	began := time.Now()
	ctx, cancel := context.WithTimeout(envelope.WithExistingOnly(ctx), rn.cfg.PublishTimeout)
	defer cancel()
	origins, messages := make([]envelope.Origin, len(batch)), make([]*message.Message, len(batch))
	for i := range batch {
		origins[i], messages[i] = batch[i].origin, batch[i].message
	}
	errs := RescheduleAll(ctx, rn.cfg.Redriver, origins, messages, rn.cfg.Publishers)
	return published{batch, errs, time.Since(began)}
}

// collect records the batches that have been published since the last tick.
func (d *runDriver) collect() {
	for d.inFlight > 0 {
		select {
		case p := <-d.results:
			d.recordBatch(p)
		default:
			return
		}
	}
}

// recordBatch adds a published batch to the next step. A message that the broker refuses while it accepts others is
// retried a few times and then skipped. If the broker accepts nothing, the run waits, and stops when that does not
// help.
func (d *runDriver) recordBatch(p published) {
	d.inFlight--
	d.resize(len(p.batch), p.took)
	if d.step.Known == nil {
		d.step.Known = make(map[int64]*dlq.Entry, len(p.batch))
	}
	var refused []Refusal
	for i, err := range p.errs {
		id := p.batch[i].entry.ID
		if err == nil {
			d.step.Published = append(d.step.Published, id)
			d.step.Known[id] = p.batch[i].entry
			delete(d.refused, id)
			continue
		}
		refused = append(refused, Refusal{id, "not published: " + text.Clean(err.Error(), text.MaxName), p.batch[i].before})
	}
	if len(refused) == 0 {
		d.refusals = 0
		return
	}
	d.notBefore = time.Now().Add(refusalPause << min(d.refusals, 5))
	// A message that was refused while others were accepted may be alone in its next batch: then the broker is not at
	// fault.
	known := !slices.ContainsFunc(refused, func(r Refusal) bool { return d.refused[r.EntryID] == 0 })
	if len(refused) == len(p.batch) && !known {
		d.refusals++
		d.refusal = fmt.Sprintf("entry %d: %s", refused[0].EntryID, refused[0].Detail)
		d.step.Released = append(d.step.Released, refused...)
		return
	}
	d.refusals = 0
	for _, r := range refused {
		d.refused[r.EntryID]++
		if d.refused[r.EntryID] >= maxRunRefusals {
			d.step.Skipped = append(d.step.Skipped, r)
			continue
		}
		d.step.Released = append(d.step.Released, r)
	}
}

// resize makes batches larger while publishing is fast, because a transaction costs the same for any number of entries,
// and smaller when it is slow, because a run is paused and stopped between batches.
func (d *runDriver) resize(n int, took time.Duration) {
	switch {
	case took > batchSlow:
		d.size = max(1, d.size/2)
	case took < batchFast && n >= d.size:
		d.size = min(d.runner.cfg.Batch, 2*d.size)
	}
}

// BatchRedriver is a [Redriver] that publishes many messages in one call, which is faster than many concurrent calls.
// It is optional: a run finds it by a type assertion.
type BatchRedriver interface {
	dlq.Redriver
	// RescheduleAll puts each message in front of the consumer of its origin, now. It returns when the broker has
	// confirmed or refused every one, or the context has ended: one error per message, in order, nil for confirmed.
	RescheduleAll(ctx context.Context, origins []envelope.Origin, messages []*message.Message) []error
}

// RescheduleAll sends messages through r in one call when it is a [BatchRedriver], otherwise by concurrent calls. It
// returns one error per message, in order, nil for confirmed. A panic of r becomes an error.
func RescheduleAll(ctx context.Context, r dlq.Redriver, origins []envelope.Origin, messages []*message.Message,
	calls int,
) []error {
	if all, ok := r.(BatchRedriver); ok {
		return rescheduleBatch(ctx, all, origins, messages)
	}
	errs := make([]error, len(messages))
	next := make(chan int)
	var wg sync.WaitGroup
	for range min(max(1, calls), len(messages)) {
		wg.Go(func() {
			for i := range next {
				errs[i] = rescheduleOne(ctx, r, origins[i], messages[i])
			}
		})
	}
	for i := range messages {
		next <- i
	}
	close(next)
	wg.Wait()
	return errs
}

// rescheduleBatch makes sure that there is a result for each message.
func rescheduleBatch(ctx context.Context, r BatchRedriver, origins []envelope.Origin, messages []*message.Message) (
	errs []error,
) {
	err := guarded.Call(func() error {
		if errs = r.RescheduleAll(ctx, origins, messages); len(errs) != len(messages) {
			return fmt.Errorf("it answered for %d of %d messages", len(errs), len(messages))
		}
		return nil
	})
	if err != nil {
		return slices.Repeat([]error{fmt.Errorf("dlq: the redriver: %w", err)}, len(messages))
	}
	return errs
}

// rescheduleOne recovers a panic of the redriver: the run's process serves others, too.
func rescheduleOne(ctx context.Context, r dlq.Redriver, origin envelope.Origin, msg *message.Message) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("dlq: the redriver panicked: %v", r)
		}
	}()
	if ctx.Err() != nil {
		return errors.New("dlq: not published: the time for its batch was over")
	}
	return r.Reschedule(ctx, origin, msg, 0)
}

// address is the destination of a claimed entry's message.
func (rn *Runner) address(run *Run, e *dlq.Entry) envelope.Origin {
	target, redirected := rn.cfg.Targets[run.Spec.Target]
	if run.Spec.Target == "" || !redirected {
		return e.Origin
	}
	if target.Key == nil {
		target.Key = e.Origin.Key
	}
	return target
}
