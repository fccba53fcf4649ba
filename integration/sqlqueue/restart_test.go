package sqlqueue_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	_ "github.com/redrive-go/redrive/brokers/watermill/sql" // watermill+postgres:// and watermill+mysql://
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
	"github.com/redrive-go/redrive/internal/logbuffer"
)

// A service that subscribes while its database restarts used to end.
func TestSubscribe_WhileTheDatabaseRestarts(t *testing.T) {
	t.Parallel()
	type server interface {
		Database(t testing.TB) string
		Stop() error
		Start(ctx context.Context) error
	}
	postgres := func(t *testing.T) server { t.Helper(); return services.Postgres(t, services.PostgresConfig{}) }
	mariadb := func(t *testing.T) server { t.Helper(); return services.MariaDB(t, services.MySQLConfig{}) }
	for name, tt := range map[string]struct {
		start  func(t *testing.T) server
		prefix string // of the URL
	}{
		"PostgreSQL": {postgres, ""}, "MariaDB": {mariadb, ""},
		"watermill-sql on PostgreSQL": {postgres, "watermill+"}, "watermill-sql on MariaDB": {mariadb, "watermill+"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, log := tt.start(t), &logbuffer.Buffer{}
			queue, err := brokers.OpenConfig(t.Context(), brokers.Config{
				URL: tt.prefix + s.Database(t), Logger: slog.New(slog.NewTextHandler(log, nil)),
			})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, queue.Close()) })
			require.NoError(t, s.Stop())
			subscribed := make(chan error, 1)
			var messages <-chan *message.Message
			go func() {
				var err error
				messages, err = queue.Subscriber().Subscribe(t.Context(), "jobs")
				subscribed <- err
			}()
			await.True(t, func() bool { return len(subscribed) > 0 || strings.Contains(log.String(), "cannot consume yet") })
			require.NoError(t, s.Start(t.Context()))
			require.NoError(t, <-subscribed)
			require.NoError(t, queue.Publisher().Publish("jobs", message.NewMessage("1", payload)))
			receive(t, messages).Ack()
		})
	}
}

// While a failover is in progress the address leads to a server that is read-only. The pool used to keep connections
// that it made then for half an hour, and nothing was published or claimed on them.
func TestFailover_ToAReadOnlyServer(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"", "watermill+"} {
		t.Run(prefix+"postgres", func(t *testing.T) {
			t.Parallel()
			// It is not shared: watermill-sql delivers nothing while another test has an open transaction.
			server, log := services.Postgres(t, services.PostgresConfig{}), &logbuffer.Buffer{}
			url := server.Database(t)
			queue, err := brokers.OpenConfig(t.Context(), brokers.Config{
				URL: prefix + url, Logger: slog.New(slog.NewTextHandler(log, nil)),
			})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, queue.Close()) })
			messages, err := queue.Subscriber().Subscribe(t.Context(), "jobs")
			require.NoError(t, err)
			// Each message has another id: the first ack may be lost with its connection, and what has the same id and
			// content would then be recognized as that message.
			publish := func() error {
				return queue.Publisher().Publish("jobs", message.NewMessage(watermill.NewUUID(), payload))
			}
			require.NoError(t, publish())
			receive(t, messages).Ack()

			restore := server.FailOver(t, url)
			await.True(t, func() bool {
				err := publish()
				return err != nil && strings.Contains(strings.ReplaceAll(err.Error(), "-", " "), "read only")
			})
			restore()
			await.True(t, func() bool { return publish() == nil })
			receive(t, messages).Ack()
		})
	}
}
