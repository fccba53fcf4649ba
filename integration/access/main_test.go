// Package access_test tries to break the HTTP server from outside: on every database, with a fuzzer that reads its
// OpenAPI document, over raw connections, and with logins at a real OpenID provider.
package access_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp"
	"github.com/redrive-go/redrive/dlq/redrive"
	_ "github.com/redrive-go/redrive/dlq/sqlstore"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/services"
)

func TestMain(m *testing.M) { services.Main(m) }

// databases are those on which the server is tested. Each call creates an empty one and returns its URL.
var databases = map[string]func(t testing.TB) (url string){
	"PostgreSQL": func(t testing.TB) string { t.Helper(); return services.SharedPostgres(t).Database(t) },
	"MariaDB":    func(t testing.TB) string { t.Helper(); return services.SharedMariaDB(t).Database(t) },
	"MySQL":      func(t testing.TB) string { t.Helper(); return services.SharedMySQL(t).Database(t) },
}

// handlerOf returns a handler for a store with some dead letters; redriven messages are discarded.
func handlerOf(t *testing.T, url string, change ...func(*dlqhttp.Config)) (*dlqhttp.Handler, *dlq.Letters) {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	letters, err := dlq.Open(t.Context(), url, dlq.WithoutSpool(), dlq.WithLogger(quiet))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, letters.Close()) })
	var entries []*dlq.Entry
	for i := range 3 {
		m := message.NewMessage(fmt.Sprint("m-", i), fmt.Appendf(nil, `{"order":%d}`, i))
		entries = append(entries, dlq.NewEntry(&envelope.DeadLetter{
			Message: m, Reason: envelope.ReasonExhausted, Err: envelope.Error{Message: "bank: timeout"}, Handler: "pay",
			Attempts: 4,
			Origin:   envelope.Origin{Broker: "mem", Topic: "orders", Consumer: "billing"}, At: time.Now(),
		}))
	}
	_, err = letters.Store().Put(t.Context(), entries...)
	require.NoError(t, err)
	taker := dlq.RedriverFunc(func(context.Context, envelope.Origin, *message.Message, time.Duration) error { return nil })
	runner, err := redrive.NewRunner(letters.Manager(taker), redrive.Config{})
	require.NoError(t, err)
	cfg := dlqhttp.Config{Manager: letters.Manager(taker), Runner: runner, Logger: quiet, Limits: dlqhttp.Limits{Rate: -1}}
	for _, c := range change {
		c(&cfg)
	}
	handler, err := dlqhttp.New(cfg)
	require.NoError(t, err)
	return handler, letters
}

// serve starts a server for a store.
func serve(t *testing.T, url string, change ...func(*dlqhttp.Config)) string {
	t.Helper()
	handler, _ := handlerOf(t, url, change...)
	web := httptest.NewServer(handler)
	t.Cleanup(web.Close)
	return web.URL
}
