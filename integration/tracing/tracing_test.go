// Package tracing_test tests that a trace is continued on every real broker.
package tracing_test

import (
	"log/slog"
	"path/filepath"
	"testing"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // postgres
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/redrive-go/redrive/brokers"
	_ "github.com/redrive-go/redrive/brokers/all"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
	"github.com/redrive-go/redrive/middleware/tracing/tracingtest"
)

func TestMain(m *testing.M) { services.Main(m) }

func TestTracing(t *testing.T) {
	for name, broker := range map[string]struct {
		system string
		url    func(testing.TB) string
	}{
		"rabbitmq": {"rabbitmq", func(t testing.TB) string { t.Helper(); return services.SharedRabbitMQ(t).VHost(t) }},
		"kafka":    {"kafka", func(t testing.TB) string { t.Helper(); return services.SharedKafka(t).URL() }},
		"postgres": {"postgres", func(t testing.TB) string { t.Helper(); return services.SharedPostgres(t).Database(t) }},
		"mariadb":  {"mysql", func(t testing.TB) string { t.Helper(); return services.SharedMariaDB(t).Database(t) }},
		"mysql":    {"mysql", func(t testing.TB) string { t.Helper(); return services.SharedMySQL(t).Database(t) }},
		"sqlite": {"sqlite", func(t testing.TB) string {
			t.Helper()
			return "sqlite:" + filepath.Join(t.TempDir(), "queue.db")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := brokers.OpenConfig(t.Context(), brokers.Config{
				URL: broker.url(t), Group: "billing", PublishTimeout: await.Patience, Logger: slog.New(slog.DiscardHandler),
			})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, b.Close()) })
			results, err := b.Subscriber(brokers.WithGroup("results")).Subscribe(t.Context(), tracingtest.Results)
			require.NoError(t, err)
			go func() {
				for m := range results {
					m.Ack()
				}
			}()
			tracingtest.Run(t, tracingtest.Broker{
				Scheme: b.Capabilities().Scheme, System: broker.system,
				Publisher: b.Publisher(), Subscriber: b.Subscriber(), Rescheduler: b, DeadLetters: b,
			})
		})
	}
}
