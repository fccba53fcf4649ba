package services_test

import (
	"database/sql"
	"strings"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/integration/services"
)

func openMySQL(t *testing.T, u string) *sql.DB {
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

// products are the servers that Go's MySQL driver supports.
var products = map[string]struct {
	shared func(t testing.TB) *services.MySQLServer
	start  func(t testing.TB, cfg services.MySQLConfig) *services.MySQLServer
}{
	"MariaDB": {services.SharedMariaDB, services.MariaDB},
	"MySQL":   {services.SharedMySQL, services.MySQL},
}

func TestSharedMySQL_IsTheExpectedProduct(t *testing.T) {
	for name, product := range products {
		t.Run(name, func(t *testing.T) {
			m := product.shared(t)
			var version string
			require.NoError(t, openMySQL(t, m.URL).QueryRowContext(t.Context(), "SELECT VERSION()").Scan(&version))
			require.Equal(t, name == "MariaDB", strings.Contains(version, "MariaDB"), version)
		})
	}
}

func TestSharedMySQL_Database(t *testing.T) {
	for name, product := range products {
		t.Run(name, func(t *testing.T) {
			m := product.shared(t)
			first, second := openMySQL(t, m.Database(t)), openMySQL(t, m.Database(t))
			for _, db := range []*sql.DB{first, second} {
				_, err := db.ExecContext(t.Context(), "CREATE TABLE orders (at datetime(6))")
				require.NoError(t, err, "databases do not share tables")
			}
			_, err := first.ExecContext(t.Context(), "INSERT INTO orders VALUES ('2026-01-02 03:04:05.678901')")
			require.NoError(t, err)
			var at time.Time
			require.NoError(t, first.QueryRowContext(t.Context(), "SELECT at FROM orders").Scan(&at))
			require.Equal(t, "2026-01-02T03:04:05.678901Z", at.Format(time.RFC3339Nano))
		})
	}
}

func TestMySQL_KilledKeepsCommittedRows(t *testing.T) {
	for name, product := range products {
		t.Run(name, func(t *testing.T) {
			m := product.start(t, services.MySQLConfig{Durable: true})
			u := m.Database(t)
			db := openMySQL(t, u)
			var flush, doublewrite, binlog, temporary string
			require.NoError(t, db.QueryRowContext(t.Context(),
				"SELECT @@innodb_flush_log_at_trx_commit, @@innodb_doublewrite, @@log_bin, @@tmpdir").
				Scan(&flush, &doublewrite, &binlog, &temporary))
			require.Contains(t, temporary, "/redrive-"+strings.ToLower(name)+"-",
				"other servers remove files from a shared directory")
			require.Equal(t, "1", flush)
			require.Contains(t, []string{"1", "ON"}, doublewrite)
			require.Equal(t, name == "MySQL", binlog == "1", "the binary log has the product's default setting")
			_, err := db.ExecContext(t.Context(), "CREATE TABLE kept AS SELECT 42 AS n")
			require.NoError(t, err)

			require.NoError(t, m.Kill())
			require.Error(t, db.PingContext(t.Context()))
			require.NoError(t, m.Start(t.Context()))

			var n int
			require.NoError(t, openMySQL(t, u).QueryRowContext(t.Context(), "SELECT n FROM kept").Scan(&n))
			require.Equal(t, 42, n)
		})
	}
}
