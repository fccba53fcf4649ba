// Package sqlqueue_test proves brokers/sqlqueue on real servers: PostgreSQL and MariaDB.
package sqlqueue_test

import (
	"strings"
	"testing"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/sqlqueue"
	"github.com/redrive-go/redrive/integration/services"
)

func TestMain(m *testing.M) { services.Main(m) }

// servers are the databases that every test of the queue runs on. Each call of database makes an empty one.
var servers = map[string]func(t testing.TB) (url string){
	"PostgreSQL": func(t testing.TB) string { t.Helper(); return services.SharedPostgres(t).Database(t) },
	"MariaDB":    func(t testing.TB) string { t.Helper(); return services.SharedMariaDB(t).Database(t) },
}

// onEach runs test on every server, on a database of its own.
func onEach(t *testing.T, test func(t *testing.T, url string)) {
	t.Helper()
	for name, database := range servers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, database(t))
		})
	}
}

// with adds parameters to a URL.
func with(url, params string) string {
	if strings.Contains(url, "?") {
		return url + "&" + params
	}
	return url + "?" + params
}

// openQueue opens a broker that the test closes.
func openQueue(t testing.TB, url string) *sqlqueue.Broker {
	t.Helper()
	b, err := brokers.Open(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	queue, ok := b.(*sqlqueue.Broker)
	require.True(t, ok)
	return queue
}
