package dashboard

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/internal/guarded"
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
	Awaiting string
	Flash    string
}

// may are the visible buttons; the server refuses the other actions no matter what the page shows.
type may struct{ Operate, Approve, Admin, Redrive bool }

// Asset is the URL of an embedded file.
func (v *view) Asset(name string) string { return v.Base + assetPath(name) }

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
		if name := strings.TrimSuffix(f.Name(), ".html"); name != "layout" && name != "parts" {
			all[name] = template.Must(template.Must(shared.Clone()).ParseFS(templates, "templates/"+f.Name()))
		}
	}
	return all
})

// minZip is the size from which a page is worth compressing.
const minZip = 1400

func (r *request) page(name string, v view) error { return r.render(http.StatusOK, name, v) }

// render responds with a page. On an error nothing has been written.
func (r *request) render(status int, name string, v view) error {
	may := func(least access.Role) bool { return !r.cfg.ReadOnly && r.who.Role.Allows(least) }
	v.Base, v.Self, v.User, v.ReadOnly, v.Now = r.cfg.Prefix, r.URL.RequestURI(), r.who, r.cfg.ReadOnly, r.now()
	v.May.Operate, v.May.Approve, v.May.Admin = may(access.Operator), may(access.Approver), may(access.Admin)
	v.May.Redrive = v.May.Operate && r.cfg.Manager.CanRedrive()
	v.Hides, v.Session = r.sees.Hides(), r.cfg.Session != nil && r.cfg.Session(r.Request)
	if v.Every == 0 {
		v.Every = int(max(r.cfg.Interval, time.Second) / time.Second)
	}
	if v.At.IsZero() {
		v.At = v.Now
	}
	if c, err := r.Cookie("redrive_theme"); err == nil && (c.Value == "dark" || c.Value == "light") {
		v.Theme = c.Value
	}
	v.Flash, v.Awaiting = r.takeFlash(), r.awaiting()
	page := pages()[name]
	if page == nil {
		return fmt.Errorf("dashboard: no page %q", name)
	}
	var out bytes.Buffer
	if err := page.ExecuteTemplate(&out, "layout.html", &v); err != nil {
		return fmt.Errorf("dashboard: %w", err)
	}
	data := out.Bytes()
	header := r.w.Header()
	header.Set("Content-Type", "text/html; charset=utf-8")
	header.Set("Vary", "Accept-Encoding, Cookie")
	if len(data) >= minZip && acceptsGzip(r.Request) {
		header.Set("Content-Encoding", "gzip")
		data = zip(data, gzip.BestSpeed)
	}
	r.w.WriteHeader(status)
	_, _ = r.w.Write(data) // the client disconnected: no reader is left for the error
	return nil
}

// download responds with a file, which no browser renders.
func (r *request) download(contentType, name string, data []byte) error {
	header := r.w.Header()
	header.Set("Content-Type", contentType)
	header.Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", name))
	header.Set("Content-Security-Policy", "default-src 'none'; sandbox")
	_, _ = r.w.Write(data) // the client disconnected: no reader is left for the error
	return nil
}

// The result of a change is shown on the next page, once: the text is in a cookie until then. It is displayed as text
// like everything else.
const flashCookie = "redrive_said"

// maxFlash limits the text, so that browsers accept the cookie.
const maxFlash = 1024

// redirect sends the browser to where the result of a change can be seen, and reports it there. The path is below the
// prefix.
func (r *request) redirect(path, said string) error {
	if said != "" {
		said = strings.ToValidUTF8(said[:min(len(said), maxFlash)], "")
		r.setFlash(base64.RawURLEncoding.EncodeToString([]byte(said)), 60)
	}
	r.w.Header().Set("Location", r.cfg.Prefix+path)
	r.w.WriteHeader(http.StatusSeeOther)
	return nil
}

func (r *request) setFlash(value string, maxAge int) {
	http.SetCookie(r.w, &http.Cookie{ //nolint:gosec // G124: a server on this machine has no TLS
		Name: flashCookie, Value: value, Path: r.cfg.Prefix + "/", MaxAge: maxAge, HttpOnly: true, Secure: r.TLS != nil,
		SameSite: http.SameSiteStrictMode,
	})
}

// takeFlash is the result of the last change, unless it was shown already.
func (r *request) takeFlash() string {
	c, err := r.Cookie(flashCookie)
	if err != nil || c.Value == "" {
		return ""
	}
	r.setFlash("", -1)
	said, _ := base64.RawURLEncoding.DecodeString(c.Value) // what can be read of it
	return strings.ToValidUTF8(string(said), "")
}

//go:embed static
var static embed.FS

// asset is an embedded file, ready to be sent.
type asset struct {
	data, zipped []byte
	contentType  string
	version      string
}

// contentTypes of the embedded files; anything else, such as a licence, is text.
var contentTypes = map[string]string{
	".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml",
}

// assets reads and compresses the embedded files, once per process.
var assets = sync.OnceValue(func() map[string]*asset {
	all := map[string]*asset{}
	err := fs.WalkDir(static, "static", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := static.ReadFile(name)
		if err != nil {
			return err
		}
		digest := sha256.Sum256(data)
		all[strings.TrimPrefix(name, "static/")] = &asset{
			data: data, zipped: zip(data, gzip.BestCompression), version: hex.EncodeToString(digest[:6]),
			contentType: cmp.Or(contentTypes[path.Ext(name)], "text/plain; charset=utf-8"),
		}
		return nil
	})
	if err != nil {
		panic(err) // they are embedded
	}
	return all
})

func zip(data []byte, level int) []byte {
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, level)
	if err != nil {
		panic(err) // the level is a constant
	}
	_, _ = w.Write(data) // a buffer never fails
	_ = w.Close()
	return out.Bytes()
}

// acceptsGzip reports whether a client accepts gzip. All browsers ask for it in the same way.
func acceptsGzip(r *http.Request) bool {
	for coding := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		name, params, _ := strings.Cut(strings.TrimSpace(coding), ";")
		if strings.EqualFold(name, "gzip") && strings.ReplaceAll(params, " ", "") != "q=0" {
			return true
		}
	}
	return false
}

// assetPath is the path of a file below the prefix: its version makes it cacheable forever.
func assetPath(name string) string { return "/static/" + name + "?v=" + assets()[name].version }

func (d *dashboard) static(w http.ResponseWriter, r *http.Request) {
	a := assets()[r.PathValue("name")]
	if a == nil {
		http.Error(w, "no such file", http.StatusNotFound)
		return
	}
	header := w.Header()
	header.Set("Content-Type", a.contentType)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Vary", "Accept-Encoding")
	header.Set("ETag", `"`+a.version+`"`)
	header.Set("Cache-Control", "no-cache")
	if r.URL.Query().Get("v") == a.version {
		header.Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	data := a.data
	if acceptsGzip(r) {
		header.Set("Content-Encoding", "gzip")
		data = a.zipped
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data)) // answers If-None-Match
}

// cache keeps what refreshing pages show for an interval, and loads it only once at a time, for any number of viewers.
type cache struct {
	interval time.Duration
	now      func() time.Time
	flights  singleflight.Group

	mu         sync.Mutex
	generation int
	kept       map[string]kept
}

// kept is a loaded value, and when loading began.
type kept struct {
	value any
	err   error
	at    time.Time
}

const (
	// loadTimeout limits a call of the store. It belongs to no single request, so it does not end with one.
	loadTimeout = 20 * time.Second
	// errorInterval is how long an error is kept, so that not every viewer calls a store that is down.
	errorInterval = time.Second
	// maxKept is the maximum number of kept values: a crawler may visit any number of pages.
	maxKept = 256
)

func newCache(interval time.Duration) *cache {
	return &cache{interval: interval, now: time.Now, kept: map[string]kept{}}
}

// forget drops everything, after a change. A load that began before is not kept.
func (c *cache) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.generation++
	clear(c.kept)
}

// lookup returns the value of a key unless it is too old, and the generation.
func (c *cache) lookup(key string) (k kept, generation int, fresh bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k, there := c.kept[key]
	limit := c.interval
	if k.err != nil {
		limit = min(limit, errorInterval)
	}
	return k, c.generation, there && c.now().Sub(k.at) < limit
}

func (c *cache) keep(key string, generation int, k kept) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if generation != c.generation {
		return
	}
	if len(c.kept) >= maxKept {
		for other, o := range c.kept {
			if c.now().Sub(o.at) >= c.interval {
				delete(c.kept, other)
			}
		}
	}
	if len(c.kept) < maxKept {
		c.kept[key] = k
	}
}

// cachedPair is cached for two values.
func cachedPair[A, B any](ctx context.Context, c *cache, key string, load func(context.Context) (A, B, error)) (
	a A, b B, at time.Time, err error,
) {
	type pair struct {
		a A
		b B
	}
	found, at, err := cached(ctx, c, key, func(ctx context.Context) (p pair, err error) {
		p.a, p.b, err = load(ctx)
		return p, err
	})
	return found.a, found.b, at, err
}

// cached returns what load returned less than an interval ago, or what it returns now, and when that was. Callers share
// the value and must not change it.
func cached[T any](ctx context.Context, c *cache, key string, load func(context.Context) (T, error)) (T, time.Time,
	error,
) {
	k, generation, fresh := c.lookup(key)
	if !fresh {
		flight := fmt.Sprint(generation, " ", key)
		result := c.flights.DoChan(flight, func() (any, error) {
			if k, _, fresh := c.lookup(key); fresh { // loaded while we waited
				return k, nil
			}
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), loadTimeout)
			defer cancel()
			k := kept{at: c.now()}
			k.err = guarded.Call(func() (err error) { k.value, err = load(ctx); return err })
			c.keep(key, generation, k)
			return k, nil
		})
		select {
		case r := <-result:
			k, _ = r.Val.(kept)
		case <-ctx.Done():
			var none T
			return none, time.Time{}, ctx.Err()
		}
	}
	value, _ := k.value.(T)
	return value, k.at, k.err
}
