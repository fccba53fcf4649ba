package middleware

import (
	"context"
	"errors"
	"time"

	"github.com/redrive-go/redrive/envelope"
)

const (
	firstPause = 100 * time.Millisecond // between two tries to publish, doubled each time
	maxNack    = 30 * time.Second
)

// try publishes with a few quick tries, on a context that outlives the message's own: that is cancelled at shutdown,
// which is exactly when this matters. d is nil where there is no observer to tell.
func (p *Pipeline) try(parent context.Context, d *delivery, what Outcome, publish func(context.Context) error) error {
	detached := context.WithoutCancel(parent)
	pause := firstPause
	for n := 1; ; n++ {
		err := p.publish(detached, publish)
		if err == nil {
			return nil
		}
		if d != nil && p.cfg.Observer != nil {
			p.observePublishFailed(parent, PublishFailed{Delivery: &d.observed.Delivery, Outcome: what, Try: n, Err: err})
		}
		if n == p.cfg.PublishTries || errors.Is(err, envelope.ErrTooLarge) {
			return err
		}
		wait(detached, pause) // a shutdown waits for these 100 ms, 200 ms ..., for the sake of the message
		pause *= 2
	}
}

// persist is try, and when that fails a pause with one more try at its end. The pause is what keeps the nack that
// follows from being a hot loop: every broker redelivers a nacked message at once. It grows as long as nothing can be
// published, and ends when the consumer shuts down.
func (p *Pipeline) persist(d *delivery, dec *Decision, publish func(context.Context) error) error {
	err := p.try(d.parent, d, dec.Outcome, publish)
	if err == nil {
		p.unpublished.Store(0)
		return nil
	}
	if dec.Outcome == OutcomeRetry && errors.Is(err, envelope.ErrTooLarge) {
		return err // it is dead instead
	}
	pause := nackPause(p.cfg.NackDelay, p.unpublished.Add(1))
	if start := time.Now(); !wait(d.parent, pause) {
		if isShutdown(d.parent) {
			return err
		}
		// The subscriber's deadline has passed, which is not a reason to hurry.
		wait(context.WithoutCancel(d.parent), pause-time.Since(start))
	}
	if err = p.publish(context.WithoutCancel(d.parent), publish); err == nil {
		p.unpublished.Store(0)
	}
	return err
}

// publish is one try, under its deadline and guarded against panics.
func (p *Pipeline) publish(detached context.Context, f func(context.Context) error) error {
	ctx := &attemptContext{parent: detached, deadline: time.Now().Add(p.cfg.PublishTimeout)}
	defer ctx.release()
	return guarded(func() error { return f(ctx) }) //nolint:contextcheck // ctx is derived from detached
}

// nackPause doubles from first with every delivery in a row that could not be settled.
func nackPause(first time.Duration, inARow int64) time.Duration {
	if first >= maxNack {
		return first
	}
	return min(first<<min(max(inARow-1, 0), 16), maxNack)
}

// wait waits for d and reports whether it did: false means that ctx ended first.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
