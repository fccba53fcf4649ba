package collector_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/collector"
)

// The cost of a message from its dead letter queue into a SQLite file with full durability, 50 at a time.
func BenchmarkCollector(b *testing.B) {
	letters, err := dlq.Open(b.Context(), filepath.Join(b.TempDir(), "dead.db"), dlq.WithoutSpool(), dlq.WithLogger(quiet))
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = letters.Close() }()
	broker, err := memory.New(brokers.Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = broker.Close() }()
	publisher := broker.Publisher()
	for i := range b.N {
		m := message.NewMessage(fmt.Sprintf("%d-%d", b.N, i), make([]byte, 1024))
		m.Metadata = message.Metadata{
			"NServiceBus.FailedQ": "Sales", "NServiceBus.ExceptionInfo.ExceptionType": "System.TimeoutException",
			"NServiceBus.ExceptionInfo.Message": "The bank did not answer",
			"NServiceBus.TimeOfFailure":         "2026-11-20 07:30:01:000462 Z",
		}
		if err := publisher.Publish("error", m); err != nil {
			b.Fatal(err)
		}
	}
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(b.Context())
	c, err := collector.New(collector.Config{Logger: quiet, Sink: letters, Sources: []collector.Source{
		{Broker: "main", Topic: "error", Subscriber: broker.Subscriber(brokers.WithConcurrency(50))},
	}})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	go func() {
		defer close(done)
		_ = c.Run(ctx) // never an error
	}()
	for c.Stats()[0].Collected < int64(b.N) {
		time.Sleep(time.Millisecond) // real time: looks for the end of a benchmark
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
	cancel()
	<-done
}
