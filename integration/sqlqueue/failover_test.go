package sqlqueue_test

import (
	"context"
	"database/sql"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/sqlqueue"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
)

// While the server is read-only, messages can be neither published nor claimed, acked, retried or dead-lettered.
// Afterwards every confirmed message is handled, or dead if its error is permanent, with our pool and an application's.
func TestFailover_LosesNothing(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) (url, writes string, failOver func() (restore func())){
		"PostgreSQL": func(t *testing.T) (string, string, func() func()) {
			t.Helper()
			server := services.SharedPostgres(t)
			url := server.Database(t)
			return url, "target_session_attrs=read-write", func() func() { t.Helper(); return server.FailOver(t, url) }
		},
		"MariaDB": func(t *testing.T) (string, string, func() func()) {
			t.Helper()
			url, failOver := readOnlyMySQL(t, services.MariaDB(t, services.MySQLConfig{}), "SUPER, READ_ONLY ADMIN")
			return url, "rejectReadOnly=true", failOver
		},
		"MySQL": func(t *testing.T) (string, string, func() func()) {
			t.Helper()
			url, failOver := readOnlyMySQL(t, services.MySQL(t, services.MySQLConfig{}), "SUPER, CONNECTION_ADMIN")
			return url, "rejectReadOnly=true", failOver
		},
	} {
		for pool, foreign := range map[string]bool{"our pool": false, "an application's pool": true} {
			t.Run(name+", "+pool, func(t *testing.T) {
				t.Parallel()
				url, writes, failOver := start(t)
				const params = "x-nack-pause=10ms&x-poll=10ms&x-publish-timeout=2s"
				queue := openQueue(t, with(url, params))
				if foreign {
					queue = newQueue(t, with(url, writes), params)
				}
				db := sync.OnceValue(func() *sql.DB { return openDB(t, url) }) // after the failovers
				failoverLosesNothing(t, queue, failOver, func() int {
					return count(t, db(), "SELECT count(*) FROM redrive_queue_messages") // also those whose lease has to end first
				})
			})
		}
	}
}

// newQueue opens a queue on a pool of the application.
func newQueue(t *testing.T, url, params string) *sqlqueue.Broker {
	t.Helper()
	kind := sqlqueue.PostgreSQL
	if strings.HasPrefix(url, "mysql:") {
		kind = sqlqueue.MySQL
	}
	queue, err := sqlqueue.New(t.Context(), openDB(t, url), kind,
		brokers.WithConfig(func(c *brokers.Config) { c.URL = string(kind) + "://db/db?" + params }))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, queue.Close()) })
	return queue
}

func failoverLosesNothing(t *testing.T, queue *sqlqueue.Broker, failOver func() (restore func()), rows func() int) {
	t.Helper()
	w := newWork(t, queue)
	w.consume(queue, "billing")
	w.start(t)
	n, confirmed := 0, map[string]bool{}
	publish := func() error {
		n++
		id := watermill.NewUUID() + string(rune('0'+n%5))
		err := queue.Publisher().Publish("jobs", message.NewMessage(id, payload))
		if err == nil {
			confirmed["billing/"+id] = true
		}
		return err
	}
	for range 2 {
		before := w.ended()
		await.Count(t, before+50, func() int { _ = publish(); return w.ended() })
		restore := failOver()
		refused := 0
		await.Count(t, 100, func() int {
			if publish() != nil {
				refused++
			}
			return refused
		})
		restore()
		await.True(t, func() bool { return publish() == nil })
	}
	await.None(t, func() (left int) {
		for key := range confirmed {
			if !w.has(key) {
				left++
			}
		}
		return left
	})
	await.None(t, rows)
	w.stop(t)
	for key := range w.dead {
		require.True(t, strings.HasSuffix(key, poison), "%s is healthy", key)
	}
}

// readOnlyMySQL returns a database for a user without the right to write to a read-only server.
func readOnlyMySQL(t *testing.T, server *services.MySQLServer, exempt string) (database string,
	failOver func() (restore func()),
) {
	t.Helper()
	root := server.Database(t)
	db := openDB(t, root)
	exec := func(statement string) {
		t.Helper()
		_, err := db.ExecContext(context.WithoutCancel(t.Context()), statement)
		require.NoError(t, err)
	}
	exec("CREATE USER app@'127.0.0.1'")
	exec("GRANT ALL ON *.* TO app@'127.0.0.1'")
	exec("REVOKE " + exempt + " ON *.* FROM app@'127.0.0.1'")
	u, err := url.Parse(root)
	require.NoError(t, err)
	u.User = url.User("app")
	return u.String(), func() func() {
		exec("SET GLOBAL read_only = 1")
		return func() { exec("SET GLOBAL read_only = 0") }
	}
}
