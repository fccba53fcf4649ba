package dashboard

import (
	"encoding/base64"
	"net/http"
	"strings"
)

// The result of a change is shown on the next page, once: the text is in a cookie until then. It is displayed as text
// like everything else.
const flashCookie = "redrive_said"

// maxFlash limits the text, so that browsers accept the cookie.
const maxFlash = 1024

// see sends the browser to where the change can be seen, and reports it there. The path is below the prefix.
func (d *dashboard) see(w http.ResponseWriter, r *http.Request, path, said string) {
	said = strings.ToValidUTF8(said[:min(len(said), maxFlash)], "")
	http.SetCookie(w, d.cookie(r, base64.RawURLEncoding.EncodeToString([]byte(said)), 60))
	w.Header().Set("Location", d.cfg.Prefix+path)
	w.WriteHeader(http.StatusSeeOther)
}

func (d *dashboard) cookie(r *http.Request, value string, maxAge int) *http.Cookie {
	return &http.Cookie{ //nolint:gosec // G124: a server on this machine has no TLS
		Name: flashCookie, Value: value, Path: d.cfg.Prefix + "/", MaxAge: maxAge, HttpOnly: true, Secure: r.TLS != nil,
		SameSite: http.SameSiteStrictMode,
	}
}

// takeFlash is the result of the last change, unless it was shown already.
func (d *dashboard) takeFlash(w http.ResponseWriter, r *http.Request) string {
	c, err := r.Cookie(flashCookie)
	if err != nil || c.Value == "" {
		return ""
	}
	http.SetCookie(w, d.cookie(r, "", -1))
	said, err := base64.RawURLEncoding.DecodeString(c.Value)
	if err != nil {
		return ""
	}
	return strings.ToValidUTF8(string(said), "")
}
