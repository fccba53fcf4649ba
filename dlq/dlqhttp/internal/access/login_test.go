package access_test

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"maps"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/driver"
)

// provider is an OpenID provider with one user, whose claims are those in the id token and those of the user info.
type provider struct {
	url         string
	nonce       string
	token, info map[string]any
}

func newProvider(t *testing.T, key *rsa.PrivateKey) *provider {
	t.Helper()
	p, mux := &provider{}, http.NewServeMux()
	web := httptest.NewServer(mux)
	t.Cleanup(web.Close)
	p.url = web.URL
	serve := func(path string, value func() any) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(value())
		})
	}
	encode := base64.RawURLEncoding.EncodeToString
	serve("/.well-known/openid-configuration", func() any {
		return map[string]any{
			"issuer": p.url, "authorization_endpoint": p.url + "/authorize", "token_endpoint": p.url + "/token",
			"jwks_uri": p.url + "/keys", "userinfo_endpoint": p.url + "/userinfo",
		}
	})
	serve("/keys", func() any {
		return map[string]any{"keys": []any{map[string]any{
			"kty": "RSA", "alg": "RS256", "use": "sig",
			"n": encode(key.N.Bytes()), "e": encode(big.NewInt(int64(key.E)).Bytes()),
		}}}
	})
	serve("/userinfo", func() any { return p.claims(p.info) })
	serve("/token", func() any {
		payload, err := json.Marshal(p.claims(p.token))
		if err != nil {
			return err.Error()
		}
		signed := encode([]byte(`{"alg":"RS256"}`)) + "." + encode(payload)
		sum := sha256.Sum256([]byte(signed))
		signature, err := rsa.SignPKCS1v15(nil, key, crypto.SHA256, sum[:])
		if err != nil {
			return err.Error()
		}
		return map[string]any{
			"access_token": "access", "token_type": "Bearer", "id_token": signed + "." + encode(signature),
		}
	})
	return p
}

func (p *provider) claims(more map[string]any) map[string]any {
	claims := map[string]any{
		"iss": p.url, "aud": "redrive", "sub": "1", "exp": time.Now().Add(time.Hour).Unix(), "nonce": p.nonce,
	}
	maps.Copy(claims, more)
	return claims
}

// No browser keeps a cookie of more than 4 KiB: a login from a longer address ends at the first page.
func TestLogin_LongAddress(t *testing.T) {
	t.Parallel()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	l, err := access.NewLogin(access.LoginConfig{
		Issuer: newProvider(t, key).url, ClientID: "redrive", PublicURL: "https://redrive.example/ops",
		Default: access.Viewer, Store: &people{},
	})
	require.NoError(t, err)
	for n, want := range map[int]string{10: "/ops/entries?q=" + strings.Repeat("%", 10), 2_000: "/ops/"} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/login?"+
			url.Values{"to": {"/ops/entries?q=" + strings.Repeat("%", n)}}.Encode(), nil)
		w := httptest.NewRecorder()
		require.NoError(t, l.Start(w, r))
		require.Less(t, len(w.Header().Get("Set-Cookie")), 4096)
		kept, err := url.ParseQuery(w.Result().Cookies()[0].Value)
		require.NoError(t, err)
		require.Equal(t, want, kept.Get("to"))
	}
}

// silent is a provider that accepts connections and says nothing.
type silent struct{}

func (silent) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// Logins with a provider that does not answer do not wait for each other: each fails after one timeout.
func TestLogin_SilentProvider(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, err := access.NewLogin(access.LoginConfig{
			Issuer: "http://provider.example", ClientID: "redrive", PublicURL: "http://redrive.example",
			Default: access.Viewer, Store: &people{}, Client: &http.Client{Timeout: 10 * time.Second, Transport: silent{}},
		})
		require.NoError(t, err)
		var starts sync.WaitGroup
		began := time.Now()
		for range 20 {
			starts.Go(func() {
				r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/login", nil)
				assert.ErrorContains(t, l.Start(httptest.NewRecorder(), r), "provider http://provider.example")
			})
		}
		starts.Wait()
		require.Equal(t, 10*time.Second, time.Since(began))
	})
}

// An address counts unless a source denies that it is verified, as a boolean or as a text, as some providers do.
func TestLogin_UnverifiedAddress(t *testing.T) {
	t.Parallel()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	type claims = map[string]any
	for name, test := range map[string]struct {
		token, info claims
		accepted    bool
	}{
		"nothing said":            {claims{}, claims{}, true},
		"true":                    {claims{"email_verified": true}, claims{}, true},
		"text true":               {claims{}, claims{"email_verified": "true"}, true},
		"false":                   {claims{"email_verified": false}, claims{}, false},
		"user info false":         {claims{}, claims{"email_verified": false}, false},
		"text false":              {claims{}, claims{"email_verified": "false"}, false},
		"another text":            {claims{"email_verified": "no"}, claims{}, false},
		"user info contradicts":   {claims{"email_verified": false}, claims{"email_verified": true}, false},
		"user info contradicts 2": {claims{"email_verified": true}, claims{"email_verified": "false"}, false},
		"text contradicts":        {claims{"email_verified": false}, claims{"email_verified": "true"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProvider(t, key)
			p.token, p.info = test.token, test.info
			p.token["email"], p.info["email"], p.info["groups"] = "ana@example.com", "ana@example.com", []string{"ops"}
			l, err := access.NewLogin(access.LoginConfig{
				Issuer: p.url, ClientID: "redrive", PublicURL: "http://redrive.example",
				Groups: map[string]access.Role{"ops": access.Admin}, Store: &people{sessions: map[string]driver.Session{}},
			})
			require.NoError(t, err)
			w := httptest.NewRecorder()
			require.NoError(t, l.Start(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/login", nil)))
			started, err := url.Parse(w.Header().Get("Location"))
			require.NoError(t, err)
			p.nonce = started.Query().Get("nonce")
			back := url.Values{"code": {"code"}, "state": {started.Query().Get("state")}}
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/login/callback?"+back.Encode(), nil)
			for _, c := range w.Result().Cookies() {
				r.AddCookie(c)
			}
			who, _, err := l.Finish(httptest.NewRecorder(), r)
			if !test.accepted {
				require.ErrorIs(t, err, access.ErrLogin)
				require.ErrorContains(t, err, "has not verified the address ana@example.com")
				return
			}
			require.NoError(t, err)
			require.Equal(t, access.Principal{Name: "ana@example.com", Role: access.Admin}, who)
		})
	}
}
