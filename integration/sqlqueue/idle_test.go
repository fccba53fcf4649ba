package sqlqueue_test

import (
	"fmt"
	"maps"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkIdle prints what a thousand subscriptions cost that receive nothing, in percent of one processor of this process, which is
// everything on SQLite.
func BenchmarkIdle(b *testing.B) {
	databases := map[string]func(testing.TB) string{"SQLite": sqliteFile}
	maps.Copy(databases, servers)
	for name, database := range databases {
		for _, n := range []int{1, 1000} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				url := database(b)
				queue := openQueue(b, url)
				subscriber := queue.Subscriber(concurrently(1))
				for i := range n {
					_, err := subscriber.Subscribe(b.Context(), fmt.Sprint("topic-", i))
					require.NoError(b, err)
				}
				window := func() float64 {
					cpu, began := processorTime(b), time.Now()
					time.Sleep(3 * time.Second) // real time: the window that is measured
					return 100 * float64(processorTime(b)-cpu) / float64(time.Since(began))
				}
				window() // until their pauses have grown
				for b.Loop() {
					b.ReportMetric(window(), "%core")
				}
			})
		}
	}
}

func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
