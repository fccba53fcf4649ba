package rest

import (
	"crypto/sha256"
	_ "embed" // the page and its style
	"encoding/base64"
	"html/template"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
)

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
