package dashboard

import (
	"encoding/base64"
	"net/http"
	"strings"
)

// What a change did is shown on the next page, once: the text travels in a cookie that lives until then. It is shown as
// text like anything else.
const flashCookie = "redrive_said"

// maxFlash bounds the text, so that the cookie is one that browsers take.
const maxFlash = 1024

// see reports what was done and sends the browser to where it can be seen. The path is below the prefix.
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

// takeFlash is what the last change said, if it was not shown yet.
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
