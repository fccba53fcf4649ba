package middleware_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	watermill "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

// The benchmarks put Watermill's own parts beside the pipeline in the same run and report the ratio, because absolute
// figures move with the machine.

type nowhere struct{}

func (nowhere) Publish(string, ...*message.Message) error { return nil }
func (nowhere) Close() error                              { return nil }

// stockChain is Watermill's own chain for the same job.
func stockChain(b testing.TB, h message.HandlerFunc) message.HandlerFunc {
	poison, err := watermill.PoisonQueue(nowhere{}, "poison")
	require.NoError(b, err)
	retry := watermill.Retry{MaxRetries: 3, InitialInterval: time.Nanosecond}
	return poison(retry.Middleware(watermill.Timeout(time.Minute)(watermill.CorrelationID(watermill.Recoverer(h)))))
}

var keep = middleware.DeadLetterFunc(func(context.Context, *envelope.DeadLetter) error { return nil })

var rescheduleNowhere = middleware.ReschedulerFunc(func(context.Context, envelope.Origin, *message.Message, time.Duration) error { return nil })

func benchPipeline(b testing.TB, change func(*middleware.Config)) *middleware.Pipeline {
	cfg := middleware.Config{DeadLetters: keep, Rescheduler: rescheduleNowhere, Logger: slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelError + 100}))}
	if change != nil {
		change(&cfg)
	}
	p, err := middleware.New(cfg)
	require.NoError(b, err)
	return p
}

func benchMessage() *message.Message {
	m := message.NewMessage("018f0c5e-7d5b-7c3a-9e53-0f1a2b3c4d5e", make([]byte, 512))
	m.Metadata = message.Metadata{
		envelope.KeyMessageID:     "018f0c5e-7d5b-7c3a-9e53-0f1a2b3c4d5e",
		envelope.KeyVersion:       "1.0",
		envelope.KeyTimestamp:     "2026-02-28T22:53:42+00:00",
		envelope.KeySource:        "shop",
		envelope.KeyQueue:         "orders",
		envelope.KeyRetryCount:    "0",
		envelope.KeyCorrelationID: "abc-123",
	}
	m.SetContext(context.WithValue(context.Background(), struct{}{}, 1))
	return m
}

func succeed(*message.Message) ([]*message.Message, error) { return nil, nil }

// compare runs both handlers in turns and reports the ratio of their times.
func compare(b *testing.B, ours, stock message.HandlerFunc, next func() *message.Message) {
	b.Helper()
	var oursTime, stockTime time.Duration
	const round = 200
	run := func(h message.HandlerFunc) time.Duration {
		m := next()
		ctx := m.Context()
		start := time.Now()
		for range round {
			if _, err := h(m); err != nil {
				b.Fatal(err)
			}
			m.SetContext(ctx) // the stock chain leaves a cancelled one behind
		}
		return time.Since(start)
	}
	run(ours)
	run(stock)
	b.ReportAllocs()
	rounds := 0
	for b.Loop() {
		oursTime += run(ours)
		stockTime += run(stock)
		rounds++
	}
	n := float64(rounds * round)
	b.ReportMetric(float64(oursTime)/n, "ours-ns/msg")
	b.ReportMetric(float64(stockTime)/n, "stock-ns/msg")
	b.ReportMetric(float64(oursTime)/float64(stockTime), "ratio")
	b.ReportMetric(0, "ns/op")
}

func BenchmarkSuccess(b *testing.B) {
	compare(b, benchPipeline(b, nil).Middleware(succeed), stockChain(b, succeed), benchMessage)
}

func BenchmarkDeadLetter(b *testing.B) {
	failing := errors.New("invalid CPF")
	h := func(*message.Message) ([]*message.Message, error) { return nil, failing }
	permanent := middleware.Permanent(failing)
	ours := benchPipeline(b, nil).Middleware(func(*message.Message) ([]*message.Message, error) { return nil, permanent })
	poison, err := watermill.PoisonQueue(nowhere{}, "poison")
	require.NoError(b, err)
	retry := watermill.Retry{MaxRetries: 3, InitialInterval: time.Nanosecond, ShouldRetry: func(watermill.RetryParams) bool { return false }}
	compare(b, ours, poison(retry.Middleware(watermill.Timeout(time.Minute)(watermill.CorrelationID(watermill.Recoverer(h))))), benchMessage)
}

func TestPipeline_SuccessAllocatesOnce(t *testing.T) {
	m := benchMessage()
	tests := map[string]struct {
		change func(*middleware.Config)
		want   float64
	}{
		"plain":        {nil, 1},
		"with breaker": {func(c *middleware.Config) { c.Breaker = &middleware.Breaker{} }, 1},
		"with overrides": {func(c *middleware.Config) {
			c.Handlers = map[string]middleware.HandlerConfig{"orders": {MaxAttempts: 2}}
		}, 1},
		"with no deadline": {func(c *middleware.Config) { c.Timeout = -1 }, 1},
		"with observer":    {func(c *middleware.Config) { c.Observer = middleware.NopObserver{} }, 1},
		"with system events": {func(c *middleware.Config) {
			c.SystemEvents = map[string]message.NoPublishHandlerFunc{"system.ping.1": func(*message.Message) error { return nil }}
		}, 1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			h := benchPipeline(t, tt.change).Middleware(succeed)
			require.LessOrEqual(t, testing.AllocsPerRun(500, func() { _, _ = h(m) }), tt.want)
		})
	}
}
