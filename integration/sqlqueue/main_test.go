// Package sqlqueue_test tests brokers/sqlqueue on real servers, PostgreSQL, MariaDB and MySQL, and with several
// processes on SQLite.
package sqlqueue_test

import (
	"database/sql"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/sqlqueue"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
)

// TestMain is also the main function of the worker processes that tests start and kill.
func TestMain(m *testing.M) {
	if url := os.Getenv(workerURL); url != "" {
		os.Exit(worker(url))
	}
	if url := os.Getenv(victimURL); url != "" {
		os.Exit(victim(url))
	}
	if url := os.Getenv(clerkURL); url != "" {
		os.Exit(clerk(url))
	}
	// Tests mostly wait for due times, leases and disks. Each may use a dozen of a server's 100 connections.
	if err := flag.Set("test.parallel", "5"); err != nil {
		panic(err)
	}
	services.Main(m)
}

// servers are the databases on which every test of the queue runs. Each call of database creates an empty one.
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

// sqliteFile is the URL of a database that does not exist yet.
func sqliteFile(t testing.TB) string {
	t.Helper()
	return "sqlite://" + filepath.Join(t.TempDir(), "app.db")
}

// onEachDatabase is onEach with SQLite in addition.
func onEachDatabase(t *testing.T, test func(t *testing.T, url string)) {
	t.Helper()
	onEach(t, test)
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		test(t, sqliteFile(t))
	})
}

// A lease is renewed each time a quarter of it is over. This one is not lost on a machine so busy with other tests that
// a renewal takes seconds.
const (
	longLease     = "x-lease=12s"
	twoLongLeases = 26 * time.Second // and a little more: a lease that is renewed only once is lost by then
)

// with adds parameters to a URL.
func with(url, params string) string {
	if strings.Contains(url, "?") {
		return url + "&" + params
	}
	return url + "?" + params
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
	if path, ok := strings.CutPrefix(url, "sqlite://"); ok {
		driver, dsn = "sqlite", "file:"+path+"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_txlock=immediate"
	}
	db, err := sql.Open(driver, dsn)
	require.NoError(t, err)
	db.SetMaxIdleConns(16)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

// count runs a query that returns one number.
func count(t testing.TB, db *sql.DB, query string) (n int) {
	t.Helper()
	require.NoError(t, db.QueryRowContext(t.Context(), query).Scan(&n))
	return n
}

// openQueue opens a broker that is closed at the end of the test. Unless the test sets a publish timeout, there is
// none.
func openQueue(t testing.TB, url string) *sqlqueue.Broker {
	t.Helper()
	if !strings.Contains(url, "x-publish-timeout=") {
		url = with(url, "x-publish-timeout="+await.Patience.String())
	}
	b, err := brokers.Open(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	queue, ok := b.(*sqlqueue.Broker)
	require.True(t, ok)
	return queue
}

func inGroup(name string) brokers.SubscriberOption { return brokers.WithGroup(name) }
func concurrently(n int) brokers.SubscriberOption  { return brokers.WithConcurrency(n) }
