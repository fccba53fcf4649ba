package access_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/zitadel/oidc/v3/example/server/exampleop"
	"github.com/zitadel/oidc/v3/example/server/storage"
	"github.com/zitadel/oidc/v3/pkg/oidc"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp"
	"github.com/redrive-go/redrive/dlq/driver"
)

// users are the provider's users and their groups.
type users struct {
	*storage.Storage

	groups map[string][]string
}

// SetUserinfoFromToken adds the groups to a user's claims.
func (u *users) SetUserinfoFromToken(ctx context.Context, info *oidc.UserInfo, tokenID, subject, origin string) error {
	if err := u.Storage.SetUserinfoFromToken(ctx, info, tokenID, subject, origin); err != nil {
		return err
	}
	info.AppendClaims("groups", u.groups[subject])
	return nil
}

// provider is an OpenID provider that records login requests. Its library writes a package variable when it is
// constructed (op.DefaultEndpoints), so tests that use it are not parallel.
type provider struct {
	issuer string

	mu    sync.Mutex
	asked []url.Values
}

func newProvider(t *testing.T, callback string) *provider {
	t.Helper()
	p := &provider{}
	var handler http.Handler
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("response_type") {
			p.mu.Lock()
			p.asked = append(p.asked, r.URL.Query())
			p.mu.Unlock()
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(web.Close)
	p.issuer = strings.Replace(web.URL, "127.0.0.1", "localhost", 1) + "/"
	client := storage.WebClient("redrive", "secret", callback)
	s := storage.NewStorageWithClients(storage.NewUserStore(p.issuer), map[string]*storage.Client{"redrive": client})
	handler = exampleop.SetupServer(p.issuer, &users{s, map[string][]string{"id1": {"ops", "x"}, "id2": {"sales"}}},
		slog.New(slog.DiscardHandler), false)
	return p
}

// person is a user's browser.
type person struct {
	t    *testing.T
	http *http.Client
}

func newPerson(t *testing.T) *person {
	t.Helper()
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	return &person{t, &http.Client{Jar: jar}}
}

func (p *person) send(method, at string, form url.Values) (*http.Response, string) {
	p.t.Helper()
	r, err := http.NewRequestWithContext(p.t.Context(), method, at, strings.NewReader(form.Encode()))
	require.NoError(p.t, err)
	r.Header.Set("Accept", "text/html,application/xhtml+xml")
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	response, err := p.http.Do(r)
	require.NoError(p.t, err)
	defer func() { require.NoError(p.t, response.Body.Close()) }()
	body, err := io.ReadAll(response.Body)
	require.NoError(p.t, err)
	return response, string(body)
}

var (
	loginLink = regexp.MustCompile(`href="(/login[^"]*)"`)
	requestID = regexp.MustCompile(`name="id" value="([^"]+)"`)
)

// logIn opens a protected page, fills in the provider's form, and follows the redirects back.
func (p *person) logIn(base, page, user string, provider *provider) (*http.Response, string) {
	p.t.Helper()
	response, body := p.send(http.MethodGet, base+page, nil)
	require.Equal(p.t, http.StatusUnauthorized, response.StatusCode)
	challenges := strings.Join(response.Header.Values("WWW-Authenticate"), " ")
	require.NotContains(p.t, challenges, "Basic", "the browser's own form would cover the page")
	link := loginLink.FindStringSubmatch(body)
	require.NotNil(p.t, link, body)
	_, form := p.send(http.MethodGet, base+strings.ReplaceAll(link[1], "&amp;", "&"), nil)
	id := requestID.FindStringSubmatch(form)
	require.NotNil(p.t, id, form)
	return p.send(http.MethodPost, provider.issuer+"login/username",
		url.Values{"username": {user}, "password": {"verysecure"}, "id": {id[1]}})
}

// loginServers starts two servers that share a store and the provider.
func loginServers(t *testing.T) (first, second string, p *provider, letters *dlq.Letters) {
	t.Helper()
	var handlers [2]http.Handler
	var urls [2]string
	for i := range handlers {
		web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			handlers[i].ServeHTTP(w, r)
		}))
		t.Cleanup(web.Close)
		urls[i] = strings.Replace(web.URL, "127.0.0.1", "localhost", 1)
	}
	p = newProvider(t, urls[0]+"/login/callback")
	store := "sqlite:" + filepath.Join(t.TempDir(), "dead.db") + "?synchronous=normal"
	for i := range handlers {
		opened, err := dlq.Open(t.Context(), store, dlq.WithoutSpool())
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, opened.Close()) })
		login, err := dlqhttp.NewLogin(dlqhttp.LoginConfig{
			Issuer: p.issuer, ClientID: "redrive", ClientSecret: "secret", PublicURL: urls[0], Store: opened.Store(),
			Groups: map[string]dlqhttp.Role{"ops": dlqhttp.Approver, "x": dlqhttp.Viewer},
		})
		require.NoError(t, err)
		handlers[i], letters = handlerOf(t, store, func(c *dlqhttp.Config) { c.Login = login })
	}
	return urls[0], urls[1], p, letters
}

// A person logs in at a real provider, and is redirected to the requested page with the role of their groups; the
// session is valid on every server of the store, and ends on all of them.
//
//nolint:bodyclose // send reads and closes them
func TestLogin(t *testing.T) {
	base, other, p, letters := loginServers(t)
	ana := newPerson(t)
	response, body := ana.logIn(base, "/entries?status=any", "test-user@localhost", p)
	require.Equal(t, http.StatusOK, response.StatusCode, body)
	require.Equal(t, "/entries?status=any", response.Request.URL.RequestURI())
	require.Contains(t, body, `<form method="post" action="/logout">`, "the log-out button")
	for _, server := range []string{base, other} { // cookies belong to a host, whatever the port
		_, me := ana.send(http.MethodGet, server+"/api/v1/me", nil)
		require.Contains(t, me, "test-user@zitadel.ch")
		require.Contains(t, me, "approver")
	}
	asked := p.asked[0]
	require.Equal(t, []string{"code", "S256"}, []string{asked.Get("response_type"), asked.Get("code_challenge_method")})
	require.NotEmpty(t, asked.Get("code_challenge"))
	require.NotEmpty(t, asked.Get("nonce"))

	records, _, err := letters.Store().Audit(t.Context(), dlq.AuditFilter{Actor: "test-user@zitadel.ch"}, dlq.Page{})
	require.NoError(t, err)
	require.True(t, slices.ContainsFunc(records, func(r driver.AuditRecord) bool { return r.Action == "login" }))

	at, err := url.Parse(base)
	require.NoError(t, err)
	kept := ana.http.Jar.Cookies(at)
	response, _ = ana.send(http.MethodPost, base+"/logout", nil)
	require.Equal(t, http.StatusOK, response.StatusCode)
	ana.http.Jar.SetCookies(at, kept) // a saved cookie is no longer valid
	response, _ = ana.send(http.MethodGet, base+"/entries", nil)
	require.Equal(t, http.StatusUnauthorized, response.StatusCode)
}

// A login is refused to a user without a group that has a role, with the response to another browser's login, and a
// second time.
//
//nolint:bodyclose // send reads and closes them
func TestLogin_Refused(t *testing.T) {
	base, _, p, _ := loginServers(t)
	bob := newPerson(t)
	response, body := bob.logIn(base, "/entries", "test-user2", p)
	require.Equal(t, http.StatusForbidden, response.StatusCode, body)
	require.Contains(t, body, "no role here")
	response, _ = bob.send(http.MethodGet, base+"/entries", nil)
	require.Equal(t, http.StatusUnauthorized, response.StatusCode)

	// Ana's browser stops at the callback, and a victim's browser opens its URL.
	ana, victim := newPerson(t), newPerson(t)
	var callback string
	ana.http.CheckRedirect = func(r *http.Request, _ []*http.Request) error {
		if strings.HasPrefix(r.URL.Path, "/login/callback") {
			callback = r.URL.String()
			return http.ErrUseLastResponse
		}
		return nil
	}
	ana.logIn(base, "/entries", "test-user@localhost", p)
	require.NotEmpty(t, callback)
	for name, at := range map[string]string{
		"another browser's": callback,
		"forged":            base + "/login/callback?state=x&code=y",
	} {
		response, _ = victim.send(http.MethodGet, at, nil)
		require.Equal(t, http.StatusUnauthorized, response.StatusCode, name)
	}
	response, _ = ana.send(http.MethodGet, callback, nil)
	require.Equal(t, http.StatusOK, response.StatusCode, "the browser that started it")
	response, _ = ana.send(http.MethodGet, callback, nil)
	require.Equal(t, http.StatusUnauthorized, response.StatusCode, "a second time")
	for _, to := range []string{"//evil.example", "https://evil.example", "/\\evil.example", "/%0d%0ax"} {
		again := newPerson(t)
		var began *http.Response
		again.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		began, _ = again.send(http.MethodGet, base+"/login?to="+url.QueryEscape(to), nil)
		require.Equal(t, http.StatusFound, began.StatusCode)
		require.NotContains(t, strings.Join(began.Header.Values("Set-Cookie"), " "), "evil", to)
	}
}
