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

// SkipParams are given to [Hooks.OnSkip]. They have the fields of [RetryParams].
type SkipParams RetryParams

// DeferParams are given to [Hooks.OnDefer]. They have the fields of [RetryParams].
type DeferParams RetryParams

// received are the parameters of a hook for a message that is not dead.
func (d *delivery) received(dec *Decision) RetryParams {
	return RetryParams{Message: d.message, Decision: *dec, Handler: d.handler, Origin: d.origin}
}

// hook runs f, unless it is nil, in its own goroutine: otherwise a hook that never returns would block the message.
func hook[P any](p *Pipeline, d *delivery, name string, f func(context.Context, P) error, params P) {
	if f == nil {
		return
	}
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
		err = f(ctx, params)
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
