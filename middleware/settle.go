package middleware

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/wait"
)

// settle carries out the decision. It returns settled and nil to ack, settled and an error to nack, or how long to hold
// the message before it is run again here.
func (p *Pipeline) settle(d *delivery, dec Decision) (wait time.Duration, err error) {
	wait = settled
	switch dec.Outcome {
	case OutcomeRetry, OutcomeDefer:
		wait, err = p.reschedule(d, &dec)
	case OutcomeDeadLetter:
		err = p.deadLetter(d, &dec)
	case OutcomeSkip:
		p.skip(d, &dec)
	default:
		err = p.giveBack(d.parent, dec.Err)
	}
	if err != nil && dec.Outcome != OutcomeReturn {
		dec.Outcome = OutcomeNotSettled
	}
	observe(d.parent, p, Observer.Finished, Finished{
		Delivery: d.observed, Outcome: dec.Outcome, Ran: d.ran,
		Duration: d.duration, Decision: dec,
	})
	if d.next != nil {
		d.message.Metadata, d.message.Payload = d.next.Metadata, d.next.Payload
	}
	return wait, err
}

func (p *Pipeline) skip(d *delivery, dec *Decision) {
	p.logDecision(slog.LevelWarn, "message skipped", d, dec)
	p.redriven(d.parent, &d.control) // the dead letter's entry waits for this outcome
	hook(p, d, "OnSkip", p.cfg.Hooks.OnSkip, SkipParams(d.received(dec)))
}

// reschedule publishes the retry or the deferral before the message is acked: a crash between the two runs it twice; in
// the other order it would be lost.
func (p *Pipeline) reschedule(d *delivery, dec *Decision) (time.Duration, error) {
	here := p.holds && dec.Delay > 0 || p.cfg.Rescheduler == nil
	if !here {
		err := p.persist(d, dec, func(ctx context.Context) error {
			// A new message for each attempt, because the callee owns it.
			next := p.again(d, dec) //nolint:contextcheck // the message carries its context
			return p.cfg.Rescheduler.Reschedule(ctx, d.origin, next, dec.Delay)
		})
		switch {
		case err == nil:
			p.rescheduled(d, dec, "scheduled")
			return settled, nil
		case !errorIs(err, envelope.ErrTooLarge):
			return settled, p.notSettled(d, dec, err)
		}
		p.logDecision(slog.LevelWarn, dec.Outcome.String()+" is too large for the broker", d, dec)
		here = dec.Outcome == OutcomeDefer
	}
	if here && !d.exiting {
		return p.keep(d, dec), nil
	}
	// A retry that is too large, or no goroutine is left to run the message again.
	dec.Outcome, dec.Reason, dec.Delay = OutcomeDeadLetter, reasonOf(dec.Err, envelope.ReasonExhausted), 0
	return settled, p.deadLetter(d, dec)
}

// longestHold bounds how long messages are held instead of the broker: RabbitMQ, for one, takes back a message that is
// not answered within half an hour, and the number of attempts would be lost.
const longestHold = 10 * time.Minute

// keep holds the message of a retry or deferral in memory.
func (p *Pipeline) keep(d *delivery, dec *Decision) time.Duration {
	if p.cfg.Rescheduler != nil {
		dec.Delay = min(dec.Delay, longestHold)
	}
	d.next = p.again(d, dec)
	p.rescheduled(d, dec, "held in memory")
	return dec.Delay
}

// again builds the message of the next run.
func (p *Pipeline) again(d *delivery, dec *Decision) (next *message.Message) {
	if dec.Outcome == OutcomeDefer {
		next = envelope.RecordDeferral(d.message, d.at)
	} else {
		next = envelope.RecordFailure(d.message, envelope.Failure{
			Err: transmitted(dec), Class: errorClass(dec.Err), At: d.at, Retry: d.control.RetryCount + 1,
		})
	}
	p.stamp(d.parent, next)
	return next
}

func (p *Pipeline) rescheduled(d *delivery, dec *Decision, how string) {
	observe(d.parent, p, Observer.RetryScheduled, RetryScheduled{Delivery: d.observed, Decision: *dec})
	if dec.Outcome == OutcomeDefer {
		p.logDecision(slog.LevelInfo, "message deferred, "+how, d, dec)
		hook(p, d, "OnDefer", p.cfg.Hooks.OnDefer, DeferParams(d.received(dec)))
		return
	}
	p.logDecision(p.cfg.RetryLevel.Level(), "attempt failed, retry "+how, d, dec, stackAttrs(dec.Err)...)
	hook(p, d, "OnRetry", p.cfg.Hooks.OnRetry, d.received(dec))
}

// deadLetter stores the message in every sink, or otherwise in the fallback.
func (p *Pipeline) deadLetter(d *delivery, dec *Decision) error {
	letter := p.letter(d, dec)
	kept := make([]bool, len(p.sinks))
	fallback := false
	var err error
	publish := func(ctx context.Context) error {
		tooLarge, err := p.sinks.store(ctx, letter, kept)
		if tooLarge != nil && err == nil {
			p.log(ctx, slog.LevelWarn, "a dead letter sink has no room for the message, others have stored it",
				slog.String("sink_error", logText(errorText(tooLarge))))
		}
		return err
	}
	if p.cfg.Fallback != nil {
		err = p.try(d.parent, d, OutcomeDeadLetter, publish)
		if err != nil {
			p.logDecision(LevelCritical, "dead letter sink failed, using the fallback", d, dec,
				slog.String("sink_error", logText(errorText(err))))
			fallback = true
			err = p.persist(d, dec, func(ctx context.Context) error { return p.cfg.Fallback.DeadLetter(ctx, letter) })
		}
	} else {
		err = p.persist(d, dec, publish)
	}
	if err != nil {
		return p.notSettled(d, dec, err)
	}
	observe(d.parent, p, Observer.DeadLettered, DeadLettered{
		Delivery: d.observed, Decision: *dec, DeadLetter: letter, Fallback: fallback,
	})
	p.logDecision(LevelCritical, "message dead-lettered", d, dec, stackAttrs(dec.Err)...)
	hook(p, d, "OnDeadLetter", p.cfg.Hooks.OnDeadLetter,
		DeadLetterParams{DeadLetter: letter, Decision: *dec, Fallback: fallback})
	return nil
}

// store calls the sinks that have not kept d yet, all of them even if one fails. It also returns the error of a sink
// that has no room for d.
func (s Sinks) store(ctx context.Context, d *envelope.DeadLetter, kept []bool) (tooLarge, err error) {
	var errs []error
	for i, sink := range s {
		if kept[i] {
			continue
		}
		err := guarded(func() error { return sink.DeadLetter(ctx, d) })
		if kept[i] = err == nil; errorIs(err, envelope.ErrTooLarge) {
			tooLarge = err
		} else {
			errs = append(errs, err)
		}
	}
	if err = errors.Join(errs...); err == nil && !slices.Contains(kept, true) {
		err = tooLarge
	}
	return tooLarge, err
}

func (p *Pipeline) letter(d *delivery, dec *Decision) *envelope.DeadLetter {
	failures := d.control.RetryCount
	if dec.Reason != envelope.ReasonMalformed && dec.Verdict.Kind != KindDefer {
		failures++ // a malformed message and one that met an open circuit were not run
	}
	e, class := transmitted(dec), errorClass(dec.Err)
	m := envelope.RecordFailure(d.message, envelope.Failure{
		Err: e, Class: class, At: d.at, Retry: failures,
		Reason: dec.Reason, Rule: dec.Verdict.Rule, Handler: d.handler, Topic: d.origin.Topic,
	})
	p.stamp(d.parent, m)
	first, _ := envelope.FirstFailure(m)
	return &envelope.DeadLetter{
		Message: m, Reason: dec.Reason, Err: e, Class: class, Rule: dec.Verdict.Rule,
		Handler: d.handler, Origin: d.origin, Attempts: failures, FirstFailure: first, At: d.at, Cause: dec.Err,
	}
}

// notSettled returns the error that nacks the message.
func (p *Pipeline) notSettled(d *delivery, dec *Decision, err error) error {
	p.logDecision(LevelCritical, "message could not be settled and is nacked", d, dec,
		slog.String("publish_error", logText(errorText(err))))
	return fmt.Errorf("middleware: %w: %s: %w", ErrNotSettled, dec.Outcome, err)
}

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
		if n == p.cfg.PublishTries || errorIs(err, envelope.ErrTooLarge) {
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
	if err == nil || dec.Outcome != OutcomeDeadLetter && errorIs(err, envelope.ErrTooLarge) {
		return err // too large: a retry is dead-lettered instead, a deferral held
	}
	pause := wait.Backoff{First: p.cfg.NackDelay, Longest: maxNack}.After(int(p.unpublished.Add(1)))
	if !outlast(d.parent, pause) {
		return err
	}
	return p.publish(context.WithoutCancel(d.parent), publish)
}

// publish is one attempt, under its deadline and guarded against panics.
func (p *Pipeline) publish(detached context.Context, f func(context.Context) error) error {
	ctx := &attemptContext{parent: detached, deadline: time.Now().Add(p.cfg.PublishTimeout)}
	defer ctx.release()
	err := guarded(func() error { return f(ctx) }) //nolint:contextcheck // ctx is derived from detached
	if err == nil {
		p.unpublished.Store(0)
	}
	return err
}
