package middleware

import (
	"context"
	"errors"
	"time"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/wait"
)

// maxNack bounds the pause before a nack, and between two attempts to publish.
const maxNack = 30 * time.Second

// publishing is the series of pauses between attempts to publish.
var publishing = wait.Backoff{First: 100 * time.Millisecond, Longest: maxNack}

// try publishes with a few quick attempts, on a context that outlives the message's own: that one is cancelled at
// shutdown, which is exactly when this matters. d is nil if there is no observer to notify.
func (p *Pipeline) try(parent context.Context, d *delivery, what Outcome, publish func(context.Context) error) error {
	detached := context.WithoutCancel(parent)
	for n := 1; ; n++ {
		err := p.publish(detached, publish)
		if err == nil {
			return nil
		}
		if d != nil {
			observe(parent, p, Observer.PublishFailed, PublishFailed{Delivery: d.observed, Outcome: what, Try: n, Err: err})
		}
		if n == p.cfg.PublishTries || errors.Is(err, envelope.ErrTooLarge) {
			return err
		}
		// a shutdown waits for these 100 ms, 200 ms ..., to keep the message safe
		_ = wait.For(detached, publishing.After(n))
	}
}

// persist is try, followed on failure by a pause and one more attempt. The pause keeps the nack that follows from
// becoming a hot loop: every broker redelivers a nacked message at once. It grows as long as no publish succeeds, and
// ends when the consumer shuts down.
func (p *Pipeline) persist(d *delivery, dec *Decision, publish func(context.Context) error) error {
	err := p.try(d.parent, d, dec.Outcome, publish)
	if err == nil {
		p.unpublished.Store(0)
		return nil
	}
	if dec.Outcome == OutcomeRetry && errors.Is(err, envelope.ErrTooLarge) {
		return err // dead-lettered instead
	}
	pause := wait.Backoff{First: p.cfg.NackDelay, Longest: maxNack}.After(int(p.unpublished.Add(1)))
	if start := time.Now(); wait.For(d.parent, pause) != nil {
		if isShutdown(d.parent) {
			return err
		}
		// The subscriber's deadline has passed, which is no reason to hurry.
		_ = wait.For(context.WithoutCancel(d.parent), pause-time.Since(start))
	}
	if err = p.publish(context.WithoutCancel(d.parent), publish); err == nil {
		p.unpublished.Store(0)
	}
	return err
}

// publish is one attempt, under its deadline and guarded against panics.
func (p *Pipeline) publish(detached context.Context, f func(context.Context) error) error {
	ctx := &attemptContext{parent: detached, deadline: time.Now().Add(p.cfg.PublishTimeout)}
	defer ctx.release()
	return guarded(func() error { return f(ctx) }) //nolint:contextcheck // ctx is derived from detached
}
