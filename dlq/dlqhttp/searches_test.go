package dlqhttp_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/sqlstore"
)

// large takes long for searches in texts: until it is released, or the search is cancelled.
type large struct {
	*sqlstore.Store

	began   chan struct{}
	release chan struct{}
}

func (l *large) search(ctx context.Context, f *dlq.Filter) error {
	if f.PayloadText == "" && f.ErrorText == "" && f.TraceID == "" {
		return nil
	}
	l.began <- struct{}{}
	select {
	case <-l.release:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *large) List(ctx context.Context, f dlq.Filter, p dlq.Page) (driver.Listing, error) {
	if err := l.search(ctx, &f); err != nil {
		return driver.Listing{}, err
	}
	return l.Store.List(ctx, f, p)
}

func (l *large) Count(ctx context.Context, f dlq.Filter, limit int64) (int64, error) {
	if err := l.search(ctx, &f); err != nil {
		return 0, err
	}
	return l.Store.Count(ctx, f, limit)
}

// Searches in texts hold connections of the store for long: neither one caller's nor all of them together may hold
// those of the other pages. One too many waits until another has ended or is cancelled, but not for long.
func TestSearches_AreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := unserved(t, func(c *dlqhttp.Config) { c.Auth, c.Limits.Timeout = bearer(t), 5*time.Minute })
		s.seed(t, 2)
		lists, ok := driver.As[*sqlstore.Store](s.letters.Store())
		require.True(t, ok)
		store := &large{Store: lists, began: make(chan struct{}, 10), release: make(chan struct{})}
		var err error
		s.cfg.Manager, err = dlq.NewManager(dlq.ManagerConfig{Store: store, Redriver: s.sent})
		require.NoError(t, err)
		s.cfg.Runner, err = redrive.NewRunner(s.cfg.Manager, redrive.Config{})
		require.NoError(t, err)
		s.handler, err = dlqhttp.New(s.cfg)
		require.NoError(t, err)
		ask := func(ctx context.Context, role, method, path, body string) *httptest.ResponseRecorder {
			r := httptest.NewRequestWithContext(ctx, method, path, strings.NewReader(body))
			r.Header.Set("Authorization", as(role)[1])
			r.Header.Set("Content-Type", "application/json")
			w := httptest.NewRecorder()
			s.handler.ServeHTTP(w, r)
			return w
		}
		answers := make(chan int, 10)
		begin := func(ctx context.Context, role, path string) {
			go func() { answers <- ask(ctx, role, http.MethodGet, path, "").Code }()
		}
		refused := func(role, method, path, why string) *httptest.ResponseRecorder {
			began := time.Now()
			a := ask(t.Context(), role, method, path, `{"filter":{"payload":"x"}}`)
			require.Equal(t, http.StatusTooManyRequests, a.Code, "%s: %s", path, a.Body)
			require.Contains(t, a.Body.String(), why, path)
			require.Equal(t, 10*time.Second, time.Since(began), path)
			return a
		}
		const preview = "/api/v1/runs/preview"
		cancelled, cancel := context.WithCancel(t.Context())
		begin(cancelled, "viewer", "/api/v1/entries?payload=acme")
		<-store.began
		begin(t.Context(), "viewer", "/api/v1/entries?error=timeout")
		<-store.began
		for _, path := range []string{
			"/api/v1/entries?payload_fields=a=1", "/api/v1/entries/count?error=x", "/entries?payload=x", "/entries?q=x",
		} {
			refused("viewer", http.MethodGet, path, "2 of your searches in texts are running")
		}
		a := refused("viewer", http.MethodPost, preview, "2 of your searches in texts are running")
		require.NotEmpty(t, a.Header().Get("Retry-After"))
		began := time.Now()
		for _, path := range []string{"/api/v1/entries?topic=orders", "/entries?topic=orders", "/entries/1?in=q%3Dx", "/"} {
			require.Equal(t, http.StatusOK, ask(t.Context(), "viewer", http.MethodGet, path, "").Code, path)
		}
		require.LessOrEqual(t, time.Since(began), 3*time.Second, "for the links of an entry")
		begin(t.Context(), "ana", "/api/v1/entries/count?error=timeout")
		<-store.began
		refused("bo", http.MethodPost, preview, "3 searches in texts are running")

		begin(t.Context(), "viewer", "/entries?payload=acme")
		time.Sleep(5 * time.Second) // virtual
		synctest.Wait()
		require.Empty(t, store.began)
		cancel()
		<-answers
		<-store.began
		begin(t.Context(), "viewer", "/entries?q=timeout")
		synctest.Wait()
		close(store.release)
		for range 4 {
			require.Equal(t, http.StatusOK, <-answers)
		}
		a = ask(t.Context(), "viewer", http.MethodPost, preview, `{"filter":{"payload":"x"}}`)
		require.Equal(t, http.StatusOK, a.Code, a.Body)
	})
}
