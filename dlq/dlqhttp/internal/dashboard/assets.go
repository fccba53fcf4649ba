package dashboard

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"
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
