package sqlstore_test

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/sqlstore"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
	"github.com/redrive-go/redrive/internal/sqldb"
)

// A process that hangs in a transaction, with rows locked, blocks others for half a minute, and not for as long as its
// connection is open.
func TestChange_FrozenInATransaction(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"PostgreSQL", "MariaDB", "MySQL"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := servers[name](t)
			proxy := services.NewProxy(t, address)
			frozen, other, db := openStore(t, proxy.URL(t, address)), openStore(t, address), openDB(t, address)
			receipts, err := other.Put(t.Context(), letter(1, time.Now()), letter(2, time.Now()))
			require.NoError(t, err)
			resolve := func(ctx context.Context, s *sqlstore.Store, actor string, ids ...int64) ([]driver.Result, error) {
				return s.Change(ctx, driver.Change{Action: driver.ActionResolve, IDs: ids, Actor: actor, At: time.Now()})
			}
			first, second := receipts[0].ID, receipts[1].ID
			lock := "SELECT id FROM dlq_entries WHERE id = %d FOR UPDATE"

			// The transaction has the first row and waits for the second when the process freezes.
			tx, err := db.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			_, err = tx.ExecContext(t.Context(), fmt.Sprintf(lock, second))
			require.NoError(t, err)
			ctx, stop := context.WithCancel(t.Context())
			hung := make(chan error, 1)
			go func() { _, err := resolve(ctx, frozen, "frozen", first, second); hung <- err }()
			await.True(t, func() bool {
				_, err := db.ExecContext(t.Context(), fmt.Sprintf(lock+" NOWAIT", first))
				return err != nil
			}, "the first row is locked")
			require.NoError(t, proxy.Freeze())
			require.NoError(t, tx.Rollback())

			patient, cancel := context.WithTimeout(t.Context(), await.Patience)
			defer cancel()
			began := time.Now()
			results, err := resolve(patient, other, "other", first)
			require.NoError(t, err)
			require.NoError(t, results[0].Err)
			require.Equal(t, "other", results[0].Entry.ResolvedBy)
			t.Logf("the other process waited %s", time.Since(began).Round(time.Millisecond))
			stop()
			require.Error(t, <-hung)
			require.NoError(t, proxy.Cut())
			_ = frozen.Close() // its connections are broken
			require.NoError(t, other.Close())
		})
	}
}

// The timeout is set only where necessary, and not in sessions that a pooler gives to other clients.
func TestPool_IdleTx(t *testing.T) {
	t.Parallel()
	server := services.SharedPostgres(t)
	postgres, maria := server.Database(t), services.SharedMariaDB(t).Database(t)
	mysql := services.SharedMySQL(t).Database(t)
	const name = "idle_in_transaction_session_timeout"
	strict := services.Postgres(t, services.PostgresConfig{Settings: map[string]string{name: "3000"}})
	for _, tt := range []struct{ address, query, want string }{
		{postgres, "SHOW " + name, "7s"},
		{postgres, "SHOW tcp_user_timeout", "7000"},
		{strict.Database(t), "SHOW " + name, "3s"}, // a shorter one is kept
		{with(postgres, name+"=300000"), "SHOW " + name, "5min"},
		{with(postgres, name+"=0"), "SHOW " + name, "0"},
		{services.PgBouncer(t, server).Through(postgres), "SHOW " + name, "0"},
		{maria, "SELECT @@idle_transaction_timeout", "7"},
		{with(maria, "idle_transaction_timeout=3"), "SELECT @@idle_transaction_timeout", "3"},
		{mysql, "SELECT @@wait_timeout", "7"},
		{with(mysql, "wait_timeout=5"), "SELECT @@wait_timeout", "5"},
	} {
		u, err := url.Parse(tt.address)
		require.NoError(t, err)
		source, err := sqldb.ReadURL(u, u.Query())
		require.NoError(t, err)
		db, err := source.Connect(t.Context(), sqldb.Pool{Max: 1, IdleTx: 7 * time.Second})
		require.NoError(t, err)
		var got string
		require.NoError(t, db.QueryRowContext(t.Context(), tt.query).Scan(&got))
		require.Equal(t, tt.want, got, "%s", tt.query)
		require.NoError(t, db.Close())
	}
}

// The connection that holds a lock is idle during a migration, and must not be ended by the timeout for the others.
func TestPool_LockOutlastsIdleTx(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, address string) {
		t.Helper()
		u, err := url.Parse(address)
		require.NoError(t, err)
		source, err := sqldb.ReadURL(u, u.Query())
		require.NoError(t, err)
		db, err := source.Connect(t.Context(), sqldb.Pool{Max: 2, IdleTx: time.Second})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		self, there := "SELECT connection_id()", "SELECT count(*) FROM information_schema.processlist WHERE id = %d"
		if source.Dialect == sqldb.PostgreSQL {
			self, there = "SELECT pg_backend_pid()", "SELECT count(*) FROM pg_stat_activity WHERE pid = %d"
		}
		if source.Dialect == sqldb.MySQL {
			// Its processlist is an error while another test's statement has bytes that are not text.
			there = "SELECT count(*) FROM performance_schema.threads WHERE processlist_id = %d"
		}
		watch := openDB(t, address)
		require.NoError(t, source.Dialect.WithLock(t.Context(), db, "outlasts", func() error {
			// Another connection, idle from now on, has to end first.
			tx, err := db.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			defer func() { _ = tx.Rollback() }()
			var id int64
			require.NoError(t, tx.QueryRowContext(t.Context(), self).Scan(&id))
			await.None(t, func() (left int) {
				require.NoError(t, watch.QueryRowContext(t.Context(), fmt.Sprintf(there, id)).Scan(&left))
				return left
			}, "the server bounds an idle transaction")
			return nil
		}))
	})
}

// Timeouts for statements, of a role, a server or a URL, used to end the wait for the lock, and with it the start of a
// service, while another process migrated for longer.
func TestPool_LockWaitOutlastsStatementTimeouts(t *testing.T) {
	t.Parallel()
	timeouts := map[string]url.Values{
		"PostgreSQL": {"lock_timeout": {"100ms"}, "statement_timeout": {"100ms"}},
		"MariaDB":    {"max_statement_time": {"0.1"}},
		"MySQL":      {"max_execution_time": {"100"}},
	}
	onEach(t, func(t *testing.T, address string) {
		t.Helper()
		_, name, _ := strings.Cut(t.Name(), "/")
		u, err := url.Parse(address)
		require.NoError(t, err)
		query := u.Query()
		maps.Copy(query, timeouts[name])
		source, err := sqldb.ReadURL(u, query)
		require.NoError(t, err)
		db, err := source.Connect(t.Context(), sqldb.Pool{Max: 2})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		waits := map[string]string{
			"PostgreSQL": "pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory' AND " +
				"query_start < clock_timestamp() - interval '300 ms'",
			"MariaDB": "information_schema.processlist WHERE db = database() AND state = 'User lock' AND time >= 2",
			"MySQL": "performance_schema.threads WHERE processlist_db = database() AND processlist_state = 'User lock' AND " +
				"processlist_time >= 2",
		}[name]
		waited := make(chan error, 1)
		require.NoError(t, source.Dialect.WithLock(t.Context(), db, "waits", func() error {
			go func() {
				waited <- source.Dialect.WithLock(t.Context(), db, "waits", func() error { return nil })
			}()
			watch := openDB(t, address)
			await.True(t, func() (found bool) {
				require.NoError(t, watch.QueryRowContext(t.Context(), "SELECT count(*) > 0 FROM "+waits).Scan(&found))
				return found || len(waited) > 0
			}, "it waits for longer than its timeouts")
			return nil
		}))
		require.NoError(t, <-waited)
	})
}
