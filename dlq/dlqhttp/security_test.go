package dlqhttp_test

import (
	"context"
	"encoding/base64"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/bcrypt"

	"github.com/redrive-go/redrive/dlq/dlqhttp"
)

// Without authentication only this machine is answered: not for another name (DNS rebinding), not through a proxy, and
// not on another address, whatever the program listens on.
func TestLocalOnly(t *testing.T) {
	s := newServer(t, func(c *dlqhttp.Config) { c.Origins = []string{"https://trusted.example"} })
	s.seed(t, 1)
	for name, test := range map[string]struct {
		header []string
		status int
	}{
		"by address":           {nil, http.StatusOK},
		"by name":              {[]string{"Host", "localhost:8321"}, http.StatusOK},
		"by IPv6":              {[]string{"Host", "[::1]:8321"}, http.StatusOK},
		"another name":         {[]string{"Host", "evil.example"}, http.StatusForbidden},
		"rebound name":         {[]string{"Host", "evil.example:8321"}, http.StatusForbidden},
		"looks like localhost": {[]string{"Host", "localhost.evil.example"}, http.StatusForbidden},
		"another address":      {[]string{"Host", "10.0.0.7:8321"}, http.StatusForbidden},
		"proxy":                {[]string{"X-Forwarded-For", "10.0.0.7"}, http.StatusForbidden},
		"proxy, standard":      {[]string{"Forwarded", "for=10.0.0.7"}, http.StatusForbidden},
		"proxy, its name":      {[]string{"Via", "1.1 web"}, http.StatusForbidden},
		"proxy, scheme only":   {[]string{"X-Forwarded-Proto", "https"}, http.StatusForbidden},
		"page of a proxy":      {[]string{"Origin", "https://ops.example"}, http.StatusForbidden},
		"page, ours":           {[]string{"Origin", "http://localhost:8321"}, http.StatusOK},
		"page, trusted":        {[]string{"Origin", "https://trusted.example"}, http.StatusOK},
		"page without name":    {[]string{"Origin", "null"}, http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			a := s.ask(t, http.MethodGet, "/api/v1/entries", "", test.header...)
			require.Equal(t, test.status, a.status, a.body)
			if test.status != http.StatusOK {
				require.NotContains(t, a.body, "message-1")
			}
		})
	}
	for name, address := range map[string]net.IP{
		"this machine": net.IPv4(127, 0, 0, 1),
		"the network":  net.IPv4(10, 0, 0, 7),
	} {
		t.Run("came in on "+name, func(t *testing.T) {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost/api/v1/entries", nil)
			local := &net.TCPAddr{IP: address, Port: 8321}
			r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, net.Addr(local)))
			r.RemoteAddr = net.JoinHostPort(address.String(), "4711")
			w := httptest.NewRecorder()
			s.handler.ServeHTTP(w, r)
			require.Equal(t, address.IsLoopback(), w.Code == http.StatusOK, w.Body)
		})
	}
}

// Names of hosts have no case, neither in the request nor in the configuration.
func TestHosts_Case(t *testing.T) {
	for name, auth := range map[string][]dlqhttp.Authenticator{"with authentication": bearer(t), "without": nil} {
		t.Run(name, func(t *testing.T) {
			hosts := []string{"Redrive.Example"}
			s := newServer(t, func(c *dlqhttp.Config) { c.Auth, c.Hosts = auth, hosts })
			for host, want := range map[string]int{
				"redrive.example": http.StatusOK, "REDRIVE.example:8321": http.StatusOK, "other.example": http.StatusForbidden,
			} {
				a := s.ask(t, http.MethodGet, "/api/v1/me", "", append(as("viewer"), "Host", host)...)
				require.Equal(t, want, a.status, host)
			}
			require.Equal(t, []string{"Redrive.Example"}, hosts, "the caller's list is not changed")
		})
	}
}

func TestCheckAddress(t *testing.T) {
	t.Parallel()
	auth := bearer(t)
	for address, open := range map[string]bool{
		"127.0.0.1:8321": false, "localhost:0": false, "[::1]:80": false, "127.1.2.3:80": false,
		":8321": true, "0.0.0.0:80": true, "[::]:80": true, "10.0.0.7:80": true, "ops.example:80": true,
	} {
		err := dlqhttp.CheckAddress(address, nil)
		require.Equal(t, open, err != nil, address)
		if open {
			require.ErrorIs(t, err, dlqhttp.ErrNoAuthentication)
			require.ErrorContains(t, err, "configure server.auth")
		}
		require.NoError(t, dlqhttp.CheckAddress(address, auth), address)
	}
	require.Error(t, dlqhttp.CheckAddress("localhost", auth))
}

// A page of another site changes nothing, although the browser of an authorized user would send their credentials with
// it.
func TestCrossOrigin(t *testing.T) {
	s := newServer(t, func(c *dlqhttp.Config) { c.Auth, c.Origins = bearer(t), []string{"https://ops.example"} })
	s.seed(t, 3)
	before := s.dump(t)
	for name, header := range map[string][]string{
		"fetch metadata": {"Sec-Fetch-Site", "cross-site"}, "same site": {"Sec-Fetch-Site", "same-site"},
		"origin": {"Origin", "https://evil.example"},
	} {
		a := s.ask(t, http.MethodPost, "/api/v1/entries/1/discard", "", append(as("admin"), header...)...)
		require.Equal(t, http.StatusForbidden, a.status, name)
		require.Contains(t, a.body, "another site")
	}
	require.Equal(t, before, s.dump(t))
	for i, header := range [][]string{{"Sec-Fetch-Site", "same-origin"}, {"Origin", "https://ops.example"}, {}} {
		a := s.ask(t, http.MethodPost, "/api/v1/entries/"+string(rune('1'+i))+"/discard", "",
			append(as("admin"), header...)...)
		require.Equal(t, http.StatusOK, a.status, a.body)
	}
	a := s.ask(t, http.MethodGet, "/api/v1/me", "", append(as("viewer"), "Sec-Fetch-Site", "cross-site")...)
	require.Equal(t, http.StatusOK, a.status, "looking is for the browser's own rules")
	require.Empty(t, a.header.Get("Access-Control-Allow-Origin"))
}

// Passwords, tokens as passwords, and a proxy's header; each trusted only where it should be.
func TestAuthenticators(t *testing.T) {
	hash, err := bcrypt.GenerateFromPassword([]byte("correct horse"), bcrypt.DefaultCost)
	require.NoError(t, err)
	users, err := dlqhttp.Basic(dlqhttp.User{Name: "ana", Role: dlqhttp.Operator, Bcrypt: string(hash)})
	require.NoError(t, err)
	here, err := dlqhttp.Proxy(dlqhttp.ProxyConfig{
		From: []string{"127.0.0.0/8"}, Users: map[string]dlqhttp.Role{"root": dlqhttp.Admin},
		Groups: map[string]dlqhttp.Role{"ops": dlqhttp.Approver},
	})
	require.NoError(t, err)
	elsewhere, err := dlqhttp.Proxy(dlqhttp.ProxyConfig{
		From: []string{"10.0.0.7"}, UserHeader: "X-Other-User",
		Default: dlqhttp.Admin,
	})
	require.NoError(t, err)
	s := newServer(t, func(c *dlqhttp.Config) { c.Auth = append(bearer(t), users, here, elsewhere) })
	basic := func(user, password string) []string {
		return []string{"Authorization", "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))}
	}
	for name, test := range map[string]struct {
		header []string
		want   string // name and role, or the status
	}{
		"password":                 {basic("ana", "correct horse"), "ana operator"},
		"again, from memory":       {basic("ana", "correct horse"), "ana operator"},
		"wrong password":           {basic("ana", "wrong"), "401"},
		"unknown user":             {basic("eve", "correct horse"), "401"},
		"token as password":        {basic("anything", tokens["approver"]), "approver approver"},
		"token":                    {as("viewer"), "viewer viewer"},
		"lower case scheme":        {[]string{"Authorization", "bearer " + tokens["viewer"]}, "viewer viewer"},
		"empty token":              {[]string{"Authorization", "Bearer "}, "401"},
		"proxy's user":             {[]string{"X-Forwarded-User", "root"}, "root admin"},
		"proxy's group":            {[]string{"X-Forwarded-User", "bo", "X-Forwarded-Groups", "dev, ops"}, "bo approver"},
		"proxy's invisible letter": {[]string{"X-Forwarded-User", "ro\u200bot"}, "401"},
		"proxy's broken letter":    {[]string{"X-Forwarded-User", "root\xff"}, "401"},
		"proxy's stranger":         {[]string{"X-Forwarded-User", "eve"}, "403"},
		"two users":                {[]string{"X-Forwarded-User", "root", "X-Forwarded-User", "eve"}, "401"},
		"a proxy that it is not":   {[]string{"X-Other-User", "root"}, "401"},
		"wrong token and a proxy":  {[]string{"Authorization", "Bearer x", "X-Forwarded-User", "root"}, "401"},
		"nothing":                  {nil, "401"},
		"an actor of one's own":    {append(as("viewer"), "X-Redrive-Actor", "root"), "viewer viewer"},
	} {
		t.Run(name, func(t *testing.T) {
			a := s.ask(t, http.MethodGet, "/api/v1/me", "", test.header...)
			if a.status == http.StatusOK {
				require.Equal(t, test.want, a.at(t, "name").(string)+" "+a.at(t, "role").(string))
				return
			}
			require.Equal(t, test.want, strconv.Itoa(a.status), a.body)
		})
	}
	for name, make := range map[string]func() error{
		"no digest": func() error {
			_, err := dlqhttp.Bearer(dlqhttp.Token{Name: "a", Role: dlqhttp.Viewer, SHA256: "secret"})
			return err
		},
		"no role": func() error {
			_, err := dlqhttp.Bearer(dlqhttp.Token{Name: "a", SHA256: dlqhttp.HashToken("x")})
			return err
		},
		"plain password": func() error {
			_, err := dlqhttp.Basic(dlqhttp.User{Name: "a", Role: dlqhttp.Viewer, Bcrypt: "secret"})
			return err
		},
		"open proxy": func() error { _, err := dlqhttp.Proxy(dlqhttp.ProxyConfig{Default: dlqhttp.Admin}); return err },
		"any address": func() error {
			_, err := dlqhttp.Proxy(dlqhttp.ProxyConfig{From: []string{"::/0"}, Default: dlqhttp.Admin})
			return err
		},
	} {
		require.Error(t, make(), name)
	}
}

// A client that guesses passwords is slowed down; one with a token, or with an earlier success, is not locked out by a
// neighbour.
func TestGuessing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hash, err := bcrypt.GenerateFromPassword([]byte("correct horse"), bcrypt.DefaultCost)
		require.NoError(t, err)
		users, err := dlqhttp.Basic(dlqhttp.User{Name: "ana", Role: dlqhttp.Operator, Bcrypt: string(hash)})
		require.NoError(t, err)
		s := unserved(t, func(c *dlqhttp.Config) { c.Auth = append(bearer(t), users) })
		ask := func(authorization string) *httptest.ResponseRecorder {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/v1/me", nil)
			r.Header.Set("Authorization", authorization)
			w := httptest.NewRecorder()
			s.handler.ServeHTTP(w, r)
			return w
		}
		right, wrong := basic("ana", "correct horse"), basic("ana", "guess")
		require.Equal(t, http.StatusOK, ask(right).Code)
		for range 30 { // tokens, which cost nothing to compare: the bound is one for both
			ask("Bearer guess")
		}
		a := ask(wrong)
		require.Equal(t, http.StatusTooManyRequests, a.Code)
		require.NotEmpty(t, a.Header().Get("Retry-After"))
		require.Equal(t, http.StatusOK, ask(right).Code)
		require.Equal(t, http.StatusOK, ask("Bearer "+tokens["viewer"]).Code)
		require.NotContains(t, s.log.String(), "guess", "the attempted credentials are not logged")
		time.Sleep(2 * time.Second) // virtual
		synctest.Wait()
		require.Equal(t, http.StatusUnauthorized, ask(wrong).Code, "one more is looked at")
	})
}

// One client's requests are bounded, another's are not touched by it.
func TestRateLimit(t *testing.T) {
	s := newServer(t, func(c *dlqhttp.Config) {
		c.Auth, c.Limits = bearer(t), dlqhttp.Limits{Rate: 0.001, Burst: 3}
	})
	for range 3 {
		require.Equal(t, http.StatusOK, s.ask(t, http.MethodGet, "/api/v1/me", "", as("viewer")...).status)
	}
	a := s.ask(t, http.MethodGet, "/api/v1/me", "", as("viewer")...)
	require.Equal(t, http.StatusTooManyRequests, a.status)
	require.NotEmpty(t, a.header.Get("Retry-After"))
	require.Equal(t, http.StatusOK, s.ask(t, http.MethodGet, "/api/v1/me", "", as("admin")...).status)
	require.Equal(t, http.StatusOK, s.ask(t, http.MethodGet, "/livez", "").status)
}

// Health is partly public: the status, but not the reason.
func TestHealth(t *testing.T) {
	report := func() (h dlqhttp.Health) {
		h.Add("store", nil, dlqhttp.Component{})
		h.Add("broker main", net.UnknownNetworkError("rabbit.internal"), dlqhttp.Component{})
		return h
	}
	s := newServer(t, func(c *dlqhttp.Config) {
		c.Auth = bearer(t)
		c.Health = func(context.Context) dlqhttp.Health { return report() }
	})
	a := s.ask(t, http.MethodGet, "/readyz", "")
	require.Equal(t, http.StatusServiceUnavailable, a.status)
	require.NotContains(t, a.body, "rabbit.internal")
	require.JSONEq(t, `{"status":"failing","components":{"store":{"status":"ok"},"broker main":{"status":"failing"}}}`,
		a.body)
	a = s.ask(t, http.MethodGet, "/readyz", "", as("viewer")...)
	require.Contains(t, a.body, "rabbit.internal")
	require.Equal(t, http.StatusOK, s.ask(t, http.MethodGet, "/livez", "").status)
	a = s.ask(t, http.MethodGet, "/api/v1/health", "", as("viewer")...)
	require.Equal(t, http.StatusOK, a.status)
	require.Contains(t, a.body, "rabbit.internal")
}
