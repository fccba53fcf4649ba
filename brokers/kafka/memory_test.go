package kafka_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkSubscriptions measures the cost of a subscription on a cluster with thousands of unrelated topics: its share
// of the heap, its goroutines, and how long Subscribe takes.
func BenchmarkSubscriptions(b *testing.B) {
	for _, foreign := range []int{0, 4000} {
		b.Run(fmt.Sprintf("foreign topics=%d", foreign), func(b *testing.B) {
			c := cluster(b)
			if foreign > 0 {
				names := make([]string, foreign)
				for i := range names {
					names[i] = fmt.Sprintf("foreign-topic-of-another-service-%d", i)
				}
				_, err := administer(b, c).CreateTopics(b.Context(), 1, 1, nil, names...)
				require.NoError(b, err)
			}
			broker := open(b, c)
			const n = 50
			topics := make([]string, n)
			for i := range topics { // and their retry topics, which the in-process cluster stores
				topics[i] = name("orders")
				subscribe(b, open(b, c), topics[i])
			}
			for b.Loop() {
				before, goroutines := heap(), runtime.NumGoroutine()
				began := time.Now()
				for _, topic := range topics {
					subscribe(b, broker, topic)
				}
				took := time.Since(began)
				require.NoError(b, broker.Joined(b.Context()))
				b.ReportMetric(float64(heap()-before)/n/1024, "KiB/subscription")
				b.ReportMetric(float64(runtime.NumGoroutine()-goroutines)/n, "goroutines/subscription")
				b.ReportMetric(float64(took.Microseconds())/1000/n, "ms/subscription")
				b.ReportMetric(0, "ns/op")
				require.NoError(b, broker.Close())
				broker = open(b, c)
			}
		})
	}
}

// heap returns the bytes in use.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}
