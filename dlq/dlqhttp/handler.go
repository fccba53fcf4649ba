package dlqhttp

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/callers"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/dashboard"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/operations"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/problem"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/rest"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/visible"
	"github.com/redrive-go/redrive/dlq/driver"
)

// Handler serves a Manager over HTTP. It is safe for concurrent use.
type Handler struct {
	cfg  Config
	api  *rest.API
	root http.Handler
	// table are the routes of root.
	table []access.Route
	trail *auditTrail
	// public is the health for callers without credentials.
	public publicHealth
}

// New makes a Handler. The error reports every fault of the configuration.
func New(cfg Config) (*Handler, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	h := &Handler{cfg: cfg, trail: &auditTrail{
		manager: cfg.Manager, logger: cfg.Logger, reads: cfg.AuditReads, limit: access.NewLimiter(guessRate, guessBurst),
		omitted: map[string]int{},
	}}
	guard, err := access.NewGuard(access.GuardConfig{
		Auth: cfg.Auth, Hosts: cfg.Hosts, Origins: cfg.Origins, Rate: cfg.Limits.Rate, Burst: cfg.Limits.Burst,
		Logger: cfg.Logger, Unauthorized: h.unauthorized,
	})
	if err != nil {
		return nil, fmt.Errorf("dlqhttp: %w", err)
	}
	h.root = limitSlowClients(h.recovered(h.secured(h.routes(guard))))
	return h, nil
}

// ServeHTTP answers a request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.root.ServeHTTP(w, r) }

// EndStreams ends the open progress streams, for which a server that shuts down would wait: pass it to
// [http.Server.RegisterOnShutdown]. The rest continues. Call it once.
func (h *Handler) EndStreams() { h.api.EndStreams() }

// OpenAPI is the API's OpenAPI 3.1 document, as YAML. It is served at /api/v1/openapi.yaml, and openapi.yaml in this
// package's directory is a copy of it.
func (h *Handler) OpenAPI() ([]byte, error) {
	text, err := h.api.Document().YAML()
	if err != nil {
		return nil, fmt.Errorf("dlqhttp: document: %w", err)
	}
	return text, nil
}

// routes registers everything.
func (h *Handler) routes(guard *access.Guard) http.Handler {
	prefix, mux := h.cfg.Prefix, &access.Mux{}
	mux.Route(prefix+"/livez", access.None, false, problem.Get(http.HandlerFunc(h.livez)))
	mux.Route(prefix+"/readyz", access.None, false, problem.Get(guard.Recognize(http.HandlerFunc(h.readyz))))
	if h.cfg.Metrics != nil {
		mux.Route(prefix+"/metrics", access.Metrics, false,
			problem.Get(guard.Protect(access.Require(access.Metrics, h.cfg.Metrics))))
	}
	h.loginRoutes(mux, guard)
	bodies := callers.NewSlots("requests with large bodies", 20, 4, 4, slotWait)
	viewers := func(next http.Handler) http.Handler {
		return guard.Protect(access.Require(access.Viewer, bodies.LimitBodies(h.api.Streams, next)))
	}
	shared, api := h.operations(), &access.Mux{}
	h.api = rest.New(api, shared)
	mux.Mount(prefix+rest.Base+"/", h.api.Routes(), viewers(h.api.Idempotent(problem.Mux(api))))
	pages := dashboard.New(shared)
	mux.Mount(prefix+"/", pages.Routes(), viewers(pages))
	h.table = mux.Routes()
	return problem.Mux(mux)
}

// operations is what the API and the dashboard share.
func (h *Handler) operations() operations.Config {
	c := &h.cfg
	shared := operations.Config{
		Manager: c.Manager, Runner: c.Runner, Prefix: c.Prefix, ReadOnly: c.ReadOnly, Health: h.health,
		Topology: c.Topology, Depths: c.Depths, Settings: c.Settings, Rate: c.Rate, Rules: c.Rules, Retention: c.Retention,
		Limits: c.Limits, Logger: c.Logger, Interval: cmp.Or(c.interval, refreshInterval),
		Visible: h.visible, Refused: h.trail.refused, Read: h.trail.read, AuditReads: c.AuditReads,
		ShowFaults: c.ShowFaults,
		// SQLite has 4 readers, and people have several pages open.
		Searches: callers.NewSlots("searches in texts", 3, 2, 0, slotWait),
	}
	if c.Login != nil {
		shared.Session = c.Login.HasSession
	}
	return shared
}

// slotWait is how long to wait for others of the same kind to end.
const slotWait = 10 * time.Second

// refreshInterval is how often a page refreshes.
const refreshInterval = 5 * time.Second

// visible is the caller's view.
func (h *Handler) visible(ctx context.Context) visible.View {
	var view visible.View
	if !access.From(ctx).Role.Allows(h.cfg.RevealTo) {
		view = visible.New(h.cfg.Redaction, h.cfg.RevealTo.String(), h.cfg.Manager.Groups)
	}
	view.AuditReads = h.cfg.AuditReads
	return view
}

// recovered answers 500 when a handler panics.
func (h *Handler) recovered(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { //nolint:contextcheck // there is no other than the request's
			switch fault := recover(); fault {
			case nil:
			case http.ErrAbortHandler:
				panic(fault) // on purpose: it breaks the connection
			default:
				h.cfg.Logger.ErrorContext(r.Context(), "panic while serving a request", "path", r.URL.Path, "panic",
					fmt.Sprint(fault), "stack", string(debug.Stack()))
				problem.Write(w, r, http.StatusInternalServerError, "an internal error; the server's log has the details")
			}
		}()
		next.ServeHTTP(w, r)
	})
}

// secured sets the headers of every response. The dashboard relaxes the policy for its pages.
func (h *Handler) secured(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("X-Frame-Options", "DENY")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		header.Set("Cache-Control", "no-store")
		if r.TLS != nil || strings.HasPrefix(h.cfg.PublicURL, "https:") {
			header.Set("Strict-Transport-Security", "max-age=31536000")
		}
		// net/http ignores a Content-Length next to Transfer-Encoding, and keeps the connection. A proxy that trusted the
		// length has sent part of the next request as this body, or vice versa.
		if len(r.TransferEncoding) > 0 {
			header.Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

// livez answers while the program runs.
func (h *Handler) livez(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]string{"status": StatusOK})
}

// readyz reports whether the program is ready: the status of each component to everyone, the reasons to viewers.
func (h *Handler) readyz(w http.ResponseWriter, r *http.Request) {
	var report Health
	if access.From(r.Context()).Role.Allows(access.Viewer) {
		report = h.visible(r.Context()).Health(h.health(r.Context()))
	} else {
		report = h.public.report(r.Context(), h.health)
	}
	status := http.StatusOK
	if report.Status != StatusOK {
		status = http.StatusServiceUnavailable
	}
	writeJSON(w, status, report)
}

func (h *Handler) health(ctx context.Context) Health {
	ctx, cancel := context.WithTimeout(ctx, operations.HealthTimeout)
	defer cancel()
	if h.cfg.Health != nil {
		return h.cfg.Health(ctx)
	}
	var report Health
	report.Add("store", h.cfg.Manager.Ping(ctx), Component{})
	return report
}

func writeJSON(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(value) // the client disconnected: no reader is left for the error
}

// auditTrail records in the audit log what changes nothing: guesses at hidden values, and, if configured, reads.
type auditTrail struct {
	manager *dlq.Manager
	logger  *slog.Logger
	reads   bool
	// limit limits the records of each caller, so that no caller can fill the log. omitted counts those beyond the limit
	// for the caller's next record.
	limit *access.Limiter

	mu      sync.Mutex
	omitted map[string]int
}

// The burst and the rate per second of one caller's guesses.
const (
	guessBurst = 100
	guessRate  = 0.2
	maxOmitted = 1000 // callers
)

// refused records that a caller asked for hidden values, but not for which ones: others can read the record.
func (t *auditTrail) refused(ctx context.Context, err *visible.RefusedError) {
	who := access.From(ctx)
	t.logger.WarnContext(ctx, "a request for hidden values was refused", "actor", who.Name, "role", who.Role.String(),
		"field", err.Field)
	detail := map[string]string{"field": err.Field, "role": who.Role.String()}
	if !t.allowed(who.Identity(), detail) {
		return
	}
	record := driver.AuditRecord{
		At: t.manager.Now(ctx), Actor: who.Name, Action: driver.ActionRefused, EntryID: err.Entry, Detail: detail,
	}
	if err := t.manager.Record(ctx, record); err != nil {
		t.logger.ErrorContext(ctx, "a refused request for hidden values could not be recorded in the audit log", "actor", who.Name,
			"error", err)
	}
}

// allowed reports whether the caller may have another record, and adds to its detail how many were omitted.
func (t *auditTrail) allowed(identity string, detail map[string]string) bool {
	_, ok := t.limit.Allow(identity)
	t.mu.Lock()
	defer t.mu.Unlock()
	if !ok {
		if len(t.omitted) < maxOmitted || t.omitted[identity] > 0 {
			t.omitted[identity]++
		}
		return false
	}
	if n := t.omitted[identity]; n > 0 {
		detail["more"] = strconv.Itoa(n)
		delete(t.omitted, identity)
	}
	return true
}

// read records that a caller is about to see the messages of entries. If that fails, they are not shown.
func (t *auditTrail) read(ctx context.Context, what string, entries ...int64) error {
	if !t.reads || len(entries) == 0 {
		return nil
	}
	who, at := access.From(ctx), t.manager.Now(ctx)
	records := make([]driver.AuditRecord, len(entries))
	for i, id := range entries {
		records[i] = driver.AuditRecord{
			At: at, Actor: who.Name, Action: driver.ActionRead, EntryID: id,
			Detail: map[string]string{"as": what, "role": who.Role.String()},
		}
	}
	if err := t.manager.Record(ctx, records...); err != nil {
		return fmt.Errorf("the read could not be recorded, so nothing is shown: %w", err)
	}
	return nil
}

const (
	// sendTimeout is how long a client may take to read a part of a response: the whole may take as long as its size
	// requires.
	sendTimeout = 30 * time.Second
	sendPart    = 64 << 10
)

// limitSlowClients limits how long to wait for a client that sends no body, or does not read its response: otherwise it
// would keep a connection, and what the route holds, forever. The server around the handler cannot do it, because
// imports, exports and progress streams have no time limit.
func limitSlowClients(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out := &patientWriter{ResponseWriter: w, control: http.NewResponseController(w)}
		if r.Body != nil && r.Body != http.NoBody {
			// In a copy: net/http closes a connection whose body was abandoned only where it finds its own body in its own
			// request. Otherwise the rest of the body would be the next request.
			r = r.WithContext(r.Context())
			out.body = &patientBody{ReadCloser: r.Body}
			r.Body = out.body
			_ = out.SetReadDeadline(time.Now().Add(rest.BodyTimeout)) // where there are no deadlines, nothing is waited for
		}
		next.ServeHTTP(out, r)
		_ = out.control.SetWriteDeadline(time.Now().Add(sendTimeout)) // for what net/http has buffered
	})
}

// patientWriter gives the client time for each part of what is written, and sets no deadline in between: HTTP/2 resets
// a stream at its deadline, even when nothing is waiting to be written.
type patientWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	body    *patientBody // nil without one
}

// Write writes p in parts.
func (w *patientWriter) Write(p []byte) (n int, err error) {
	for {
		part := p[n:min(n+sendPart, len(p))]
		var m int
		err = w.within(func() (err error) { m, err = w.ResponseWriter.Write(part); return err })
		if n += m; err != nil || n == len(p) {
			return n, err
		}
	}
}

// FlushError is for http.ResponseController.
func (w *patientWriter) FlushError() error { return w.within(w.control.Flush) }

func (w *patientWriter) within(send func() error) error {
	_ = w.control.SetWriteDeadline(time.Now().Add(sendTimeout)) // where there are no deadlines, nothing is waited for
	err := send()
	_ = w.control.SetWriteDeadline(time.Time{}) // as above
	return err
}

// SetReadDeadline sets the deadline for the body. After the body's end net/http itself reads, to notice that the client
// is gone, and would apply a deadline to that.
func (w *patientWriter) SetReadDeadline(t time.Time) error {
	if w.body == nil || w.body.ended.Load() {
		return nil
	}
	return w.control.SetReadDeadline(t)
}

// Unwrap is for http.ResponseController.
func (w *patientWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// patientBody records whether it was read to its end.
type patientBody struct {
	io.ReadCloser
	ended atomic.Bool
}

// Read reads.
func (b *patientBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.ended.Store(true)
	}
	return n, err
}
