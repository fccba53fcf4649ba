package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
)

// crashLetter returns the dead letter of m, which was delivered crashes times without an answer: no middleware gets to
// see it. m is not changed.
func crashLetter(m *message.Message, origin envelope.Origin, crashes, limit int, at time.Time) *envelope.DeadLetter {
	text := fmt.Sprintf("delivered %d times without an answer: its handler seems to kill the process (crash-limit %d)",
		crashes, limit)
	fault := envelope.Error{Message: text, Code: "crash"}
	dead := m
	if c, err := envelope.ReadControl(m); err == nil {
		dead = envelope.RecordFailure(m, envelope.Failure{
			Err: fault, Class: "crash", At: at, Retry: c.RetryCount + 1, Reason: envelope.ReasonCrash,
		})
	} // otherwise the body only claims to be an envelope, and its bytes stay unchanged
	return &envelope.DeadLetter{
		Message: dead, Reason: envelope.ReasonCrash, Err: fault, Rule: "crash-limit", Origin: origin, At: at,
	}
}

// keepLetter gives d to cfg.DeadLetters, and to queue, the broker's own dead letter queue, if there is no sink or it
// fails: late is better than a message that keeps killing processes.
func keepLetter(ctx context.Context, cfg brokers.Config, d *envelope.DeadLetter,
	queue func(context.Context, *envelope.DeadLetter) error,
) error {
	if cfg.DeadLetters == nil {
		return queue(ctx, d)
	}
	err := offerLetter(ctx, cfg, d)
	if err == nil {
		return nil
	}
	cfg.Logger.ErrorContext(ctx, "Config.DeadLetters did not take a dead letter, which goes to the dead letter queue",
		"broker", d.Origin.Broker, "topic", d.Origin.Topic, "consumer", d.Origin.Consumer, "message_id", d.Message.UUID,
		"error", err)
	return queue(ctx, d)
}

// offerLetter calls cfg.DeadLetters, at most for the publish timeout, with a copy that it may still use afterwards. It
// recovers its panics, which would kill the process once more.
func offerLetter(ctx context.Context, cfg brokers.Config, d *envelope.DeadLetter) error {
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.PublishTimeout,
		fmt.Errorf("no answer within %s: %w", cfg.PublishTimeout, context.DeadlineExceeded))
	defer cancel()
	mine := *d
	mine.Message = d.Message.Copy()
	answer := make(chan error, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				answer <- fmt.Errorf("panic: %v", r)
			}
		}()
		answer <- cfg.DeadLetters(ctx, &mine)
	}()
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
