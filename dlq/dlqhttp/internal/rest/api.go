// Package rest is the REST API: its routes, its document, and what their answers look like.
package rest

import (
	"cmp"
	"context"
	"io"
	"net/http"
	"reflect"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/callers"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/operations"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/problem"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/visible"
	"github.com/redrive-go/redrive/dlq/wire"
)

// API is the REST API.
type API struct {
	cfg     operations.Config
	mux     *access.Mux
	path    string // prefix and Base
	huma    huma.API
	answers *callers.Answers
	streams *callers.Slots
	closing chan struct{} // closed to end the streams
	routes  []route       // as registered
}

// Extensions of the document.
const (
	// ExtRole is the lowest role that may use a route.
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

x-role is the lowest role that may use a route: viewer, operator, approver, admin. x-changes marks a route that changes something, which a
read-only server refuses.

Errors are application/problem+json; a refused request has changed nothing:

- 400, 422: the request is invalid; detail names what and where
- 401: credentials are missing or wrong; 403: the role, or the server, does not allow it
- 404: there is no such entry, run or route; 405: not with this method
- 409: someone else was faster; conflict has who, and when
- 412: If-Match names a version that is not the latest; conflict names who changed it
- 413: the body is too large; 415: it is not of a type that the route takes
- 429: too many requests; 503, 504: the store or the broker does not answer, or not in time. Retry-After is when to try again
`

// New makes the API and registers its routes with mux, below the prefix and Base.
func New(mux *access.Mux, cfg operations.Config) *API {
	a := &API{
		cfg: cfg, mux: mux, path: cfg.Prefix + Base, answers: callers.NewAnswers(), closing: make(chan struct{}),
		streams: callers.NewSlots("progress streams", cfg.Limits.Streams, max(1, cfg.Limits.Streams/10),
			cfg.Limits.Streams/10, 0),
	}
	schemas, format := newSchemas(), huma.Format{Marshal: huma.DefaultJSONFormat.Marshal, Unmarshal: readJSON}
	a.huma = humago.NewWithPrefix(mux, a.path, huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info: &huma.Info{
				Title: "Redrive", Version: Version, Description: description,
				License: &huma.License{Name: "MIT", Identifier: "MIT"},
			},
			Servers: []*huma.Server{{URL: a.path}},
			Tags:    tags(),
			Components: &huma.Components{
				Schemas: schemas,
				Responses: map[string]*huma.Response{"Problem": {
					Description: "What went wrong, and what to do about it",
					Content: map[string]*huma.MediaType{problem.ContentType: {Schema: schemas.Schema(reflect.TypeFor[Problem](), true,
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
			"application/json": format,
			"json":             format,
		},
		DefaultFormat: "application/json", RejectUnknownQueryParameters: true, Transformers: []huma.Transformer{explain},
	})
	a.huma.UseMiddleware(a.allowed, a.bounded)
	a.entryRoutes()
	a.changeRoutes()
	a.transferRoutes()
	a.purgeRoutes()
	a.groupRoutes()
	a.runRoutes()
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
func (a *API) Routes() []access.Route {
	routes := a.mux.Routes()
	for i := range routes {
		served := &routes[i]
		if r := a.find(served.Method + " " + served.Path); r.ID != "" {
			served.Least, served.Changes = r.Role, r.Changes
		}
	}
	return routes
}

// find is the route of a pattern of the mux; the zero route if it is none of the document's.
func (a *API) find(pattern string) (found route) {
	at := slices.IndexFunc(a.routes, func(r route) bool { return r.Method+" "+a.path+r.Path == pattern })
	if at >= 0 {
		found = a.routes[at]
	}
	return found
}

// requested is the route of a request, as find returns it.
func (a *API) requested(r *http.Request) route {
	_, pattern := a.mux.Handler(r)
	return a.find(pattern)
}

// Streams reports whether the body of a request is read as it arrives, and never in memory as a whole.
func (a *API) Streams(r *http.Request) bool { return a.requested(r).Takes != "" }

// Idempotent gives a repeated request with a key the same response as the first.
func (a *API) Idempotent(next http.Handler) http.Handler {
	repeatable := func(r *http.Request) bool { return a.requested(r).repeatable() }
	return a.answers.Idempotent(a.cfg.Limits.Body, repeatable, next)
}

// EndStreams ends the progress streams, for which a server that shuts down would wait. A new one ends at once. Call it
// once.
func (a *API) EndStreams() { close(a.closing) }

// route is a route without its handler.
type route struct {
	ID, Method, Path, Tag, Summary, Description string
	// Role is the lowest role that may use it. Changes means that a read-only server refuses it.
	Role    access.Role
	Changes bool
	// Slow means that it has no time limit.
	Slow   bool
	Status int
	// Sends and Takes are the content types of a response and a request that are not JSON.
	Sends, Takes string
}

// repeatable means that the route takes a key with which it can be repeated.
func (r route) repeatable() bool { return r.Changes && r.Method == http.MethodPost && r.Takes == "" }

// BodyTimeout is how long a client may take to send a body of ordinary size, and each part of an import.
const BodyTimeout = 30 * time.Second

// readRoute is a route for viewers that changes nothing.
func readRoute(tag, id, path, summary string) route {
	return route{ID: id, Method: http.MethodGet, Path: path, Tag: tag, Summary: summary, Role: access.Viewer}
}

func changeRoute(least access.Role, tag, id, path, summary string) route {
	return route{ID: id, Method: http.MethodPost, Path: path, Tag: tag, Summary: summary, Role: least, Changes: true}
}

// operation makes the route's part of the document.
func (a *API) operation(r route) huma.Operation {
	op := huma.Operation{
		OperationID: r.ID, Method: r.Method, Path: r.Path, Summary: r.Summary, Description: r.Description,
		Tags: []string{r.Tag},
		// huma refuses at the bound, not above it
		DefaultStatus: r.Status, MaxBodyBytes: a.cfg.Limits.Body + 1, BodyReadTimeout: BodyTimeout,
		Extensions: map[string]any{ExtRole: r.Role.String()}, Metadata: map[string]any{"route": r},
		Responses: map[string]*huma.Response{"default": {Ref: "#/components/responses/Problem"}},
	}
	if r.Changes {
		op.Extensions[ExtChanges] = true
	}
	if r.Sends != "" {
		op.Responses["200"] = &huma.Response{Description: "OK", Content: content(r.Sends)}
	}
	if r.Takes != "" {
		op.RequestBody = &huma.RequestBody{Required: true, Content: content(r.Takes)}
	}
	if r.repeatable() && r.ID != "start-run" { // which describes it itself
		op.Parameters = []*huma.Param{{
			Name: callers.KeyHeader, In: "header", Schema: &huma.Schema{Type: huma.TypeString, MaxLength: new(callers.MaxKey)},
			Description: "Makes the request safe to repeat: within a day, the same key with the same body gets the first " +
				"answer again.",
		}}
	}
	return op
}

// content is a body of bytes; the schema is a new one each time, because huma writes into those that it is given.
func content(contentType string) map[string]*huma.MediaType {
	schema := &huma.Schema{Type: huma.TypeString, Format: "binary"}
	return map[string]*huma.MediaType{contentType: {Schema: schema}}
}

// output is a response that is only a body, tagged one with a version, page one of a list.
type (
	output[T any] struct{ Body T }
	tagged[T any] struct {
		ETag string `header:"ETag"`
		Body T
	}
	page[T any] struct {
		Link
		Body T
	}
)

// handle registers a route whose response is only a body.
func handle[I, B any](a *API, r route, do func(context.Context, *I) (*B, error)) {
	register(a, r, func(ctx context.Context, in *I) (*output[B], error) {
		body, err := do(ctx, in)
		if err != nil {
			return nil, err
		}
		return &output[B]{*body}, nil
	})
}

// register registers a route. It refuses requests that no store can hold, and turns errors into problems.
func register[I, O any](a *API, r route, do func(context.Context, *I) (*O, error)) {
	a.routes = append(a.routes, r)
	huma.Register(a.huma, a.operation(r), func(ctx context.Context, in *I) (*O, error) {
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

// routeOf is the route of a request; the zero route, which refuses everyone, if it was forgotten.
func routeOf(ctx huma.Context) route {
	r, _ := ctx.Operation().Metadata["route"].(route)
	return r
}

// allowed refuses callers without the role, and changes on a read-only server.
func (a *API) allowed(ctx huma.Context, next func(huma.Context)) {
	r, who := routeOf(ctx), access.From(ctx.Context())
	var reason string
	status := http.StatusForbidden
	switch {
	case !who.Role.Allows(r.Role):
		a.cfg.Logger.WarnContext(ctx.Context(), "request refused", "actor", who.Name, "role", who.Role.String(), "route",
			r.ID)
		reason = access.Refusal(who, r.Role)
	case r.Changes && a.cfg.ReadOnly:
		reason = "this server is read-only (server.read_only): nothing is changed"
	case r.Changes && ctx.Operation().RequestBody == nil && a.tooLarge(ctx):
		status, reason = http.StatusRequestEntityTooLarge, "this route takes no body"
	default:
		next(ctx)
		return
	}
	_ = huma.WriteErr(a.huma, ctx, status, reason) // reports itself
}

// tooLarge discards a body where none is expected, and reports whether there is too much of it.
func (a *API) tooLarge(ctx huma.Context) bool {
	body := ctx.BodyReader()
	if body == nil {
		return false
	}
	n, _ := io.CopyN(io.Discard, body, a.cfg.Limits.Body+1) // an unreadable body is empty
	return n > a.cfg.Limits.Body
}

// bounded limits the time of a request.
func (a *API) bounded(ctx huma.Context, next func(huma.Context)) {
	if routeOf(ctx).Slow {
		next(ctx)
		return
	}
	bounded, cancel := context.WithTimeout(ctx.Context(), a.cfg.Limits.Timeout)
	defer cancel()
	next(huma.WithContext(ctx, bounded))
}

// visible is the caller's view.
func (a *API) visible(ctx context.Context) visible.View { return a.cfg.Visible(ctx) }

// by is the author of a change.
func by(ctx context.Context, note string) dlq.By {
	return dlq.By{Actor: access.From(ctx).Name, Note: note}
}

// noted is by with the note of a request that may have no body.
func noted(ctx context.Context, n *wire.Note) dlq.By { return by(ctx, cmp.Or(n, &wire.Note{}).Note) }
