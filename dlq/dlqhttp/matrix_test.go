package dlqhttp_test

import (
	"net/http"
	"net/url"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/bcrypt"

	"github.com/redrive-go/redrive/dlq/dlqhttp"
	"github.com/redrive-go/redrive/dlq/driver"
)

// credentials are the headers of a caller, and their role.
type credentials struct {
	name   string
	role   dlqhttp.Role
	header []string
	// wrong means that they are refused wherever credentials are required.
	wrong bool
}

// authentications is every way to authenticate with every role, and every way to fail.
func authentications(t *testing.T) ([]dlqhttp.Authenticator, []credentials) {
	t.Helper()
	auth := bearer(t)
	roles := []dlqhttp.Role{dlqhttp.Metrics, dlqhttp.Viewer, dlqhttp.Operator, dlqhttp.Approver, dlqhttp.Admin}
	all := []credentials{
		{name: "anonymous", wrong: true},
		{name: "a wrong token", wrong: true, header: []string{"Authorization", "Bearer nonsense"}},
		{name: "another scheme", wrong: true, header: []string{"Authorization", "Digest x"}},
		{name: "no credentials in it", wrong: true, header: []string{"Authorization", "Bearer"}},
		{
			name: "a forged session", wrong: true,
			header: []string{"Cookie", "redrive_session=forged; __Host-redrive_session=forged"},
		},
		{name: "a forged proxy", wrong: true, header: []string{"X-Forwarded-User", "root"}},
	}
	hash, err := bcrypt.GenerateFromPassword([]byte("correct horse"), bcrypt.DefaultCost)
	require.NoError(t, err)
	var users []dlqhttp.User
	proxied := map[string]dlqhttp.Role{}
	for _, role := range roles {
		name := role.String()
		users = append(users, dlqhttp.User{Name: name, Role: role, Bcrypt: string(hash)})
		proxied[name] = role
		all = append(all,
			credentials{name: "token of " + name, role: role, header: as(name)},
			credentials{
				name: "password of " + name, role: role,
				header: []string{"Authorization", basic(name, "correct horse")},
			},
			credentials{
				name: "token as password of " + name, role: role,
				header: []string{"Authorization", basic("x", tokens[name])},
			},
			credentials{name: "proxy's " + name, role: role, header: []string{"X-Remote-User", name}},
		)
	}
	byPassword, err := dlqhttp.Basic(users...)
	require.NoError(t, err)
	byProxy, err := dlqhttp.Proxy(dlqhttp.ProxyConfig{
		From: []string{"127.0.0.1", "::1"}, UserHeader: "X-Remote-User",
		Users: proxied,
	})
	require.NoError(t, err)
	return append(auth, byPassword, byProxy), all
}

// sessions logs people in to a server, one of each role, and one whose session has expired.
func sessions(t *testing.T, s *server) []credentials {
	t.Helper()
	login, err := dlqhttp.NewLogin(dlqhttp.LoginConfig{
		Issuer: "http://127.0.0.1:1", ClientID: "redrive", PublicURL: "http://localhost", Default: dlqhttp.Viewer,
		Store: s.letters.Store(),
	})
	require.NoError(t, err)
	s.cfg.Login = login
	people, ok := driver.As[driver.PeopleStore](s.letters.Store())
	require.True(t, ok)
	now := time.Now()
	put := func(cookie string, role dlqhttp.Role, from, to time.Time) []string {
		require.NoError(t, people.PutSession(t.Context(), driver.Session{
			Digest: dlqhttp.HashToken(cookie), Name: cookie, Role: role.String(), CreatedAt: from, ExpiresAt: to,
		}))
		return []string{"Cookie", "redrive_session=" + cookie}
	}
	all := []credentials{{
		name: "an expired session", wrong: true,
		header: put("expired", dlqhttp.Admin, now.Add(-2*time.Hour), now.Add(-time.Hour)),
	}}
	for role := dlqhttp.Metrics; role <= dlqhttp.Admin; role++ {
		cookie := "session-of-" + role.String()
		all = append(all, credentials{name: cookie, role: role, header: put(cookie, role, now, now.Add(time.Hour))})
	}
	return all
}

func basic(user, password string) string {
	r := http.Request{Header: http.Header{}}
	r.SetBasicAuth(user, password)
	return r.Header.Get("Authorization")
}

// Every route that the routers have, with every role by every way to authenticate, and without: a route is open to its
// least role and those above, and to no other caller. A route cannot be left out: all served routes are tested.
func TestMatrix_EveryRouteRoleAuthentication(t *testing.T) {
	auth, all := authentications(t)
	s := newServer(t, func(c *dlqhttp.Config) {
		c.Auth = auth
		c.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	})
	s.seed(t, 1)
	all = append(all, sessions(t, s)...)
	s = s.restarted(t)
	routes := s.handler.Routes()
	sort.SliceStable(routes, func(i, j int) bool { // logging out comes last
		return routes[i].Path != "/logout" && routes[j].Path == "/logout"
	})
	require.Greater(t, len(routes), 70, "the API, the pages and the rest")
	tried := 0
	for _, route := range routes {
		methods := []string{route.Method}
		if route.Method == "" {
			methods = []string{http.MethodGet}
		}
		path := strings.NewReplacer("{id}", "999", "{revision}", "7", "{fingerprint}", "x", "{name...}", "app.css", "{$}",
			"").Replace(route.Path)
		require.NotContains(t, path, "{", "a parameter that the test has no value for")
		if route.Changes {
			require.NotEqual(t, dlqhttp.Viewer, route.Least, "%s: a viewer changes nothing", route.Path)
		}
		for _, method := range methods {
			for i := range all {
				c := &all[i]
				tried++
				a := s.ask(t, method, path, "", append(slices.Clone(c.header), "Content-Type", "application/json")...)
				what := c.name + " on " + method + " " + route.Path + ": " + a.body[:min(len(a.body), 300)]
				switch {
				// anyone: the provider identifies them, and there is none here
				case strings.HasPrefix(route.Path, "/login"):
					require.Contains(t, []int{http.StatusUnauthorized, http.StatusServiceUnavailable}, a.status, what)
				case a.status == http.StatusTooManyRequests:
					require.True(t, c.wrong && c.header != nil, what)
				case c.wrong && route.Least == 0:
					if c.header == nil {
						require.Equal(t, http.StatusOK, a.status, what)
					}
				case c.wrong:
					require.Equal(t, http.StatusUnauthorized, a.status, what)
					require.NotEmpty(t, a.header.Values("WWW-Authenticate"), what)
				case c.role >= route.Least:
					require.NotContains(t, []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusMethodNotAllowed}, a.status,
						what)
					require.Less(t, a.status, http.StatusInternalServerError, what)
				default:
					require.Equal(t, http.StatusForbidden, a.status, what)
				}
			}
		}
	}
	require.Greater(t, tried, 1500)
}

// A path that is not a route gets the answer of one that needs a role: routes cannot be discovered without credentials.
func TestMatrix_UnknownPaths(t *testing.T) {
	s := newServer(t, func(c *dlqhttp.Config) { c.Auth = bearer(t) })
	for _, path := range []string{
		"/nothing", "/api/v1/nothing", "/api/v2/entries", "/static/" + url.PathEscape("../../etc/passwd"), "/.git/config",
	} {
		require.Equal(t, http.StatusUnauthorized, s.ask(t, http.MethodGet, path, "").status, path)
		require.Equal(t, http.StatusNotFound, s.ask(t, http.MethodGet, path, "", as("admin")...).status, path)
	}
}
