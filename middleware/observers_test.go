package middleware_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

// spans acts as a tracer: it puts a value into the context, and from there into published messages.
type spans struct {
	middleware.NopObserver

	seen []string
}

func (s *spans) Started(ctx context.Context, e middleware.Started) context.Context {
	return context.WithValue(ctx, valueKey{}, "span of "+e.Attempt.String())
}

func (s *spans) note(ctx context.Context, what string) {
	span, _ := ctx.Value(valueKey{}).(string)
	s.seen = append(s.seen, what+": "+span)
}

func (s *spans) Finished(ctx context.Context, e middleware.Finished) {
	s.note(ctx, "finished "+e.Outcome.String())
}

func (s *spans) RetryScheduled(ctx context.Context, _ middleware.RetryScheduled) {
	s.note(ctx, "scheduled")
}

func (s *spans) DeadLettered(ctx context.Context, _ middleware.DeadLettered) { s.note(ctx, "dead") }

func (s *spans) Stamp(ctx context.Context, m *message.Message) {
	m.Metadata["span"], _ = ctx.Value(valueKey{}).(string)
}

// contexts is a log handler that keeps the span of each line.
type contexts struct {
	slog.Handler

	seen *[]string
}

func (c contexts) Enabled(context.Context, slog.Level) bool { return true }

func (c contexts) Handle(ctx context.Context, r slog.Record) error {
	span, _ := ctx.Value(valueKey{}).(string)
	*c.seen = append(*c.seen, r.Message+": "+span)
	return nil
}

// A tracer's value in the context is visible when the delivery is settled, in the log lines, and in published messages.
func TestObservers_ContextAndStamp(t *testing.T) {
	var published, logged []string
	tracer, other := &spans{}, &diary{}
	pipeline, err := middleware.New(middleware.Config{
		MaxAttempts: 2,
		Observer:    middleware.Observers{other, tracer},
		Logger:      slog.New(contexts{slog.DiscardHandler, &logged}),
		Rescheduler: middleware.ReschedulerFunc(
			func(ctx context.Context, _ envelope.Origin, m *message.Message, _ time.Duration) error {
				published = append(published, m.Metadata["span"], ctx.Value(valueKey{}).(string))
				return nil
			}),
		DeadLetters: middleware.DeadLetterFunc(func(ctx context.Context, d *envelope.DeadLetter) error {
			published = append(published, d.Message.Metadata["span"], ctx.Value(valueKey{}).(string))
			return nil
		}),
	})
	require.NoError(t, err)
	first := order(t)
	_, err = pipeline.Middleware(failing(errTimeout))(first)
	require.NoError(t, err)
	second := order(t)
	second.Metadata[envelope.KeyRetryCount] = "1"
	_, err = pipeline.Middleware(failing(errTimeout))(second)
	require.NoError(t, err)
	_, err = pipeline.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, nil })(order(t))
	require.NoError(t, err)

	one, two := "span of attempt 1 of 2", "span of attempt 2 of 2"
	require.Equal(t, []string{one, one, two, two}, published)
	require.Equal(t, []string{
		"scheduled: " + one, "finished retry: " + one, "dead: " + two, "finished dead_letter: " + two,
		"finished success: " + one,
	}, tracer.seen)
	require.Equal(t, []string{
		"attempt failed, retry scheduled: " + one, "message dead-lettered: " + two,
		"message handled: " + one,
	}, logged)
	require.Len(t, other.lines, 8, "the other observer was called as well")
	require.Empty(t, first.Metadata["span"], "the message as it was received is not changed")
}
