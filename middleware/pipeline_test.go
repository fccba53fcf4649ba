package middleware_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

func TestPipeline_SuccessPublishesProducedMessages(t *testing.T) {
	out := message.NewMessage("out", nil)
	labelled := message.NewMessage("labelled", nil)
	labelled.Metadata["correlation_id"] = "own"
	h := newHarness(t, middleware.Config{}, func(m *message.Message) ([]*message.Message, error) {
		return []*message.Message{out, labelled, {UUID: "literal"}, nil}, nil
	})
	m := order(t)
	m.Metadata["correlation_id"] = "abc-123"
	h.sendNow(m)
	require.Equal(t, 1, h.acked)
	require.Len(t, h.published, 3, "nil is no message")
	require.Equal(t, "abc-123", out.Metadata["correlation_id"])
	require.Equal(t, "own", labelled.Metadata["correlation_id"])
	require.Equal(t, "abc-123", h.published[2].Metadata["correlation_id"], "a literal without metadata")
	require.Empty(t, h.rescheduled)
	require.Contains(t, h.logs.String(), `"level":"DEBUG","msg":"message handled"`)
}

// Watermill's PoisonQueue publishes the partial output of a failed handler.
func TestPipeline_FailureDiscardsProducedMessages(t *testing.T) {
	for _, err := range []error{
		errTimeout, middleware.Permanent(errTimeout), middleware.Skip(errTimeout),
		middleware.Defer(errTimeout, s),
	} {
		h := newHarness(t, middleware.Config{}, func(*message.Message) ([]*message.Message, error) {
			return []*message.Message{message.NewMessage("partial", nil)}, err
		})
		h.sendNow(order(t))
		require.Empty(t, h.published)
		require.Equal(t, 1, h.acked)
	}
}

func TestPipeline_RetryKeepsTheMessage(t *testing.T) {
	h := newHarness(t, middleware.Config{}, failing(errTimeout))
	m := order(t)
	m.Metadata["foreign"] = "kept"
	m.Metadata["x-death"] = "made by the broker"
	payload := string(m.Payload)
	h.sendNow(m)
	require.Len(t, h.rescheduled, 1)
	r := h.rescheduled[0]
	require.Equal(t, payload, string(r.message.Payload))
	require.Equal(t, "kept", r.message.Metadata["foreign"])
	require.NotContains(t, r.message.Metadata, "x-death")
	require.Equal(t, m.Metadata[envelope.KeyMessageID], r.message.Metadata[envelope.KeyMessageID])
	require.Equal(t, "1", r.message.Metadata[envelope.KeyRetryCount])
	require.Equal(t, "context deadline exceeded", r.message.Metadata[envelope.KeyErrorMessage])
	require.Equal(t, "context.deadlineExceededError", r.message.Metadata[envelope.KeyErrorClass])
	require.Equal(t, *h.origin, r.origin)
	require.Equal(t, s, r.delay)
}

// The attempt's data is available to the handler.
func TestAttemptFrom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen []middleware.Attempt
		h := newHarness(t, middleware.ServiceBus(4, s), func(m *message.Message) ([]*message.Message, error) {
			a, ok := middleware.AttemptFrom(m.Context())
			require.True(t, ok)
			seen = append(seen, a)
			return nil, errTimeout
		})
		m := order(t)
		envelope.SetDelay(m, 10*s)
		envelope.TakeDelay(m)
		h.send(m, time.Minute)
		id := m.Metadata[envelope.KeyMessageID]
		attempt := func(n int, tag middleware.Tag) middleware.Attempt {
			return middleware.Attempt{Number: n, Max: 4, Tag: tag, MessageID: id, OriginalDelay: 10 * s}
		}
		require.Equal(t, []middleware.Attempt{
			attempt(1, middleware.TagFirst), attempt(2, middleware.TagRetry), attempt(3, middleware.TagRetry),
			attempt(4, middleware.TagLast),
		}, seen)
		require.False(t, seen[2].IsLast())
		require.True(t, seen[3].IsLast())
		require.Equal(t, "attempt 4 of 4", seen[3].String())
	})
	_, ok := middleware.AttemptFrom(t.Context())
	require.False(t, ok)

	h := newHarness(t, middleware.ServiceBus(1), func(m *message.Message) ([]*message.Message, error) {
		a, _ := middleware.AttemptFrom(m.Context())
		require.Equal(t, middleware.TagFirst, a.Tag, "D21: first, though also the last")
		require.True(t, a.IsLast())
		return nil, nil
	})
	h.sendNow(order(t))
}

// The context with which a retry is published belongs to no attempt: the handler has returned.
func TestAttemptFrom_NotWhilePublishing(t *testing.T) {
	running := true
	cfg := middleware.ServiceBus(4, s)
	cfg.Rescheduler = middleware.ReschedulerFunc(func(ctx context.Context, _ envelope.Origin, _ *message.Message,
		_ time.Duration,
	) error {
		_, running = middleware.AttemptFrom(ctx)
		return nil
	})
	newHarness(t, cfg, func(*message.Message) ([]*message.Message, error) { return nil, errTimeout }).sendNow(order(t))
	require.False(t, running)
}

// Without a rescheduler the message is held unacked and run again here.
func TestPipeline_HoldsInMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var counts []string
		h := newHarness(t, func() middleware.Config {
			c := middleware.DelayedBackoff(3, s)
			c.Rescheduler = inMemory
			return c
		}(), func(m *message.Message) ([]*message.Message, error) {
			counts = append(counts, orZero(m.Metadata[envelope.KeyRetryCount]))
			m.Payload = []byte("spoiled")
			return nil, errTimeout
		})
		h.send(order(t), time.Hour)
		require.Equal(t, []time.Duration{0, s, 3 * s, 7 * s}, h.runs)
		require.Equal(t, []string{"0", "1", "2", "3"}, counts)
		require.Equal(t, 1, h.deliveries)
		require.Equal(t, 1, h.acked)
		require.Equal(t, `{"order":7}`, string(h.letter().Message.Payload))
	})
}

func TestPipeline_Timeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := middleware.Config{Timeout: 3 * s, MaxAttempts: 1}
		h := newHarness(t, cfg, func(m *message.Message) ([]*message.Message, error) {
			<-m.Context().Done()
			return nil, m.Context().Err()
		})
		start := time.Now()
		h.sendNow(order(t))
		require.Equal(t, 3*s, time.Since(start))
		require.Equal(t, envelope.ReasonExhausted, h.letter().Reason, "retryable, not a shutdown")
		require.Equal(t, "deadline exceeded", h.letter().Rule)

		ignores := newHarness(t, cfg, func(*message.Message) ([]*message.Message, error) {
			time.Sleep(time.Hour)
			return nil, nil
		})
		ignores.sendNow(order(t))
		require.Equal(t, 1, ignores.acked, "success after an ignored deadline is a success")
		require.Len(t, ignores.runs, 1, "and was not run a second time concurrently")

		endless := newHarness(t, middleware.Config{Timeout: math.MaxInt64, MaxAttempts: 1},
			func(m *message.Message) ([]*message.Message, error) { return nil, m.Context().Err() })
		<-time.After(s) // virtual; the sum of this second and the timeout is negative
		synctest.Wait()
		endless.sendNow(order(t))
		require.Equal(t, 1, endless.acked)
		require.Empty(t, endless.letters, "the longest timeout has not passed at once")
	})
}

func TestPipeline_RestoresTheContext(t *testing.T) {
	p := benchPipeline(t, nil)
	for _, err := range []error{nil, errTimeout} {
		m := order(t)
		ctx := context.WithValue(t.Context(), valueKey{}, 1)
		m.SetContext(ctx)
		_, _ = p.Middleware(failing(err))(m)
		require.Equal(t, ctx, m.Context())
		require.NoError(t, m.Context().Err(), "Watermill's Timeout leaves a cancelled context to outer middlewares")
	}
}

func TestPipeline_LogsEveryDecision(t *testing.T) {
	cfg := middleware.DelayedBackoff(3, s)
	h := newHarness(t, cfg, failing(fmt.Errorf("line one\nline two: %w", errTimeout)))
	h.origin.Exchange, h.origin.RoutingKey = "shop.bus", "order.reminder"
	m := order(t)
	envelope.SetDelay(m, 10*s)
	envelope.TakeDelay(m)
	h.sendNow(m)
	for _, field := range []string{
		`"level":"ERROR"`, `"msg":"attempt failed, retry scheduled"`, `"handler":"billing-handler"`, `"topic":"orders"`,
		`"exchange":"shop.bus"`, `"routing_key":"order.reminder"`, `"message_id":"` + m.Metadata[envelope.KeyMessageID],
		`"attempt":1`, `"max_attempts":4`, `"retry_count":0`, `"original_delay":10000000000`, `"delay":10000000000`,
		`"outcome":"retry"`, `"rule":"deadline exceeded"`, `"error":"line one\\nline two`, `"headers":{`,
		`"content":"{\"order\":7}"`,
	} {
		require.Contains(t, strings.ReplaceAll(h.logs.String(), `\\\"`, `\"`), field)
	}
}
