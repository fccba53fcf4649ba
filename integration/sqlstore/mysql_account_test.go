package sqlstore_test

import (
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	_ "github.com/redrive-go/redrive/brokers/sqlqueue"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
	idempotency "github.com/redrive-go/redrive/middleware/idempotency/sqlstore"
)

// MySQL is configured as in companies: an application's account has a password and rights only in its own database,
// tables must have primary keys (group replication requires them), the binary log is enabled, and the server's time
// zone is not UTC.
func TestMySQL_AccountOfAnApplication(t *testing.T) {
	t.Parallel()
	server := services.MySQL(t, services.MySQLConfig{Args: []string{
		"--log-bin", "--sync-binlog=0", "--sql-require-primary-key=ON", "--default-time-zone=-03:00",
		"--sql-mode=ANSI,TRADITIONAL", "--innodb-autoinc-lock-mode=2",
	}})
	account := func(t testing.TB) string {
		t.Helper()
		u, err := url.Parse(server.Database(t))
		require.NoError(t, err)
		admin, name := openDB(t, u.String()), u.Path[1:]
		for _, statement := range []string{
			"CREATE USER IF NOT EXISTS app@'127.0.0.1' IDENTIFIED BY 'p@ss:w/rd'",
			"GRANT ALL ON " + name + ".* TO app@'127.0.0.1'",
		} {
			_, err := admin.ExecContext(t.Context(), statement)
			require.NoError(t, err)
		}
		u.User = url.UserPassword("app", "p@ss:w/rd")
		return u.String()
	}
	t.Run("store", func(t *testing.T) { t.Parallel(); conform(t, account) })
	t.Run("audit", func(t *testing.T) {
		t.Parallel()
		url := account(t)
		admin := openDB(t, server.URL)
		triggers := func(want int) {
			s := openStore(t, url)
			defer s.Close()
			receipts, err := s.Put(t.Context(), letter(want, time.Now()))
			require.NoError(t, err)
			_, err = s.Change(t.Context(), driver.Change{
				Action: driver.ActionDiscard, IDs: []int64{receipts[0].ID},
				Actor: "ana", At: time.Now(),
			})
			require.NoError(t, err)
			db := openDB(t, url)
			require.Equal(t, [][]any{{int64(want)}},
				rowsOf(t, db, "SELECT count(*) FROM information_schema.triggers WHERE trigger_schema = DATABASE()"))
			_, err = db.ExecContext(t.Context(), "UPDATE dlq_audit SET actor = 'bob'")
			require.Equal(t, want > 0, err != nil, "%v", err)
		}
		triggers(0) // the store works without it
		_, err := admin.ExecContext(t.Context(), "SET GLOBAL log_bin_trust_function_creators = ON")
		require.NoError(t, err)
		triggers(2)
	})
	t.Run("queue", func(t *testing.T) {
		t.Parallel()
		broker, err := brokers.OpenConfig(t.Context(), brokers.Config{URL: account(t), PublishTimeout: await.Patience})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, broker.Close()) })
		messages, err := broker.Subscriber().Subscribe(t.Context(), "orders")
		require.NoError(t, err)
		require.NoError(t, broker.Publisher().Publish("orders", death(0).Message))
		select {
		case m := <-messages:
			m.Ack()
		case <-time.After(await.Patience):
			require.FailNow(t, "no message was delivered")
		}
	})
	t.Run("idempotency", func(t *testing.T) {
		t.Parallel()
		_, err := idempotency.New(t.Context(), openDB(t, account(t)), idempotency.MySQL)
		require.NoError(t, err)
	})
}
