// Package subscriptions_test measures what the subscriptions of one process cost on every broker.
package subscriptions_test

import (
	"fmt"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/redrive-go/redrive/brokers"
	_ "github.com/redrive-go/redrive/brokers/kafka"
	_ "github.com/redrive-go/redrive/brokers/memory"
	_ "github.com/redrive-go/redrive/brokers/nats"
	_ "github.com/redrive-go/redrive/brokers/rabbitmq"
	_ "github.com/redrive-go/redrive/brokers/sqlqueue"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/natsserver"
	"github.com/redrive-go/redrive/integration/services"
)

// TestMain is also the main function of the NATS server.
func TestMain(m *testing.M) {
	natsserver.Main()
	services.Main(m)
}

var urls = map[string]func(b *testing.B) string{
	"memory":     func(*testing.B) string { return "mem://" },
	"SQLite":     func(b *testing.B) string { b.Helper(); return "sqlite://" + filepath.Join(b.TempDir(), "queue.db") },
	"PostgreSQL": func(b *testing.B) string { b.Helper(); return services.SharedPostgres(b).Database(b) },
	"MariaDB":    func(b *testing.B) string { b.Helper(); return services.SharedMariaDB(b).Database(b) },
	"MySQL":      func(b *testing.B) string { b.Helper(); return services.SharedMySQL(b).Database(b) },
	"RabbitMQ":   func(b *testing.B) string { b.Helper(); return services.SharedRabbitMQ(b).VHost(b) },
	"RabbitMQ4":  func(b *testing.B) string { b.Helper(); return services.SharedRabbitMQ4(b).VHost(b) },
	"NATS":       func(b *testing.B) string { b.Helper(); return natsserver.Start(b).URL() },
	"Kafka":      func(b *testing.B) string { b.Helper(); return services.SharedKafka(b).URL() + "?partitions=1" },
}

// BenchmarkSubscriptions measures 1 to 1,000 idle subscriptions of one process, each to a separate topic that is new to
// the broker: the time until they have started, and the memory, goroutines and processor time of this process for each.
// For SQLite this includes the whole database; for the others it does not include the server.
func BenchmarkSubscriptions(b *testing.B) {
	for name, url := range urls {
		for _, n := range []int{1, 10, 100, 1000} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				broker, err := brokers.OpenConfig(b.Context(), brokers.Config{URL: url(b), Group: "idle"})
				require.NoError(b, err)
				subscriber := broker.Subscriber()
				for b.Loop() {
					memory, goroutines, began := inUse(), runtime.NumGoroutine(), time.Now()
					for i := range n {
						_, err := subscriber.Subscribe(b.Context(), fmt.Sprintf("idle-%d-of-%d", i, n))
						require.NoError(b, err)
					}
					b.ReportMetric(float64(time.Since(began).Microseconds())/1000/float64(n), "start-ms/sub")
					idle(b) // until the pauses between polls have grown
					b.ReportMetric(float64(inUse()-memory)/1024/float64(n), "KiB/sub")
					b.ReportMetric(float64(runtime.NumGoroutine()-goroutines)/float64(n), "goroutines/sub")
					b.ReportMetric(idle(b), "%core")
					b.ReportMetric(0, "ns/op")
				}
				require.NoError(b, broker.Close())
			})
		}
	}
}

// idleWindow is the measured time; reading the clock 50 times a second has no measurable cost.
const idleWindow = 3 * time.Second

// idle returns the processor time of this process over some seconds, in percent of one processor.
func idle(b *testing.B) float64 {
	b.Helper()
	spent, began := processorTime(b), time.Now()
	await.True(b, func() bool { return time.Since(began) >= idleWindow })
	return 100 * float64(processorTime(b)-spent) / float64(time.Since(began))
}

func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// inUse returns the bytes of heap and stacks.
func inUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}
