package services_test

import (
	"database/sql"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/integration/services"
)

func openMariaDB(t *testing.T, u string) *sql.DB {
	t.Helper()
	dsn, err := services.MySQLDSN(u)
	require.NoError(t, err)
	db, err := sql.Open("mysql", dsn)
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func TestMySQLDSN(t *testing.T) {
	dsn, err := services.MySQLDSN("mysql://me:p%40ss@127.0.0.1:3306/orders?loc=UTC")
	require.NoError(t, err)
	require.Equal(t, "me:p@ss@tcp(127.0.0.1:3306)/orders?loc=UTC&parseTime=true", dsn)

	_, err = services.MySQLDSN("me:secret@tcp(127.0.0.1:3306)/orders")
	require.Error(t, err)
	require.NotContains(t, err.Error(), "secret")
}

func TestSharedMariaDB_Database(t *testing.T) {
	m := services.SharedMariaDB(t)
	first, second := openMariaDB(t, m.Database(t)), openMariaDB(t, m.Database(t))
	for _, db := range []*sql.DB{first, second} {
		_, err := db.ExecContext(t.Context(), "CREATE TABLE orders (at datetime(6))")
		require.NoError(t, err, "databases share no table")
	}
	_, err := first.ExecContext(t.Context(), "INSERT INTO orders VALUES ('2026-01-02 03:04:05.678901')")
	require.NoError(t, err)
	var at time.Time
	require.NoError(t, first.QueryRowContext(t.Context(), "SELECT at FROM orders").Scan(&at))
	require.Equal(t, "2026-01-02T03:04:05.678901Z", at.Format(time.RFC3339Nano))
}

func TestMariaDB_KilledKeepsCommittedRows(t *testing.T) {
	m := services.MariaDB(t, services.MariaDBConfig{Durable: true})
	u := m.Database(t)
	db := openMariaDB(t, u)
	var flush, doublewrite string
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT @@innodb_flush_log_at_trx_commit, @@innodb_doublewrite").Scan(&flush, &doublewrite))
	require.Equal(t, []string{"1", "1"}, []string{flush, doublewrite})
	_, err := db.ExecContext(t.Context(), "CREATE TABLE kept AS SELECT 42 AS n")
	require.NoError(t, err)

	require.NoError(t, m.Kill())
	require.Error(t, db.PingContext(t.Context()))
	require.NoError(t, m.Start(t.Context()))

	var n int
	require.NoError(t, openMariaDB(t, u).QueryRowContext(t.Context(), "SELECT n FROM kept").Scan(&n))
	require.Equal(t, 42, n)
}
