package rest

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"html/template"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/danielgtaylor/huma/v2"

	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
)

// docsRoute is a line of the page: a route as the document describes it.
type docsRoute struct {
	Method, Path, Summary, Role string
	Changes                     bool
}

// docsTag is a table of the page.
type docsTag struct {
	Name, Description string
	Routes            []docsRoute
}

// docsStyle is the page's only style. The policy allows it by its hash, and nothing else.
const docsStyle = `
:root {
  color-scheme: light dark; --ground: #f5f6f9; --panel: #fff; --line: #e4e7ee; --ink: #1b2130; --quiet: #5d6679;
  --accent: #3f52c9; --soft: #eceffc;
}
@media (prefers-color-scheme: dark) {
  :root { --ground: #12151c; --panel: #1a1f29; --line: #2a313f; --ink: #e6e9f0; --quiet: #8d97ab; --accent: #8fa0ff; --soft: #252c4a; }
}
body { font: .875rem/1.45 system-ui, sans-serif; max-width: 75rem; margin: 0 auto; padding: 1.2rem 1rem 4rem; }
body { background: var(--ground); color: var(--ink); }
header { display: flex; gap: 1rem; align-items: baseline; justify-content: space-between; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1rem; margin: 0 0 .3rem; } section h2::first-letter { text-transform: uppercase; }
a { color: var(--accent); } p { color: var(--quiet); }
.text { white-space: pre-line; }
section { margin: 0 0 1.1rem; padding: 1rem 1.1rem; background: var(--panel); border: 1px solid var(--line); border-radius: .75rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .4rem .8rem .4rem 0; border-bottom: 1px solid var(--line); }
th, td { overflow-wrap: anywhere; }
th { font-size: .82rem; font-weight: 550; color: var(--quiet); } tr:last-child td { border-bottom: 0; }
td:first-child { font-weight: 600; }
code { font-family: ui-monospace, monospace; background: var(--soft); padding: .05rem .3rem; border-radius: .3rem; }
@media (max-width: 42rem) {
  thead { position: absolute; clip-path: inset(50%); } table, tbody, tr, td { display: block; } td { border: 0; padding: .1rem 0; }
  tr { border-bottom: 1px solid var(--line); padding: .5rem 0; }
}
`

var docsPolicy = func() string {
	sum := sha256.Sum256([]byte(docsStyle))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}()

var docsPage = template.Must(template.New("docs").Parse(`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{.Title}} API {{.Version}}</title>
<style>{{.Style}}</style>
</head>
<body>
<main>
<header><h1>{{.Title}} API {{.Version}}</h1><a href="{{.Dashboard}}">Dashboard</a></header>
<p>Below <code>{{.Base}}</code>. The OpenAPI document, with every parameter and answer: <a href="openapi.json">JSON</a>, <a href="openapi.yaml">YAML</a>.</p>
<p class="text">{{.Description}}</p>
{{range .Tags}}<section><h2>{{.Name}}</h2>
<p>{{.Description}}</p>
<table>
<thead><tr><th scope="col">Method</th><th scope="col">Path</th><th scope="col">What it does</th><th scope="col">Least role</th><th scope="col">Changes</th></tr></thead>
<tbody>
{{range .Routes}}<tr><td>{{.Method}}</td><td><code>{{.Path}}</code></td><td>{{.Summary}}</td><td>{{.Role}}</td><td>{{if .Changes}}yes{{else}}no{{end}}</td></tr>
{{end}}</tbody>
</table></section>
{{end}}</main></body>
</html>
`))

// docsRoutes serves the document as a page for people. It is made at the first request, when all routes are registered.
func (a *API) docsRoutes(mux *access.Mux) {
	page := sync.OnceValues(func() ([]byte, error) {
		document := a.huma.OpenAPI()
		var out bytes.Buffer
		err := docsPage.Execute(&out, map[string]any{
			"Title": document.Info.Title, "Version": document.Info.Version, "Description": document.Info.Description,
			"Base":      a.cfg.Path,
			"Dashboard": strings.TrimSuffix(a.cfg.Path, Base) + "/",
			"Style":     template.CSS(docsStyle), "Tags": docsTags(document), //nolint:gosec // G203: a constant of ours
		})
		return out.Bytes(), err
	})
	mux.HandleFunc("GET "+a.cfg.Path+"/docs", func(w http.ResponseWriter, r *http.Request) {
		data, err := page()
		if err != nil {
			a.cfg.Logger.ErrorContext(r.Context(), "the page of the API could not be made", "error", err)
			http.Error(w, "the page could not be made; the server's log has the reason", http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", docsPolicy)
		_, _ = w.Write(data) // the client has gone: no reader is left for the error
	})
}

// docsTags are the routes of a document by tag, in the order of the tags, of the paths, and of the methods.
func docsTags(document *huma.OpenAPI) []docsTag {
	routes := map[string][]docsRoute{}
	for path, item := range document.Paths {
		for method, op := range map[string]*huma.Operation{
			http.MethodGet: item.Get, http.MethodPost: item.Post, http.MethodPut: item.Put, http.MethodPatch: item.Patch,
			http.MethodDelete: item.Delete,
		} {
			if op == nil {
				continue
			}
			role, _ := op.Extensions[ExtRole].(string)
			changes, _ := op.Extensions[ExtChanges].(bool)
			for _, tag := range op.Tags {
				routes[tag] = append(routes[tag], docsRoute{method, path, op.Summary, role, changes})
			}
		}
	}
	list := make([]docsTag, 0, len(document.Tags))
	for _, tag := range document.Tags {
		slices.SortFunc(routes[tag.Name], func(a, b docsRoute) int {
			return cmp.Or(strings.Compare(a.Path, b.Path), strings.Compare(a.Method, b.Method))
		})
		list = append(list, docsTag{tag.Name, tag.Description, routes[tag.Name]})
	}
	return list
}
