package dashboard

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"sync"
)

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
		a := &asset{data: data, version: hex.EncodeToString(digest[:6]), contentType: contentTypes[path.Ext(name)]}
		if a.contentType == "" {
			a.contentType = "text/plain; charset=utf-8"
		}
		a.zipped = zip(data, gzip.BestCompression)
		all[strings.TrimPrefix(name, "static/")] = a
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

// assetPath is the path of a file: its version makes it cacheable forever.
func (d *dashboard) assetPath(name string) string {
	a := assets()[name]
	if a == nil {
		panic("dashboard: no asset " + name) // a template names a missing one
	}
	return d.cfg.Prefix + "/static/" + name + "?v=" + a.version
}

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
	if r.URL.Query().Get("v") == a.version {
		header.Set("Cache-Control", "public, max-age=31536000, immutable")
	} else {
		header.Set("Cache-Control", "no-cache")
	}
	if r.Header.Get("If-None-Match") == `"`+a.version+`"` {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	data := a.data
	if acceptsGzip(r) && len(a.zipped) < len(data) {
		header.Set("Content-Encoding", "gzip")
		data = a.zipped
	}
	_, _ = w.Write(data) // the client disconnected: no reader is left for the error
}
