package dlqhttp

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/problem"
	"github.com/redrive-go/redrive/dlq/redact"
)

// Handler serves a [Manager] over HTTP. It is safe for concurrent use and has nothing to close.
type Handler struct {
	cfg  Config
	root http.Handler
}

// New makes a Handler. The error names everything that is wrong with the configuration.
func New(cfg Config) (*Handler, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	h := &Handler{cfg: cfg}
	h.root = h.routes()
	return h, nil
}

// ServeHTTP answers a request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.root.ServeHTTP(w, r) }

// routes puts everything where it is served.
func (h *Handler) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+h.cfg.Prefix+"/livez", h.livez)
	mux.HandleFunc("GET "+h.cfg.Prefix+"/readyz", h.readyz)
	if h.cfg.Metrics != nil {
		mux.Handle("GET "+h.cfg.Prefix+"/metrics", access.Require(access.Viewer, h.cfg.Metrics))
	}
	mux.HandleFunc(h.cfg.Prefix+"/", func(w http.ResponseWriter, r *http.Request) {
		problem.Write(w, http.StatusNotFound, "nothing is served at "+r.URL.Path)
	})
	return mux
}

// visible are the rules that hold for who asks: nil, which hides nothing, for who may see.
func (h *Handler) visible(ctx context.Context) *redact.Rules {
	if access.From(ctx).Role.Allows(h.cfg.RevealTo) {
		return nil
	}
	return h.cfg.Redaction
}

// livez says that the program runs.
func (h *Handler) livez(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]string{"status": StatusOK})
}

// healthTimeout is how long a component may take to answer.
const healthTimeout = 3 * time.Second

// readyz says whether the program can do its work.
func (h *Handler) readyz(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), healthTimeout)
	defer cancel()
	report := h.health(ctx)
	status := http.StatusOK
	if report.Status != StatusOK {
		status = http.StatusServiceUnavailable
	}
	writeJSON(w, status, report)
}

func (h *Handler) health(ctx context.Context) Health {
	if h.cfg.Health != nil {
		return h.cfg.Health(ctx)
	}
	var report Health
	report.Add("store", h.cfg.Manager.Ping(ctx), Component{})
	return report
}

func writeJSON(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(value) // the client has gone: nobody is left to be told
}
