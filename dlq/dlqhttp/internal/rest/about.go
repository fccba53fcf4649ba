package rest

import (
	"context"
	"crypto/sha256"
	_ "embed" // the page and its style
	"encoding/base64"
	"html/template"
	"net/http"
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/wire"
)

func (a *API) aboutRoutes() {
	handle(a, readRoute("about", "get-me", "/me", "Show who you are and what you may do"), a.me)
	handle(a, readRoute("about", "get-health", "/health", "Show the state of each component"), a.health)
	handle(a, readRoute("about", "list-rules", "/rules", "List the rules by which the server redrives automatically"),
		a.rules)
	handle(a, readRoute("about", "get-topology", "/topology", "Show what the brokers have and what is planned"),
		a.topology)
	settings := readRoute("about", "get-settings", "/settings", "Show the configuration, without secrets")
	settings.Role = access.Admin
	handle(a, settings, a.settings)
}

func (a *API) me(ctx context.Context, _ *none) (*wire.Me, error) {
	who := access.From(ctx)
	return &wire.Me{
		Name: who.Name, Role: who.Role.String(), ReadOnly: a.cfg.ReadOnly, Redacted: a.visible(ctx).Hides(),
		RedriveRate: a.cfg.Rate,
	}, nil
}

func (a *API) health(ctx context.Context, _ *none) (*wire.Health, error) {
	return new(a.visible(ctx).Health(a.cfg.Health(ctx))), nil
}

func (a *API) rules(ctx context.Context, _ *none) (*wire.RuleList, error) {
	list := wire.RuleList{Rules: []wire.Rule{}}
	for _, r := range a.visible(ctx).Rules(a.cfg.Rules) {
		list.Rules = append(list.Rules, wire.Rule{
			Name: r.Name, Reason: string(r.Reason), ErrorClass: r.ErrorClass, ErrorCode: r.ErrorCode, Fingerprint: r.Fingerprint,
			Handler: r.Handler, Topic: r.Topic, Cause: r.CauseText, AfterSeconds: r.After.Seconds(),
			MaxAfterSeconds: r.MaxAfter.Seconds(), Redrives: r.Redrives, Rate: r.Rate, CloseOnPublish: r.CloseOnPublish,
		})
	}
	return new(list), nil
}

func (a *API) topology(ctx context.Context, _ *none) (*any, error) {
	if a.cfg.Topology == nil {
		return nil, huma.NewError(http.StatusNotFound, "this server has no topology to show")
	}
	shown, err := a.cfg.Topology(ctx)
	if err == nil {
		shown, err = a.visible(ctx).JSON(shown)
	}
	return &shown, err
}

func (a *API) settings(context.Context, *none) (*any, error) {
	if a.cfg.Settings == nil {
		return nil, huma.NewError(http.StatusNotFound, "this server has no settings to show")
	}
	return &a.cfg.Settings, nil
}

//go:embed docs.css
var docsStyle string

//go:embed docs.html
var docsPage string

// docsData is what the page shows.
type docsData struct {
	*huma.OpenAPI

	Base, Dashboard string
	Style           template.CSS
	Routes          []route
}

// docsRoutes serves the routes of the document as a page for people. Its policy allows its only style by the hash, and
// nothing else.
func (a *API) docsRoutes(mux *access.Mux) {
	sum := sha256.Sum256([]byte(docsStyle))
	policy := "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
	page := template.Must(template.New("docs").Parse(docsPage))
	data := docsData{a.huma.OpenAPI(), a.path, a.cfg.Prefix + "/", template.CSS(docsStyle), a.routes} //nolint:gosec // G203: ours
	mux.HandleFunc("GET "+a.path+"/docs", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", policy)
		_ = page.Execute(w, data) // the client disconnected: no reader is left for the error
	})
}

// newSchemas is the registry of the document's schemas. The two types with their own JSON encoding are described here.
func newSchemas() huma.Registry {
	schemas := huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer)
	schemas.RegisterTypeAlias(reflect.TypeFor[wire.Text](), reflect.TypeFor[textSchema]())
	schemas.RegisterTypeAlias(reflect.TypeFor[wire.Headers](), reflect.TypeFor[headersSchema]())
	schemas.RegisterTypeAlias(reflect.TypeFor[wire.Seconds](), reflect.TypeFor[float64]())
	return schemas
}

// named puts a schema into the components and refers to it.
func named(r huma.Registry, name string, s *huma.Schema) *huma.Schema {
	r.Map()[name] = s
	return &huma.Schema{Ref: "#/components/schemas/" + name}
}

type textSchema struct{}

// Schema is the schema of wire.Text.
func (textSchema) Schema(r huma.Registry) *huma.Schema {
	one := 1
	return named(r, "Text", &huma.Schema{Description: "Text, or bytes that are not text.", OneOf: []*huma.Schema{
		{Type: huma.TypeString},
		{
			Type: huma.TypeArray, MinItems: &one, MaxItems: &one,
			Items: &huma.Schema{Type: huma.TypeString, ContentEncoding: "base64"},
		},
	}})
}

type headersSchema struct{}

// Schema is the schema of wire.Headers.
func (headersSchema) Schema(r huma.Registry) *huma.Schema {
	two, text := 2, textSchema{}.Schema(r)
	return named(r, "Headers", &huma.Schema{
		Description: "Headers; where a name is not text, pairs of a name and a value.",
		OneOf: []*huma.Schema{
			{Type: huma.TypeObject, AdditionalProperties: text},
			{Type: huma.TypeArray, Items: &huma.Schema{Type: huma.TypeArray, MinItems: &two, MaxItems: &two, Items: text}},
		},
	})
}
