package dlqhttp_test

import (
	"log/slog"
	"net/http"
	"testing"
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
	a := s.ask(t, http.MethodGet, "/entries", "", "Accept", "text/html,*/*")
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
