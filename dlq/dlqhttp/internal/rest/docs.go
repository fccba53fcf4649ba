package rest

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	_ "embed" // the page and its style
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

// docsStyle is the page's only style, docsPage its template.
//
//go:embed docs.css
var docsStyle string

//go:embed docs.html
var docsPage string

// docsRoutes serves the document as a page for people. It is made at the first request, when all routes are registered.
// Its policy allows its only style by the hash, and nothing else.
func (a *API) docsRoutes(mux *access.Mux) {
	sum := sha256.Sum256([]byte(docsStyle))
	policy := "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
	page := sync.OnceValues(func() ([]byte, error) {
		page, err := template.New("docs").Parse(docsPage)
		if err != nil {
			return nil, err
		}
		document := a.huma.OpenAPI()
		var out bytes.Buffer
		err = page.Execute(&out, map[string]any{
			"Title": document.Info.Title, "Version": document.Info.Version, "Description": document.Info.Description,
			"Base":      a.cfg.Path,
			"Dashboard": strings.TrimSuffix(a.cfg.Path, Base) + "/",
			"Style":     template.CSS(docsStyle), "Tags": docsTags(document), //nolint:gosec // G203: a file of ours
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
		w.Header().Set("Content-Security-Policy", policy)
		_, _ = w.Write(data) // the client disconnected: no reader is left for the error
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
