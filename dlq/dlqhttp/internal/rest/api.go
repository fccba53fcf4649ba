// Package rest is the REST API: its routes, its document, and what their answers look like.
package rest

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"reflect"
	"strings"
	"time"

	"github.com/redrive-go/redrive/dlq/redrive"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/callers"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/visible"
	"github.com/redrive-go/redrive/dlq/wire"
)

// Config configures the API; dlqhttp.Config explains the fields.
type Config struct {
	Manager  *dlq.Manager
	Runner   *redrive.Runner
	Path     string // prefix and /api/v1
	ReadOnly bool
	Visible  func(context.Context) visible.View
	Refused  func(context.Context, *visible.RefusedError)
	// AuditReads means that Read records.
	AuditReads bool
	Read       func(ctx context.Context, what string, entries ...int64) error
	Health     func(context.Context) wire.Health
	Topology   func(context.Context) (any, error)
	Settings   any
	Rules      []redrive.Rule
	Retention  dlq.Retention
	Body       int64
	Import     int64
	Streams    int
	Timeout    time.Duration
	ShowFaults bool
	Logger     *slog.Logger
}

// API is the REST API.
type API struct {
	cfg     Config
	huma    huma.API
	answers *callers.Answers
	streams *callers.Streams
	closing chan struct{} // closed to end the streams
}

// Extensions of the document.
const (
	// ExtRole is the least role that a route requires.
	ExtRole = "x-role"
	// ExtChanges means that a route changes something: a read-only server refuses it.
	ExtChanges = "x-changes"
)

// Version of the API, and Base, its path below the prefix.
const (
	Version = "1.0.0"
	Base    = "/api/v1"
)

const description = `Look at dead letters, group them, fix them, send them back to where they came from, and watch what happens to them.

x-role is the least role that a route asks for: viewer, operator, approver, admin. x-changes marks a route that changes something, which a
read-only server refuses.

Errors are application/problem+json; a refused request has changed nothing:

- 400, 422: the request is invalid; detail names what and where
- 401: credentials are missing or wrong; 403: the role, or the server, does not allow it
- 404: there is no such entry, run or route; 405: not with this method
- 409: someone else was faster; conflict has who, and when
- 412: If-Match names a version that is not the latest; conflict names who changed it
- 413: the body is too large; 415: it is not of a type that the route takes
- 429: too many requests; 503: the store or the broker does not answer. Retry-After is when to try again
`

// New makes the API and registers its routes with mux, below cfg.Path.
func New(mux *access.Mux, cfg Config) *API {
	a := &API{
		cfg: cfg, answers: callers.NewAnswers(), streams: callers.NewStreams(cfg.Streams), closing: make(chan struct{}),
	}
	schemas := newSchemas()
	a.huma = humago.NewWithPrefix(mux, cfg.Path, huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info: &huma.Info{
				Title: "Redrive", Version: Version, Description: description,
				License: &huma.License{Name: "MIT", Identifier: "MIT"},
			},
			Servers: []*huma.Server{{URL: cfg.Path}},
			Tags:    tags(),
			Components: &huma.Components{
				Schemas: schemas,
				Responses: map[string]*huma.Response{"Problem": {
					Description: "What went wrong, and what to do about it",
					Content: map[string]*huma.MediaType{problemType: {Schema: schemas.Schema(reflect.TypeFor[Problem](), true,
						"")}},
				}},
				SecuritySchemes: map[string]*huma.SecurityScheme{
					"token": {
						Type: "http", Scheme: "bearer",
						Description: "A token that the server's configuration has the SHA-256 of.",
					},
					"password": {Type: "http", Scheme: "basic"},
				},
			},
			Security: []map[string][]string{{"token": {}}, {"password": {}}, {}},
		},
		OpenAPIPath: "/openapi", Formats: map[string]huma.Format{
			"application/json": huma.DefaultJSONFormat,
			"json":             huma.DefaultJSONFormat,
		},
		DefaultFormat: "application/json", RejectUnknownQueryParameters: true, Transformers: []huma.Transformer{explain},
	})
	a.huma.UseMiddleware(a.allowed, a.bounded)
	a.entryRoutes()
	a.changeRoutes()
	a.editRoutes()
	a.transferRoutes()
	a.purgeRoutes()
	a.groupRoutes()
	a.reportRoutes()
	a.runRoutes()
	a.streamRoutes()
	a.aboutRoutes()
	a.validationRoutes()
	delete(schemas.Map(), "ErrorModel") // Problem says more
	a.docsRoutes(mux)
	return a
}

// tags are the chapters of the document.
func tags() []*huma.Tag {
	return []*huma.Tag{
		{Name: "entries", Description: "Dead letters: look, fix, send back, close."},
		{Name: "groups", Description: "Causes and numbers."},
		{Name: "runs", Description: "Redrive runs: bulk redrives that can be watched and steered."},
		{Name: "maintenance", Description: "Export, import, purge, archive."},
		{Name: "about", Description: "The server: health, rules, topology, settings."},
		{Name: "validation", Description: "The four routes of services that had their own dead letter table."},
	}
}

// Document is the API's OpenAPI document.
func (a *API) Document() *huma.OpenAPI { return a.huma.OpenAPI() }

// Routes are what the API serves: its document's operations with their roles, and the pages of the document for
// viewers.
func (a *API) Routes(mux *access.Mux) []access.Route {
	routes := mux.Routes()
	for i := range routes {
		r := &routes[i]
		item := a.huma.OpenAPI().Paths[strings.TrimPrefix(r.Path, a.cfg.Path)]
		if item == nil {
			continue
		}
		if op := operationOf(item, r.Method); op != nil {
			r.Least, _ = op.Metadata["role"].(access.Role)
			r.Changes, _ = op.Metadata["changes"].(bool)
		}
	}
	return routes
}

// Idempotent gives a repeated request with a key the same response as the first.
func (a *API) Idempotent(next http.Handler) http.Handler {
	return a.answers.Idempotent(a.cfg.Body, next)
}

// EndStreams ends the open progress streams, and refuses new ones: a server that shuts down would wait for them. Call
// it once.
func (a *API) EndStreams() { close(a.closing) }

// route is a route without its handler.
type route struct {
	id, method, path, tag, summary, description string
	role                                        access.Role
	changes                                     bool // refused by a read-only server
	slow                                        bool // has no time limit
	status                                      int
}

// operation makes the route's part of the document.
func (a *API) operation(r route) huma.Operation {
	op := huma.Operation{
		OperationID: r.id, Method: r.method, Path: r.path, Summary: r.summary, Description: r.description,
		Tags: []string{r.tag},
		// huma refuses at the bound, not above it
		DefaultStatus: r.status, MaxBodyBytes: a.cfg.Body + 1, BodyReadTimeout: BodyTimeout,
		Extensions: map[string]any{ExtRole: r.role.String()},
		Metadata:   map[string]any{"role": r.role, "changes": r.changes, "slow": r.slow},
	}
	if r.changes {
		op.Extensions[ExtChanges] = true
	}
	return op
}

// BodyTimeout is how long a client may take to send a body of ordinary size, and each part of an import.
const BodyTimeout = 30 * time.Second

// readRoute is a route for viewers that changes nothing.
func readRoute(tag, id, path, summary string) route {
	return route{id: id, method: http.MethodGet, path: path, tag: tag, summary: summary, role: access.Viewer}
}

// changeRoute is a route that changes something.
func changeRoute(least access.Role, tag, id, path, summary string) route {
	return route{id: id, method: http.MethodPost, path: path, tag: tag, summary: summary, role: least, changes: true}
}

// handle registers a route whose response is only a body.
func handle[I, B any](a *API, r route, do func(context.Context, *I) (*B, error)) {
	handleOutput(a, r, func(ctx context.Context, in *I) (*output[B], error) {
		body, err := do(ctx, in)
		if err != nil {
			return nil, err
		}
		return &output[B]{*body}, nil
	})
}

// handleOutput registers a route whose response has headers as well.
func handleOutput[I, O any](a *API, r route, do func(context.Context, *I) (*O, error)) {
	register(a, a.operation(r), do)
	a.finish(r)
}

// register registers an operation. It refuses requests that no store can hold, and turns errors into problems.
func register[I, O any](a *API, op huma.Operation, do func(context.Context, *I) (*O, error)) {
	huma.Register(a.huma, op, func(ctx context.Context, in *I) (*O, error) {
		if err := plain(in); err != nil {
			return nil, err
		}
		out, err := do(ctx, in)
		if err == nil {
			return out, nil
		}
		var version int64
		if match, ok := any(in).(interface{ version() (int64, error) }); ok {
			version, _ = match.version() // an invalid one is err already
		}
		return nil, a.fail(ctx, err, version)
	})
}

// finish completes the document of a registered route.
func (a *API) finish(r route) {
	op := operationOf(a.huma.OpenAPI().Paths[r.path], r.method)
	op.Responses["default"] = &huma.Response{Ref: "#/components/responses/Problem"}
	if r.changes && r.method == http.MethodPost && r.id != "import-entries" && r.id != "start-run" {
		op.Parameters = append(op.Parameters, &huma.Param{
			Name: callers.KeyHeader, In: "header", Schema: &huma.Schema{Type: huma.TypeString, MaxLength: new(callers.MaxKey)},
			Description: "Makes the request safe to repeat: within a day, the same key with the same body gets the first " +
				"answer again.",
		})
	}
}

func operationOf(p *huma.PathItem, method string) *huma.Operation {
	switch method {
	case http.MethodGet:
		return p.Get
	case http.MethodPost:
		return p.Post
	case http.MethodPut:
		return p.Put
	case http.MethodPatch:
		return p.Patch
	default:
		return p.Delete
	}
}

// allowed refuses callers without the role, and changes on a read-only server.
func (a *API) allowed(ctx huma.Context, next func(huma.Context)) {
	op := ctx.Operation()
	least, _ := op.Metadata["role"].(access.Role) // None if it was forgotten, which refuses everyone
	who := access.From(ctx.Context())
	changes, _ := op.Metadata["changes"].(bool)
	switch {
	case !who.Role.Allows(least):
		a.cfg.Logger.WarnContext(ctx.Context(), "request refused", "actor", who.Name, "role", who.Role.String(), "route",
			op.OperationID)
		_ = huma.WriteErr(a.huma, ctx, http.StatusForbidden, access.Refusal(who, least)) // reports itself
	case changes && a.cfg.ReadOnly:
		// reports itself
		_ = huma.WriteErr(a.huma, ctx, http.StatusForbidden,
			"this server is read-only (server.read_only): nothing is changed")
	case changes && op.RequestBody == nil && a.tooLarge(ctx):
		_ = huma.WriteErr(a.huma, ctx, http.StatusRequestEntityTooLarge, "this request has no body") // reports itself
	default:
		next(ctx)
	}
}

// tooLarge discards a body where none is expected, and reports whether there is too much of it.
func (a *API) tooLarge(ctx huma.Context) bool {
	body := ctx.BodyReader()
	if body == nil {
		return false
	}
	n, _ := io.CopyN(io.Discard, body, a.cfg.Body+1) // an unreadable body is empty
	return n > a.cfg.Body
}

// bounded limits the time of a request.
func (a *API) bounded(ctx huma.Context, next func(huma.Context)) {
	if slow, _ := ctx.Operation().Metadata["slow"].(bool); slow {
		next(ctx)
		return
	}
	bounded, cancel := context.WithTimeout(ctx.Context(), a.cfg.Timeout)
	defer cancel()
	next(huma.WithContext(ctx, bounded))
}

// visible is the caller's view.
func (a *API) visible(ctx context.Context) visible.View { return a.cfg.Visible(ctx) }

// identity is the key under which a caller's idempotency keys are kept.
func identity(ctx context.Context) string {
	who := access.From(ctx)
	return who.Identity()
}

// by is the author of a change.
func by(ctx context.Context, note string) dlq.By {
	return dlq.By{Actor: access.From(ctx).Name, Note: note}
}
