package main

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

// middleware wraps the pipeline and records attempts that begin, and attempts that succeed.
func (l *ledger) middleware(h message.HandlerFunc) message.HandlerFunc {
	return func(m *message.Message) ([]*message.Message, error) {
		handler := message.HandlerNameFromCtx(m.Context())
		id, attempt := envelope.Identify(m), 1
		if c, err := envelope.ReadControl(m); err == nil {
			attempt += c.RetryCount
		}
		l.start(handler, id, attempt)
		produced, err := h(m)
		if err != nil {
			return nil, err
		}
		for _, out := range produced {
			l.publish(consumerLoyalty, envelope.Identify(out))
		}
		l.finish(handler, id, attempt)
		return produced, nil
	}
}

// hooks record failed attempts once the pipeline has made their outcome durable.
func (l *ledger) hooks() middleware.Hooks {
	return middleware.Hooks{
		OnRetry: func(_ context.Context, p middleware.RetryParams) error {
			l.retry(p.Handler, p.Decision.Attempt.MessageID, p.Decision.Attempt.Number)
			return nil
		},
		OnSkip: func(_ context.Context, p middleware.SkipParams) error {
			l.end(p.Handler, p.Decision.Attempt.MessageID, p.Decision.Attempt.Number, skipped)
			return nil
		},
		OnDeadLetter: func(_ context.Context, p middleware.DeadLetterParams) error {
			l.end(p.DeadLetter.Handler, p.Decision.Attempt.MessageID, p.Decision.Attempt.Number, dead)
			return nil
		},
	}
}
