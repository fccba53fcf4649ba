package dlqhttp_test

import (
	"crypto/sha256"
	"encoding/base64"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq/dlqhttp"
)

// The page of the API lists every route of the document once, loads nothing from other servers, and its policy allows
// only its own style.
func TestDocs(t *testing.T) {
	s := newServer(t, func(c *dlqhttp.Config) { c.Auth, c.Prefix = bearer(t), "/ops" })
	require.Equal(t, http.StatusUnauthorized, s.ask(t, http.MethodGet, "/api/v1/docs", "").status)
	require.Equal(t, http.StatusMethodNotAllowed, s.ask(t, http.MethodPost, "/api/v1/docs", "", as("admin")...).status)
	a := s.ask(t, http.MethodGet, "/api/v1/docs", "", as("viewer")...)
	require.Equal(t, http.StatusOK, a.status, a.body)
	require.Equal(t, "text/html; charset=utf-8", a.header.Get("Content-Type"))

	listed := map[string]int{}
	row := regexp.MustCompile(`<tr><td>(\w+)</td><td><code>([^<]+)</code></td><td>([^<]+)</td><td>(\w+)</td><td>(yes|no)</td></tr>`)
	for _, m := range row.FindAllStringSubmatch(a.body, -1) {
		listed[m[1]+" /api/v1"+html.UnescapeString(m[2])+" "+m[4]+" "+m[5]]++
	}
	want := map[string]int{}
	for _, op := range operations(t, s, as("viewer")...) {
		changes := map[bool]string{true: "yes", false: "no"}[op.changes]
		want[op.method+" "+op.path+" "+op.role+" "+changes] = 1
	}
	require.Equal(t, want, listed)

	style := regexp.MustCompile(`(?s)<style>(.*)</style>`).FindStringSubmatch(a.body)
	require.Len(t, style, 2)
	sum := sha256.Sum256([]byte(style[1]))
	require.Equal(t, "default-src 'none'; style-src 'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+
		"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'", a.header.Get("Content-Security-Policy"))
	require.NotRegexp(t, `<script|<link|<img|<iframe|\bsrc=|\bstyle=|url\(|@import|//[a-z]`, a.body)
	for _, m := range regexp.MustCompile(`href="([^"]+)"`).FindAllStringSubmatch(a.body, -1) {
		at, err := url.Parse("/api/v1/docs")
		require.NoError(t, err)
		at, err = at.Parse(m[1])
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, s.ask(t, http.MethodGet, strings.TrimPrefix(at.Path, "/ops"), "",
			as("viewer")...).status, m[1])
	}
}
