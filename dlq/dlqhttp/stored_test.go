package dlqhttp_test

import (
	"context"
	"errors"
	"log/slog"
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
)

// Tokens of the store authenticate their owners with their role, as bearer tokens and as passwords in a browser, until
// they expire or are revoked; the last use is recorded, and those of the configuration remain valid.
func TestStoredTokens(t *testing.T) {
	s := newServer(t)
	people, ok := driver.As[driver.PeopleStore](s.letters.Store())
	require.True(t, ok)
	at := time.Now()
	for name, token := range map[string]driver.Token{
		"ci":      {Role: "operator", ExpiresAt: at.Add(time.Hour)},
		"expired": {Role: "admin", CreatedAt: at.Add(-2 * time.Hour), ExpiresAt: at.Add(-time.Hour)},
		"revoked": {Role: "admin"},
		"unknown": {Role: "emperor"},
	} {
		token.Name, token.Digest, token.CreatedBy = name, dlqhttp.HashToken("rdt_"+name), "ana"
		if token.CreatedAt.IsZero() {
			token.CreatedAt = at
		}
		require.NoError(t, people.PutToken(t.Context(), token))
	}
	require.NoError(t, people.RevokeToken(t.Context(), "revoked", dlq.By{Actor: "ana"}, at))
	stored, err := dlqhttp.Stored(s.letters.Store(), slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	s.cfg.Auth = append([]dlqhttp.Authenticator{stored}, bearer(t)...)
	s = s.restarted(t)
	me := func(header ...string) *answer {
		t.Helper()
		return s.ask(t, http.MethodGet, "/api/v1/me", "", header...)
	}
	for _, header := range [][]string{{"Authorization", "Bearer rdt_ci"}, {"Authorization", basic("x", "rdt_ci")}} {
		a := me(header...)
		require.Equal(t, http.StatusOK, a.status, a.body)
		require.Equal(t, []any{"ci", "operator"}, []any{a.at(t, "name"), a.at(t, "role")})
	}
	require.Equal(t, http.StatusOK, me(as("admin")...).status)
	for _, wrong := range []string{"rdt_expired", "rdt_revoked", "rdt_unknown", "rdt_none", dlqhttp.HashToken("rdt_ci")} {
		require.Equal(t, http.StatusUnauthorized, me("Authorization", "Bearer "+wrong).status, wrong)
	}
	token, err := people.Token(t.Context(), dlqhttp.HashToken("rdt_ci"))
	require.NoError(t, err)
	require.False(t, token.UsedAt.IsZero())
	// Guesses stop reaching the store at some point, and lock out no caller whose token was right before.
	for range 150 {
		me("Authorization", "Bearer guess")
	}
	require.Equal(t, http.StatusOK, me("Authorization", "Bearer rdt_ci").status)
}

// An unknown caller gets a page in a browser, and a problem document as a program. Behind HTTPS browsers stay on HTTPS.
func TestUnauthorizedPage(t *testing.T) {
	s := newServer(t, func(c *dlqhttp.Config) { c.Auth, c.PublicURL = bearer(t), "https://redrive.example" })
	a := s.ask(t, http.MethodGet, "/entries", "", "Accept", "text/html,application/xhtml+xml,*/*")
	require.Equal(t, http.StatusUnauthorized, a.status)
	require.Contains(t, a.header.Get("Content-Type"), "text/html")
	require.Contains(t, a.body, "Log in to see this")
	require.NotContains(t, a.body, "/login", "there is none")
	require.Contains(t, a.header.Values("WWW-Authenticate"), `Basic realm="redrive", charset="UTF-8"`)
	require.Equal(t, "max-age=31536000", a.header.Get("Strict-Transport-Security"))
	a = s.ask(t, http.MethodGet, "/entries", "")
	require.Contains(t, a.header.Get("Content-Type"), "problem+json")
	plain := newServer(t)
	require.Empty(t, plain.ask(t, http.MethodGet, "/", "").header.Get("Strict-Transport-Security"))
}

// Only a browser that opens a page accepts XHTML: Java's HttpURLConnection accepts HTML by default, and is a program.
func TestRefusals_ProblemsForPrograms(t *testing.T) {
	s := newServer(t, func(c *dlqhttp.Config) { c.Auth = bearer(t) })
	const chromium = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,image/apng,*/*;q=0.8," +
		"application/signed-exchange;v=b3;q=0.7"
	const firefox = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,image/png," +
		"image/svg+xml,*/*;q=0.8"
	const page, document = "text/html; charset=utf-8", "application/problem+json"
	for name, c := range map[string]struct{ accept, want string }{
		"Chromium":                 {chromium, page},
		"Firefox 131":              {firefox, page},
		"Safari and Firefox 132":   {"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", page},
		"HttpURLConnection":        {"text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2", document},
		"HttpURLConnection 21":     {"text/html, image/gif, image/jpeg, */*; q=0.2", document},
		"curl and Python requests": {"*/*", document},
		"Go":                       {"", document},
		"axios":                    {"application/json, text/plain, */*", document},
	} {
		for _, path := range []string{"/entries", "/api/v1/entries"} {
			a := s.ask(t, http.MethodGet, path, "", "Accept", c.accept)
			require.Equal(t, http.StatusUnauthorized, a.status, name)
			require.Equal(t, c.want, a.header.Get("Content-Type"), name+" "+path)
		}
	}
}

// What the server refuses before any page is reached is a page in a browser, too, also after a form: a problem document
// would be shown to a person as its source.
func TestRefusals_PagesForPeople(t *testing.T) {
	limited := func(c *dlqhttp.Config) { c.Limits.Rate, c.Limits.Burst = 0.001, 1 }
	known := func(c *dlqhttp.Config) { c.Auth = bearer(t) }
	for name, c := range map[string]struct {
		change  func(*dlqhttp.Config)
		headers []string
		form    string
		status  int
		says    string
	}{
		"too many requests":    {limited, nil, "do=discard", http.StatusTooManyRequests, "try again in"},
		"of another site":      {known, []string{"Sec-Fetch-Site", "cross-site"}, "do=discard", http.StatusForbidden, "server.origins"},
		"a session that ended": {known, nil, "do=discard", http.StatusUnauthorized, "Log in to see this"},
		"no role":              {known, as("metrics"), "do=discard", http.StatusForbidden, "this needs the role viewer"},
		"too large": {
			known, as("operator"), "payload=" + strings.Repeat("x", 5<<20), http.StatusRequestEntityTooLarge,
			"Send less at once",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, c.change)
			s.seed(t, 1)
			headers := append([]string{"Content-Type", "application/x-www-form-urlencoded"}, c.headers...)
			if c.status == http.StatusTooManyRequests {
				s.ask(t, http.MethodGet, "/", "")
			}
			a := s.ask(t, http.MethodPost, "/entries/1", c.form, append(headers, "Accept", "text/html,application/xhtml+xml,*/*")...)
			require.Equal(t, c.status, a.status, a.body)
			require.Contains(t, a.header.Get("Content-Type"), "text/html", a.body)
			require.Contains(t, a.body, c.says)
			if c.status != http.StatusRequestEntityTooLarge { // which only the dashboard refuses, and has no programs
				a = s.ask(t, http.MethodPost, "/entries/1", c.form, headers...)
				require.Equal(t, c.status, a.status, a.body)
				require.Contains(t, a.header.Get("Content-Type"), "problem+json")
			}
		})
	}
}

// outage is a store whose tokens and sessions cannot be read.
type outage struct {
	driver.PeopleStore

	off, hangs bool
}

func (o *outage) Token(ctx context.Context, digest string) (*driver.Token, error) {
	if err := o.fails(ctx); err != nil {
		return nil, err
	}
	return o.PeopleStore.Token(ctx, digest)
}

func (o *outage) Session(ctx context.Context, digest string, at time.Time) (*driver.Session, error) {
	if err := o.fails(ctx); err != nil {
		return nil, err
	}
	return o.PeopleStore.Session(ctx, digest, at)
}

func (o *outage) fails(ctx context.Context) error {
	if o.hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	if o.off {
		return errors.New("connection refused")
	}
	return nil
}

// While the store does not answer, credentials that need it get 503, and are not wrong: when it answers again they are
// accepted at once. Those of the configuration remain valid, so that the metrics report the outage, and wrong passwords
// still count.
func TestStoredTokens_Outage(t *testing.T) {
	for name, hangs := range map[string]bool{"refused": false, "hanging": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := guarded(t)
				people, ok := driver.As[driver.PeopleStore](s.letters.Store())
				require.True(t, ok)
				require.NoError(t, people.PutToken(t.Context(), driver.Token{
					Name: "ci", Role: "admin", Digest: dlqhttp.HashToken("rdt_ci"), CreatedBy: "ana", CreatedAt: time.Now(),
				}))
				down := &outage{PeopleStore: people, off: true, hangs: hangs}
				stored, err := dlqhttp.Stored(down, slog.New(slog.DiscardHandler))
				require.NoError(t, err)
				s.cfg.Auth = append([]dlqhttp.Authenticator{stored}, s.cfg.Auth...)
				s.cfg.Login, err = dlqhttp.NewLogin(dlqhttp.LoginConfig{
					Issuer: "https://login.example", ClientID: "redrive", PublicURL: "http://redrive.example",
					Default: dlqhttp.Viewer, Store: down,
				})
				require.NoError(t, err)
				s.handler, err = dlqhttp.New(s.cfg)
				require.NoError(t, err)
				ask := func(path, name, value string) *httptest.ResponseRecorder {
					r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
					r.Header.Set(name, value)
					w, start := httptest.NewRecorder(), time.Now()
					s.handler.ServeHTTP(w, r)
					require.Less(t, time.Since(start), 5*time.Second, "%s %s: a scrape waits 10 s", path, value)
					return w
				}
				for _, path := range []string{"/readyz", "/metrics", "/api/v1/me", "/entries", "/nothing"} {
					for name, header := range map[string][2]string{
						"token": {"Authorization", "Bearer rdt_ci"}, "as password": {"Authorization", basic("ci", "rdt_ci")},
						"session": {"Cookie", "redrive_session=some"},
					} {
						a := ask(path, header[0], header[1])
						require.Equal(t, http.StatusServiceUnavailable, a.Code, path+name)
						require.NotEmpty(t, a.Header().Get("Retry-After"), path+name)
						require.NotContains(t, a.Body.String(), "refused")
					}
				}
				for range 30 {
					require.Equal(t, http.StatusServiceUnavailable, ask("/metrics", "Authorization", "Bearer rdt_ci").Code)
				}
				require.Equal(t, http.StatusOK, ask("/metrics", "Authorization", "Bearer "+tokens["metrics"]).Code)
				require.Equal(t, http.StatusOK, ask("/api/v1/me", "Authorization", "Bearer "+tokens["viewer"]).Code)
				require.Equal(t, http.StatusOK, ask("/api/v1/me", "Authorization", basic("bo", "correct horse")).Code)
				if !hangs { // then a guess takes as long as the limit allows
					for range 30 {
						ask("/api/v1/me", "Authorization", basic("root", "guess"))
					}
					a := ask("/api/v1/me", "Authorization", basic("root", "guess"))
					require.Equal(t, http.StatusTooManyRequests, a.Code)
				}
				down.off, down.hangs = false, false
				require.Equal(t, http.StatusOK, ask("/api/v1/me", "Authorization", "Bearer rdt_ci").Code)
			})
		})
	}
}
