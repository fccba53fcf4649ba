//go:build unix

package pipelinemetrics_test

import (
	"context"
	"log/slog"
	"runtime/debug"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
	"github.com/redrive-go/redrive/middleware/pipelinemetrics"
)

type benchKey string

func benchMessage(b testing.TB) *message.Message {
	b.Helper()
	m := message.NewMessage("018f0c5e-7d5b-7c3a-9e53-0f1a2b3c4d5e", make([]byte, 512))
	m.Metadata = message.Metadata{
		envelope.KeyMessageID: "018f0c5e-7d5b-7c3a-9e53-0f1a2b3c4d5e", envelope.KeyVersion: "1.0",
		envelope.KeyTimestamp: "2026-02-28T22:53:42+00:00", envelope.KeySource: "shop", envelope.KeyQueue: "orders",
		envelope.KeyEvent: "order.placed", envelope.KeyRetryCount: "0", envelope.KeyCorrelationID: "abc-123",
	}
	ctx, cancel := context.WithCancel(context.Background())
	b.Cleanup(cancel)
	ctx = envelope.WithOrigin(ctx, &envelope.Origin{Broker: "amqp", Topic: "orders", Consumer: "billing"})
	for _, key := range []string{"handler", "publisher", "subscriber", "topic"} {
		ctx = context.WithValue(ctx, benchKey(key), "orders") //nolint:fatcontext // as deep as a router makes it
	}
	m.SetContext(ctx)
	return m
}

func benchPipeline(b testing.TB, observer middleware.Observer) message.HandlerFunc {
	b.Helper()
	p, err := middleware.New(middleware.Config{
		Rescheduler: middleware.HoldInMemory,
		DeadLetters: middleware.DeadLetterFunc(func(context.Context, *envelope.DeadLetter) error { return nil }),
		Observer:    observer, Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(b, err)
	return p.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, nil })
}

func benchMetrics(b testing.TB, cfg pipelinemetrics.Config) *pipelinemetrics.Metrics {
	b.Helper()
	m, err := pipelinemetrics.New(cfg)
	require.NoError(b, err)
	return m
}

// BenchmarkSuccess measures the cost of metrics for a message that succeeds, in CPU time: the pipeline with and without
// them, alternately. Target: 2.
func BenchmarkSuccess(b *testing.B) {
	const turn = 50_000
	defer debug.SetGCPercent(debug.SetGCPercent(2000)) // this heap is tiny: without it, both sides mostly collect garbage
	for name, observer := range map[string]middleware.Observer{
		"none":        middleware.NopObserver{},
		"classic":     benchMetrics(b, pipelinemetrics.Config{NativeFactor: -1}),
		"native":      benchMetrics(b, pipelinemetrics.Config{}),
		"service bus": benchMetrics(b, pipelinemetrics.Config{ServiceBus: "billing"}),
	} {
		b.Run(name, func(b *testing.B) {
			on, off, m := benchPipeline(b, observer), benchPipeline(b, nil), benchMessage(b)
			run := func(h message.HandlerFunc) float64 {
				start := cpuTime()
				for range turn {
					_, _ = h(m)
				}
				return float64(cpuTime()-start) / turn
			}
			run(on)
			run(off)
			var ratios, with, without []float64
			for b.Loop() {
				o, s := run(on), run(off)
				with, without, ratios = append(with, o), append(without, s), append(ratios, o/s)
			}
			b.ReportMetric(median(with), "on-cpu-ns/msg")
			b.ReportMetric(median(without), "off-cpu-ns/msg")
			b.ReportMetric(median(ratios), "ratio")
			b.ReportMetric(testing.AllocsPerRun(1000, func() { _, _ = on(m) })-testing.AllocsPerRun(1000,
				func() { _, _ = off(m) }), "allocs-more/msg")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
