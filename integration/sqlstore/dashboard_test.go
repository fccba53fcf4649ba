package sqlstore_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp"
	"github.com/redrive-go/redrive/dlq/redrive"
)

// BenchmarkDashboard measures the server's time for an uncached page of the dashboard: the target of 50 ms for the
// overview applies to REDRIVE_ROWS=1000000. "again" is the same page while it is cached.
func BenchmarkDashboard(b *testing.B) {
	url := servers["PostgreSQL"](b)
	s := openStore(b, url)
	b.Cleanup(func() { require.NoError(b, s.Close()) })
	fill(b, s, openDB(b, url), rowCount(b))
	quiet := slog.New(slog.DiscardHandler)
	handler := func() http.Handler {
		manager, err := dlq.NewManager(dlq.ManagerConfig{Store: s, Logger: quiet})
		require.NoError(b, err)
		runner, err := redrive.NewRunner(manager, redrive.Config{})
		require.NoError(b, err)
		h, err := dlqhttp.New(dlqhttp.Config{
			Manager: manager, Runner: runner, Logger: quiet,
			Limits: dlqhttp.Limits{Rate: -1},
		})
		require.NoError(b, err)
		return h
	}
	get := func(h http.Handler, path string) {
		r := httptest.NewRequestWithContext(b.Context(), http.MethodGet, "http://localhost"+path, http.NoBody)
		r.RemoteAddr = "127.0.0.1:4711"
		r.Header.Set("Accept", "text/html,application/xhtml+xml")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		require.Equal(b, http.StatusOK, w.Code, path)
	}
	for name, path := range map[string]string{
		"overview": "/", "causes": "/groups", "entries": "/entries", "entries of a word": "/entries?status=PENDING&cause=cpf",
		"entry":   "/entries/4711",
		"dry run": "/runs/new?cause=cpf&status=PENDING",
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				h := handler() // nothing is cached
				b.StartTimer()
				get(h, path)
			}
		})
	}
	b.Run("overview again", func(b *testing.B) {
		h := handler()
		for b.Loop() {
			get(h, "/")
		}
	})
}
