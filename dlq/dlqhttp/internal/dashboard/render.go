package dashboard

import (
	"bytes"
	"compress/gzip"
	"embed"
	"fmt"
	"html/template"
	"net/http"
	"sync"
	"time"

	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
)

//go:embed templates
var templates embed.FS

// view is the data of every page.
type view struct {
	Title string
	// Nav is the part of the navigation that the page belongs to.
	Nav string
	// Data is the page's own data.
	Data any
	// Live pages refresh automatically, every Every seconds. At is when their data was read.
	Live  bool
	Every int
	At    time.Time
	// Charts pages have curves.
	Charts bool

	// Set by render.
	Base, Self, Theme string
	User              access.Principal
	May               may
	ReadOnly          bool
	// Session means that the caller can log out.
	Session bool
	// Hides means that something is hidden from the caller.
	Hides bool
	Now   time.Time
	// Awaiting is how many runs wait for the caller's approval; empty if none do.
	Awaiting  string
	Flash     string
	dashboard *dashboard
}

// may are the visible buttons; the server refuses the other actions no matter what the page shows.
type may struct{ Operate, Approve, Admin, Redrive bool }

// Asset is the URL of an embedded file.
func (v *view) Asset(name string) string { return v.dashboard.assetPath(name) }

// pages are the parsed templates, by name: each is the layout, the shared parts, and the page.
var pages = sync.OnceValue(func() map[string]*template.Template {
	shared := template.Must(template.New("layout.html").Funcs(functions).ParseFS(templates, "templates/layout.html",
		"templates/parts.html"))
	files, err := templates.ReadDir("templates")
	if err != nil {
		panic(err) // it is embedded
	}
	all := map[string]*template.Template{}
	for _, f := range files {
		name := f.Name()[:len(f.Name())-len(".html")]
		if name == "layout" || name == "parts" {
			continue
		}
		all[name] = template.Must(template.Must(shared.Clone()).ParseFS(templates, "templates/"+f.Name()))
	}
	return all
})

// minZip is the size from which a page is worth compressing.
const minZip = 1400

// render responds with a page. On an error nothing has been written.
func (d *dashboard) render(w http.ResponseWriter, r *http.Request, status int, name string, v view) error {
	p := access.From(r.Context())
	writes := !d.cfg.ReadOnly
	v.dashboard, v.Base, v.User, v.ReadOnly, v.Now = d, d.cfg.Prefix, p, d.cfg.ReadOnly,
		d.cfg.Manager.Now(r.Context()).UTC()
	v.Self, v.Hides = r.URL.RequestURI(), d.cfg.Visible(r.Context()).Hides()
	v.May = may{
		Operate: writes && p.Role.Allows(access.Operator), Approve: writes && p.Role.Allows(access.Approver),
		Admin: writes && p.Role.Allows(access.Admin), Redrive: writes && p.Role.Allows(access.Operator) &&
			d.cfg.Manager.CanRedrive(),
	}
	v.Session = d.cfg.Session != nil && d.cfg.Session(r)
	if v.Every == 0 {
		v.Every = int(max(d.cfg.Interval, time.Second) / time.Second)
	}
	if v.At.IsZero() {
		v.At = v.Now
	}
	if c, err := r.Cookie("redrive_theme"); err == nil && (c.Value == "dark" || c.Value == "light") {
		v.Theme = c.Value
	}
	v.Flash, v.Awaiting = d.takeFlash(w, r), d.awaiting(r)
	page := pages()[name]
	if page == nil {
		return fmt.Errorf("dashboard: no page %q", name)
	}
	var out bytes.Buffer
	if err := page.ExecuteTemplate(&out, "layout.html", &v); err != nil {
		return fmt.Errorf("dashboard: %w", err)
	}
	data := out.Bytes()
	header := w.Header()
	header.Set("Content-Type", "text/html; charset=utf-8")
	header.Set("Vary", "Accept-Encoding, Cookie")
	if len(data) >= minZip && acceptsGzip(r) {
		header.Set("Content-Encoding", "gzip")
		data = zip(data, gzip.BestSpeed)
	}
	w.WriteHeader(status)
	_, _ = w.Write(data) // the client disconnected: no reader is left for the error
	return nil
}

// page responds with a page and status 200.
func (d *dashboard) page(w http.ResponseWriter, r *http.Request, name string, v view) error {
	return d.render(w, r, http.StatusOK, name, v)
}
