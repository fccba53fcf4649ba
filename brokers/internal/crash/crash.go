// Package crash creates dead letters for messages that kill their consumer's process, which no middleware gets to see.
package crash

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
)

// DefaultLimit is how many deliveries may end without an answer before a message becomes a dead letter.
const DefaultLimit = 5

// Letter returns the dead letter of m, which was delivered crashes times without an answer. m is not changed.
func Letter(m *message.Message, origin envelope.Origin, crashes, limit int, at time.Time) *envelope.DeadLetter {
	text := fmt.Sprintf("delivered %d times without an answer: its handler seems to kill the process (crash-limit %d)",
		crashes, limit)
	fault := envelope.Error{Message: text, Code: "crash"}
	dead := m
	if c, err := envelope.ReadControl(m); err == nil {
		recorded, err := envelope.RecordFailure(m, envelope.Failure{
			Err: fault, Class: "crash", At: at, Retry: c.RetryCount + 1, Reason: envelope.ReasonCrash,
		})
		if err == nil {
			dead = recorded
		}
	} // otherwise the body only claims to be an envelope, and its bytes stay unchanged
	return &envelope.DeadLetter{
		Message: dead, Reason: envelope.ReasonCrash, Err: fault, Rule: "crash-limit", Origin: origin, At: at,
	}
}

// Keep gives d to cfg.DeadLetters, and to queue, the broker's own dead letter queue, if there is no sink or it fails:
// late is better than a message that keeps killing processes.
func Keep(ctx context.Context, cfg brokers.Config, d *envelope.DeadLetter,
	queue func(context.Context, *envelope.DeadLetter) error,
) error {
	if cfg.DeadLetters == nil {
		return queue(ctx, d)
	}
	err := offer(ctx, cfg, d)
	if err == nil {
		return nil
	}
	cfg.Logger.ErrorContext(ctx, "Config.DeadLetters did not take a dead letter, which goes to the dead letter queue",
		"broker", d.Origin.Broker, "topic", d.Origin.Topic, "consumer", d.Origin.Consumer, "message_id", d.Message.UUID,
		"error", err)
	return queue(ctx, d)
}

// offer calls cfg.DeadLetters with a copy, which it may still use after its time is over, and contains its panics,
// which would kill the process once more.
func offer(ctx context.Context, cfg brokers.Config, d *envelope.DeadLetter) error {
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
