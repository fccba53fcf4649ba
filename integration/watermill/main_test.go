// Package watermill_test tests the brokers on Watermill's own adapters on real servers: Kafka, PostgreSQL, MariaDB,
// MySQL and, by its URL, RabbitMQ.
package watermill_test

import (
	"flag"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	_ "github.com/redrive-go/redrive/brokers/watermill/amqp"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	if err := flag.Set("test.parallel", "8"); err != nil { // tests mostly wait
		panic(err)
	}
	services.Main(m)
}

// newDelays returns a constructor for one memory broker that the brokers of a case share, like processes with one
// database.
func newDelays(t *testing.T) func() brokers.Broker {
	t.Helper()
	return sync.OnceValue(func() brokers.Broker {
		b, err := memory.New(brokers.Config{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, b.Close()) })
		return b
	})
}

// databases are functions that each create an empty database.
var databases = map[string]func(t testing.TB) (url string){
	"PostgreSQL": func(t testing.TB) string { t.Helper(); return services.SharedPostgres(t).Database(t) },
	"MariaDB":    func(t testing.TB) string { t.Helper(); return services.SharedMariaDB(t).Database(t) },
	"MySQL":      func(t testing.TB) string { t.Helper(); return services.SharedMySQL(t).Database(t) },
}

// with adds parameters to a URL.
func with(url, params string) string {
	if strings.Contains(url, "?") {
		return url + "&" + params
	}
	return url + "?" + params
}

func receive(t testing.TB, messages <-chan *message.Message) *message.Message {
	t.Helper()
	select {
	case m, ok := <-messages:
		require.True(t, ok, "the subscription ended")
		return m
	case <-time.After(await.Patience):
		require.FailNow(t, "no message")
		return nil
	}
}

// patient lets a publication wait for a server that is slow because the machine is busy.
func patient(c *brokers.Config) { c.PublishTimeout = await.Patience }

// open opens a broker by its URL, and closes it at the end of the test.
func open(t testing.TB, url string) brokers.Broker {
	t.Helper()
	b, err := brokers.Open(t.Context(), url, patient)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

func subscribe(t testing.TB, s message.Subscriber, topic string) <-chan *message.Message {
	t.Helper()
	messages, err := s.Subscribe(t.Context(), topic)
	require.NoError(t, err)
	return messages
}

// setenv sets a variable that only one of several parallel tests uses.
func setenv(t *testing.T, name, value string) {
	t.Helper()
	require.NoError(t, os.Setenv(name, value)) //nolint:usetesting // t.Setenv forbids parallel tests
	t.Cleanup(func() { require.NoError(t, os.Unsetenv(name)) })
}
