package middleware

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
)

// Hooks are called after a decision is durable and before the message is acked. A crash in between repeats the hook
// with the message. An error, a panic and a hook that exceeds [Config.HookTimeout] are logged and change nothing; such
// a hook continues in its own goroutine. Hooks are called concurrently, with a context that outlives the message's, and
// must not change their arguments.
type Hooks struct {
	// OnRetry is called when a retry is confirmed by the broker.
	OnRetry func(ctx context.Context, p RetryParams) error
	// OnDeadLetter is called when a dead letter is durable.
	OnDeadLetter func(ctx context.Context, p DeadLetterParams) error
	// OnSkip is called when a message was skipped.
	OnSkip func(ctx context.Context, p SkipParams) error
	// OnDefer is called when a deferral is confirmed by the broker.
	OnDefer func(ctx context.Context, p DeferParams) error
}

// RetryParams are given to [Hooks.OnRetry].
type RetryParams struct {
	// Message is the message as it was received.
	Message  *message.Message
	Decision Decision
	Handler  string
	Origin   envelope.Origin
}

// DeadLetterParams are given to [Hooks.OnDeadLetter].
type DeadLetterParams struct {
	DeadLetter *envelope.DeadLetter
	Decision   Decision
	// Fallback reports that [Config.Fallback] took the dead letter.
	Fallback bool
}

// SkipParams are given to [Hooks.OnSkip].
type SkipParams struct {
	Message  *message.Message
	Decision Decision
	Handler  string
	Origin   envelope.Origin
}

// DeferParams are given to [Hooks.OnDefer].
type DeferParams struct {
	Message  *message.Message
	Decision Decision
	Handler  string
	Origin   envelope.Origin
}

// hook runs f in its own goroutine: otherwise a hook that never returns would block the message.
func (p *Pipeline) hook(d *delivery, name string, f func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(d.parent), p.cfg.HookTimeout)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		err := ErrGoexit
		defer func() {
			if r := recover(); r != nil {
				err = newPanicError(r)
			}
			done <- err
		}()
		err = f(ctx)
	}()
	start := time.Now()
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		err = fmt.Errorf("still running after %s", time.Since(start))
	}
	if err != nil {
		p.log(ctx, slog.LevelError, "hook failed; the message is settled anyway",
			slog.String("hook", name), slog.String("handler", d.handler), slog.String("topic", logText(d.origin.Topic)),
			slog.String("message_id", logText(d.attempt.MessageID)), slog.String("error", logText(errorText(err))))
	}
}
