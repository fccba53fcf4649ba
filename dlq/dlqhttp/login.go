package dlqhttp

import (
	"errors"
	"net/http"
	"net/url"

	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/problem"
)

// LoginConfig configures logins with an OpenID provider; see [NewLogin].
type LoginConfig = access.LoginConfig

// Login is how people log in; see [Config.Login].
type Login = access.Login

// NewLogin makes a Login. The error reports every fault of the configuration.
func NewLogin(cfg LoginConfig) (*Login, error) { return access.NewLogin(cfg) }

// loginRoutes are for callers without credentials.
func (h *Handler) loginRoutes(mux *access.Mux, guard *access.Guard) {
	if h.cfg.Login == nil {
		return
	}
	prefix := h.cfg.Prefix
	mux.Route("GET "+prefix+access.LoginPath, access.None, false, guard.Open(http.HandlerFunc(h.startLogin)))
	mux.Route("GET "+prefix+access.CallbackPath, access.None, false, guard.Open(http.HandlerFunc(h.finishLogin)))
	mux.Route("POST "+prefix+access.LogoutPath, access.None, false, guard.Open(http.HandlerFunc(h.logout)))
}

func (h *Handler) startLogin(w http.ResponseWriter, r *http.Request) {
	if err := h.cfg.Login.Start(w, r); err != nil {
		h.cfg.Logger.ErrorContext(r.Context(), "a login could not begin", "error", err)
		h.plainPage(w, http.StatusServiceUnavailable, "The login provider does not answer", "Try again in a minute.",
			h.home())
	}
}

func (h *Handler) finishLogin(w http.ResponseWriter, r *http.Request) {
	who, to, err := h.cfg.Login.Finish(w, r)
	switch {
	case errors.Is(err, access.ErrLogin):
		h.cfg.Logger.WarnContext(r.Context(), "login rejected", "remote", r.RemoteAddr, "error", err)
		h.plainPage(w, http.StatusUnauthorized, "The login did not succeed", "Begin again. The server's log has the reason.",
			h.home())
	case err != nil:
		h.cfg.Logger.ErrorContext(r.Context(), "login failed", "error", err)
		h.plainPage(w, http.StatusServiceUnavailable, "The login failed", "Try again in a minute.", h.home())
	case who.Role <= access.None:
		h.cfg.Logger.WarnContext(r.Context(), "login without a role", "actor", who.Name, "remote", r.RemoteAddr)
		h.plainPage(w, http.StatusForbidden, "You have no role here",
			who.Name+" has no role on this server. Ask the people who run it.", "")
	default:
		h.cfg.Logger.InfoContext(r.Context(), "logged in", "actor", who.Name, "role", who.Role.String())
		http.Redirect(w, r, to, http.StatusSeeOther) //nolint:gosec // G710: a path of this server, see local
	}
}

func (h *Handler) logout(w http.ResponseWriter, r *http.Request) {
	if err := h.cfg.Login.End(w, r); err != nil {
		h.cfg.Logger.ErrorContext(r.Context(), "a logout failed", "error", err)
		problem.Write(w, r, http.StatusServiceUnavailable, "the store does not answer: you are still logged in")
		return
	}
	h.plainPage(w, http.StatusOK, "You are logged out", "You may still be logged in at the provider.", h.home())
}

func (h *Handler) home() string { return h.cfg.Prefix + "/" }

// unauthorized is the page for an unknown person; programs get a problem. It reports whether the request is a person's.
func (h *Handler) unauthorized(w http.ResponseWriter, r *http.Request) bool {
	if !problem.ForPerson(r) {
		return false
	}
	to := h.home() // nothing can be sent again after a login
	if h.cfg.Login != nil {
		if r.Method == http.MethodGet {
			to = r.URL.RequestURI()
		}
		w.Header().Set("WWW-Authenticate", `Bearer realm="redrive"`) // for Basic a browser would ask before the page
	}
	h.plainPage(w, http.StatusUnauthorized, "Log in to see this",
		"This server shows dead letters to people and programs that it knows.", to)
	return true
}

// plainPage is a page without styles and scripts. to, unless empty, is where a login leads.
func (h *Handler) plainPage(w http.ResponseWriter, status int, title, text, to string) {
	login := ""
	if h.cfg.Login != nil && to != "" {
		login = h.cfg.Prefix + access.LoginPath + "?" + url.Values{"to": {to}}.Encode()
	}
	problem.Page(w, status, title, text, login)
}
