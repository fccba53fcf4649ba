package sqlqueue_test

import (
	"database/sql"
	"errors"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/integration/services"
)

// elsewhere is a database other than PostgreSQL, with the statements of a hand-written queue.
type elsewhere struct {
	table, lock string
	open        func(b *testing.B) (url string, db *sql.DB)
}

var elsewheres = map[string]elsewhere{
	"MariaDB": mysqlElsewhere(services.MariaDB),
	"MySQL":   mysqlElsewhere(services.MySQL),
	"SQLite": {
		table: `CREATE TABLE hand_queue (id INTEGER PRIMARY KEY AUTOINCREMENT, due_at INTEGER NOT NULL DEFAULT 0,
			uuid TEXT NOT NULL, headers TEXT NOT NULL, payload BLOB NOT NULL); CREATE INDEX hand_queue_due ON hand_queue (due_at, id)`,
		open: func(b *testing.B) (string, *sql.DB) {
			b.Helper()
			path := filepath.Join(b.TempDir(), "queue.db")
			db, err := sql.Open("sqlite", "file:"+path+
				"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(full)&_txlock=immediate")
			require.NoError(b, err)
			b.Cleanup(func() { require.NoError(b, db.Close()) })
			return "sqlite://" + path, db
		},
	},
}

func mysqlElsewhere(start func(testing.TB, services.MySQLConfig) *services.MySQLServer) elsewhere {
	return elsewhere{
		table: `CREATE TABLE hand_queue (id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, due_at BIGINT NOT NULL DEFAULT 0,
			uuid VARCHAR(255) NOT NULL, headers LONGTEXT NOT NULL, payload LONGBLOB NOT NULL, KEY hand_queue_due (due_at, id))`,
		lock: " FOR UPDATE SKIP LOCKED",
		open: func(b *testing.B) (string, *sql.DB) {
			b.Helper()
			url := start(b, services.MySQLConfig{Durable: true}).Database(b)
			return url, openDB(b, url)
		},
	}
}

// BenchmarkElsewhere publishes 10,000 messages in batches of 100 and consumes them through a router, on MariaDB, MySQL
// and SQLite with their durable settings, compared with a hand-written loop.
func BenchmarkElsewhere(b *testing.B) {
	for name, where := range elsewheres {
		b.Run(name, func(b *testing.B) {
			const n = 10_000
			url, db := where.open(b)
			_, err := db.ExecContext(b.Context(), where.table)
			require.NoError(b, err)
			queue := openQueue(b, url)
			require.NoError(b, queue.Subscriber().(message.SubscribeInitializer).SubscribeInitialize("bench"))
			r := rounds{}
			publish := func(who string, one func(list []*message.Message)) {
				began := time.Now()
				for range n / 100 {
					one(batch(100))
				}
				r.add("publish "+who, rate(n, time.Since(began)))
			}
			for b.Loop() {
				publish("hand", func(list []*message.Message) { where.publish(b, db, list) })
				r.add("consume hand", rate(n, where.consume(b, db, n)))
				publish("ours", func(list []*message.Message) { require.NoError(b, queue.Publisher().Publish("bench", list...)) })
				r.add("consume ours", rate(n, route(b, "bench", n, queue.Subscriber(concurrently(64)))))
			}
			for _, what := range []string{"publish", "consume"} {
				b.ReportMetric(median(r[what+" ours"]), what+"/s")
				b.ReportMetric(r.ratio(what+" ours", what+" hand"), what+"/hand")
			}
		})
	}
}

func (elsewhere) publish(b *testing.B, db *sql.DB, list []*message.Message) {
	b.Helper()
	args := make([]any, 0, 3*len(list))
	for _, m := range list {
		args = append(args, m.UUID, "{}", []byte(m.Payload))
	}
	_, err := db.ExecContext(b.Context(), "INSERT INTO hand_queue (uuid, headers, payload) VALUES "+
		strings.TrimSuffix(strings.Repeat("(?,?,?),", len(list)), ","), args...)
	require.NoError(b, err)
}

// consume reads and deletes 500 at a time in a transaction, without handling them.
func (e elsewhere) consume(b *testing.B, db *sql.DB, n int) time.Duration {
	b.Helper()
	began := time.Now()
	for done := 0; done < n; {
		tx, err := db.BeginTx(b.Context(), nil)
		require.NoError(b, err)
		rows, err := tx.QueryContext(b.Context(),
			"SELECT id, uuid, headers, payload FROM hand_queue WHERE due_at <= 1 ORDER BY due_at, id LIMIT 500"+e.lock)
		require.NoError(b, err)
		var ids []string
		for rows.Next() {
			var (
				id            int64
				uuid, headers string
				payload       []byte
			)
			require.NoError(b, rows.Scan(&id, &uuid, &headers, &payload))
			ids = append(ids, strconv.FormatInt(id, 10))
		}
		require.NoError(b, errors.Join(rows.Err(), rows.Close())) //nolint:sqlclosecheck // the connection is needed again
		_, err = tx.ExecContext(b.Context(), "DELETE FROM hand_queue WHERE id IN ("+strings.Join(ids, ",")+")")
		require.NoError(b, err)
		require.NoError(b, tx.Commit())
		done += len(ids)
	}
	return time.Since(began)
}
