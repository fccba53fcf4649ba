package middleware_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	watermill "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

// The benchmarks run Watermill's own parts and the pipeline side by side and report the ratio, because absolute figures
// depend on the machine.

type nowhere struct{}

func (nowhere) Publish(string, ...*message.Message) error { return nil }
func (nowhere) Close() error                              { return nil }

// stockChain is Watermill's own chain for the same job.
func stockChain(b testing.TB, h message.HandlerFunc) message.HandlerFunc {
	b.Helper()
	poison, err := watermill.PoisonQueue(nowhere{}, "poison")
	require.NoError(b, err)
	retry := watermill.Retry{MaxRetries: 3, InitialInterval: time.Nanosecond}
	return poison(retry.Middleware(watermill.Timeout(time.Minute)(watermill.CorrelationID(watermill.Recoverer(h)))))
}

var keep = middleware.DeadLetterFunc(func(context.Context, *envelope.DeadLetter) error { return nil })

var rescheduleNowhere = middleware.ReschedulerFunc(
	func(context.Context, envelope.Origin, *message.Message, time.Duration) error { return nil })

func benchPipeline(b testing.TB, change func(*middleware.Config)) *middleware.Pipeline {
	b.Helper()
	cfg := middleware.Config{DeadLetters: keep, Rescheduler: rescheduleNowhere, Logger: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&cfg)
	}
	p, err := middleware.New(cfg)
	require.NoError(b, err)
	return p
}

// routed returns a message's context as in a router: the subscriber's, which can be cancelled, with the router's
// values.
func routed(b testing.TB) context.Context {
	b.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	b.Cleanup(cancel)
	for _, key := range []string{"handler", "publisher", "subscriber", "topic"} {
		ctx = context.WithValue(ctx, benchKey(key), "orders") //nolint:fatcontext // as deep as a router makes it
	}
	return ctx
}

type benchKey string

func benchMessage(b testing.TB) *message.Message {
	b.Helper()
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
	m.SetContext(routed(b))
	return m
}

func succeed(*message.Message) ([]*message.Message, error) { return nil, nil }

// compare runs both handlers alternately and reports the median ratio of adjacent rounds, in CPU time, which a busy
// machine affects least. Rounds are long, so that each side collects its own garbage.
func compare(b *testing.B, ours, stock message.HandlerFunc, next func(testing.TB) *message.Message) {
	b.Helper()
	const turn = 50_000
	m := next(b)
	ctx := m.Context()
	run := func(h message.HandlerFunc) float64 {
		start := cpuTime()
		for range turn {
			if _, err := h(m); err != nil {
				b.Fatal(err)
			}
			m.SetContext(ctx) // the stock chain leaves a cancelled one behind
		}
		return float64(cpuTime()-start) / turn
	}
	run(ours)
	run(stock)
	var oursTimes, stockTimes, ratios []float64
	for b.Loop() {
		o, s := run(ours), run(stock)
		oursTimes, stockTimes, ratios = append(oursTimes, o), append(stockTimes, s), append(ratios, o/s)
	}
	b.ReportMetric(median(oursTimes), "ours-cpu-ns/msg")
	b.ReportMetric(median(stockTimes), "stock-cpu-ns/msg")
	b.ReportMetric(median(ratios), "ratio")
	b.ReportMetric(0, "ns/op")
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// BenchmarkSuccess is the price of the pipeline when nothing goes wrong. Target: 0.2 of the stock chain.
func BenchmarkSuccess(b *testing.B) {
	ours := map[string]func(*middleware.Config){
		"plain":    nil,
		"breaker":  func(c *middleware.Config) { c.Breaker = &middleware.Breaker{} },
		"observer": func(c *middleware.Config) { c.Observer = middleware.NopObserver{} },
	}
	for _, name := range []string{"plain", "breaker", "observer"} {
		b.Run(name, func(b *testing.B) {
			compare(b, benchPipeline(b, ours[name]).Middleware(succeed), stockChain(b, succeed), benchMessage)
		})
	}
	b.Run("structured 2 kB", func(b *testing.B) {
		compare(b, benchPipeline(b, nil).Middleware(succeed), stockChain(b, succeed), structuredMessage)
	})
}

func structuredMessage(b testing.TB) *message.Message {
	b.Helper()
	m := message.NewMessage("u", []byte(`{"message_id":"018f0c5e-7d5b-7c3a-9e53-0f1a2b3c4d5e","timestamp":"2026-02-28T22:53:42+00:00","version":"1.0","source":"shop",`+
		`"queue":"orders","data":{"text":"`+strings.Repeat("x", 2000)+`"},"metadata":{},"error":null,"retry_count":0}`))
	m.SetContext(routed(b))
	return m
}

// BenchmarkDecision is a permanent error up to the decision about the message, compared with the stock chain's whole
// work, which knows only the error. Target: 0.35.
func BenchmarkDecision(b *testing.B) {
	permanent := middleware.Permanent(errors.New("invalid IBAN"))
	p := benchPipeline(b, nil)
	decide := watermill.Recoverer(func(m *message.Message) ([]*message.Message, error) {
		if d := p.Decide(m, permanent); d.Outcome != middleware.OutcomeDeadLetter {
			b.Fatal(d)
		}
		return nil, nil
	})
	compare(b, decide, stockFailing(b), benchMessage)
}

// BenchmarkDeadLetter and BenchmarkRetry are the whole work: ours makes a copy of the message with 15 headers about the
// failure, where the stock chain sets four on the live message.
func BenchmarkDeadLetter(b *testing.B) {
	fails := failing(middleware.Permanent(errors.New("invalid IBAN")))
	compare(b, benchPipeline(b, nil).Middleware(fails), stockFailing(b), benchMessage)
}

func BenchmarkRetry(b *testing.B) {
	compare(b, benchPipeline(b, nil).Middleware(failing(context.DeadlineExceeded)), stockFailing(b), benchMessage)
}

// stockFailing sends a permanent error to the poison queue.
func stockFailing(b testing.TB) message.HandlerFunc {
	b.Helper()
	poison, err := watermill.PoisonQueue(nowhere{}, "poison")
	require.NoError(b, err)
	retry := watermill.Retry{
		MaxRetries: 3, InitialInterval: time.Nanosecond,
		ShouldRetry: func(watermill.RetryParams) bool { return false },
	}
	return poison(retry.Middleware(watermill.Timeout(time.Minute)(
		watermill.CorrelationID(watermill.Recoverer(failing(errors.New("invalid IBAN")))))))
}

func TestPipeline_SuccessAllocatesOnce(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector empties pools at random")
	}
	m := benchMessage(t)
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
			c.SystemEvents = map[string]message.NoPublishHandlerFunc{"system.ping.1": func(*message.Message) error {
				return nil
			}}
		}, 1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			h := benchPipeline(t, tt.change).Middleware(succeed)
			require.LessOrEqual(t, testing.AllocsPerRun(500, func() { _, _ = h(m) }), tt.want)
		})
	}
}
