// Package sqlstore_test tests dlq/sqlstore on real servers: PostgreSQL, MariaDB and MySQL.
package sqlstore_test

import (
	"database/sql"
	"flag"
	"strings"
	"testing"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq/dlqtest"
	"github.com/redrive-go/redrive/dlq/sqlstore"
	"github.com/redrive-go/redrive/integration/services"
)

func TestMain(m *testing.M) {
	// These tests mostly wait: for the disk, for locks, and for timeouts. By default Go runs one at a time per core.
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	services.Main(m)
}

// servers are the databases on which every test of the store runs. Each call creates an empty one and returns its URL.
var servers = map[string]func(t testing.TB) (url string){
	"PostgreSQL": func(t testing.TB) string { t.Helper(); return services.SharedPostgres(t).Database(t) },
	"MariaDB":    func(t testing.TB) string { t.Helper(); return services.SharedMariaDB(t).Database(t) },
	"MySQL":      func(t testing.TB) string { t.Helper(); return services.SharedMySQL(t).Database(t) },
}

// onEach runs test on every server, on a separate database.
func onEach(t *testing.T, test func(t *testing.T, url string)) {
	t.Helper()
	for name, database := range servers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, database(t))
		})
	}
}

// onEachStore is onEach with a store.
func onEachStore(t *testing.T, test func(t *testing.T, s *sqlstore.Store)) {
	t.Helper()
	onEach(t, func(t *testing.T, url string) {
		t.Helper()
		s := openStore(t, url)
		defer s.Close()
		test(t, s)
	})
}

// with adds parameters to a URL.
func with(url, params string) string {
	if strings.Contains(url, "?") {
		return url + "&" + params
	}
	return url + "?" + params
}

// openStore opens a store that is closed at the end of the test.
func openStore(t testing.TB, url string) *sqlstore.Store {
	t.Helper()
	s, err := sqlstore.Open(t.Context(), url)
	require.NoError(t, err)
	return s
}

// openDB opens the database of a URL from servers, as an application would.
func openDB(t testing.TB, url string) *sql.DB {
	t.Helper()
	driver, dsn := "pgx", url
	if strings.HasPrefix(url, "mysql:") {
		var err error
		driver = "mysql"
		dsn, err = services.MySQLDSN(url)
		require.NoError(t, err)
	}
	db, err := sql.Open(driver, dsn)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

// Every store behaves the same. MySQL is in TestMySQL_AccountOfAnApplication.
func TestConformance(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"PostgreSQL", "MariaDB"} {
		t.Run(name, func(t *testing.T) { t.Parallel(); conform(t, servers[name]) })
	}
}

func conform(t *testing.T, database func(t testing.TB) (url string)) {
	t.Helper()
	fresh := func(t *testing.T) dlqtest.Database {
		t.Helper()
		url := with(database(t), "readers=2&writers=2")
		return func(t *testing.T) dlqtest.Store {
			t.Helper()
			return openStore(t, url)
		}
	}
	dlqtest.Run(t, fresh)
	t.Run("clocks", func(t *testing.T) { t.Parallel(); dlqtest.RunClocks(t, fresh) })
}
