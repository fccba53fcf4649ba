package dlqhttp

import (
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/rest"
)

const (
	// sendTimeout is how long a client may take to read a part of a response: the whole may take as long as its size
	// requires.
	sendTimeout = 30 * time.Second
	sendPart    = 64 << 10
)

// limitSlowClients limits how long to wait for a client that sends no body, or does not read its response: otherwise it
// would keep a connection, and what the route holds, forever. The server around the handler cannot do it, because
// imports, exports and progress streams have no time limit.
func limitSlowClients(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out := &patientWriter{ResponseWriter: w, control: http.NewResponseController(w)}
		if r.Body != nil && r.Body != http.NoBody {
			// In a copy: net/http closes a connection whose body was abandoned only where it finds its own body in its own
			// request. Otherwise the rest of the body would be the next request.
			r = r.WithContext(r.Context())
			out.body = &patientBody{ReadCloser: r.Body}
			r.Body = out.body
			_ = out.SetReadDeadline(time.Now().Add(rest.BodyTimeout)) // where there are no deadlines, nothing is waited for
		}
		next.ServeHTTP(out, r)
		_ = out.control.SetWriteDeadline(time.Now().Add(sendTimeout)) // for what net/http has buffered
	})
}

// patientWriter gives the client time for each part of what is written, and sets no deadline in between: HTTP/2 resets
// a stream at its deadline, even when nothing is waiting to be written.
type patientWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	body    *patientBody // nil without one
}

// Write writes p in parts.
func (w *patientWriter) Write(p []byte) (n int, err error) {
	for {
		part := p[n:min(n+sendPart, len(p))]
		var m int
		err = w.within(func() (err error) { m, err = w.ResponseWriter.Write(part); return err })
		if n += m; err != nil || n == len(p) {
			return n, err
		}
	}
}

// FlushError is for http.ResponseController.
func (w *patientWriter) FlushError() error { return w.within(w.control.Flush) }

func (w *patientWriter) within(send func() error) error {
	_ = w.control.SetWriteDeadline(time.Now().Add(sendTimeout)) // where there are no deadlines, nothing is waited for
	err := send()
	_ = w.control.SetWriteDeadline(time.Time{}) // as above
	return err
}

// SetReadDeadline sets the deadline for the body. After the body's end net/http itself reads, to notice that the client
// is gone, and would apply a deadline to that.
func (w *patientWriter) SetReadDeadline(t time.Time) error {
	if w.body == nil || w.body.ended.Load() {
		return nil
	}
	return w.control.SetReadDeadline(t)
}

// Unwrap is for http.ResponseController.
func (w *patientWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// patientBody records whether it was read to its end.
type patientBody struct {
	io.ReadCloser
	ended atomic.Bool
}

// Read reads.
func (b *patientBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.ended.Store(true)
	}
	return n, err
}
