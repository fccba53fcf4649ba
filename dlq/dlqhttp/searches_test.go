package dlqhttp_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

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
// those of the other pages. A cancelled one makes room at once.
func TestSearches_AreLimited(t *testing.T) {
	s := newServer(t, func(c *dlqhttp.Config) { c.Auth = bearer(t) })
	s.seed(t, 2)
	lists, ok := driver.As[*sqlstore.Store](s.letters.Store())
	require.True(t, ok)
	store := &large{Store: lists, began: make(chan struct{}, 10), release: make(chan struct{})}
	var err error
	s.cfg.Manager, err = dlq.NewManager(dlq.ManagerConfig{Store: store, Redriver: s.sent})
	require.NoError(t, err)
	s.cfg.Runner, err = redrive.NewRunner(s.cfg.Manager, redrive.Config{})
	require.NoError(t, err)
	s = s.restarted(t)
	answers := make(chan int, 10)
	begin := func(ctx context.Context, role, path string) {
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, path, nil)
		r.Header.Set("Authorization", as(role)[1])
		go func() {
			w := httptest.NewRecorder()
			s.handler.ServeHTTP(w, r)
			answers <- w.Code
		}()
		<-store.began
	}
	cancelled, cancel := context.WithCancel(t.Context())
	begin(cancelled, "viewer", "/api/v1/entries?payload=acme")
	begin(t.Context(), "viewer", "/entries?q=timeout")
	for _, path := range []string{
		"/api/v1/entries?payload_fields=a=1", "/api/v1/entries/count?error=x", "/entries?payload=x", "/entries?q=x",
	} {
		a := s.ask(t, http.MethodGet, path, "", as("viewer")...)
		require.Equal(t, http.StatusTooManyRequests, a.status, "%s: %s", path, a.body)
		require.Contains(t, a.body, "2 of your searches in texts are running", path)
	}
	preview := func(role string) *answer {
		return s.ask(t, http.MethodPost, "/api/v1/runs/preview", `{"filter":{"payload":"x"}}`,
			append(as(role), "Content-Type", "application/json")...)
	}
	a := preview("viewer")
	require.Equal(t, http.StatusTooManyRequests, a.status, a.body)
	require.NotEmpty(t, a.header.Get("Retry-After"))
	for _, path := range []string{"/api/v1/entries?topic=orders", "/entries?topic=orders", "/entries/1?in=q%3Dx", "/"} {
		require.Equal(t, http.StatusOK, s.ask(t, http.MethodGet, path, "", as("viewer")...).status, path)
	}
	begin(t.Context(), "ana", "/api/v1/entries/count?error=timeout")
	a = preview("bo")
	require.Equal(t, http.StatusTooManyRequests, a.status, a.body)
	require.Contains(t, a.body, "3 searches in texts are running")

	cancel()
	<-answers
	begin(t.Context(), "viewer", "/api/v1/entries?payload=acme")
	close(store.release)
	for range 3 {
		require.Equal(t, http.StatusOK, <-answers)
	}
	require.Equal(t, http.StatusOK, preview("viewer").status)
}
