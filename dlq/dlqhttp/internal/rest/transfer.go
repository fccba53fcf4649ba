package rest

import (
	"context"
	"errors"
	"io"
	"math"
	"mime"
	"net/http"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/operations"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/wire"
)

type importInput struct {
	Note string `query:"note" maxLength:"1000" doc:"Why, for the audit log."`

	contentType string
	body        io.Reader
	extend      func(deadline time.Time) error
}

// Resolve keeps the body for the handler: an import is read as it arrives.
func (i *importInput) Resolve(ctx huma.Context) []error {
	i.contentType, i.body, i.extend = ctx.Header("Content-Type"), ctx.BodyReader(), ctx.SetReadDeadline
	return nil
}

func (a *API) transferRoutes() {
	lines := route{
		ID: "export-entries", Method: http.MethodGet, Path: "/entries/export", Tag: "maintenance", Role: access.Operator,
		Slow: true, Sends: wire.LinesType,
		Summary: "Export dead letters as JSON lines, oldest first, byte for byte",
		Description: "Where something is hidden from the caller, the lines say so and cannot be imported. A connection " +
			"that ends early is an export that is not complete.",
	}
	register(a, lines, a.export)

	r := route{
		ID: "import-entries", Method: http.MethodPost, Path: "/entries/import", Tag: "maintenance", Role: access.Admin,
		Changes: true, Slow: true, Takes: wire.LinesType,
		Summary:     "Import the lines of an export; existing and archived entries stay unchanged",
		Description: "Repeating an import is safe, and completes an interrupted one: entries are identified by their keys.",
	}
	register(a, r, a.importEntries)
}

func (a *API) export(ctx context.Context, in *Query) (*huma.StreamResponse, error) {
	filter, err := in.allowed(ctx, a)
	if err != nil {
		return nil, err
	}
	hide := a.exported(ctx)
	return &huma.StreamResponse{Body: func(ctx huma.Context) { //nolint:contextcheck // huma's context has ours
		out := &begun{ctx: ctx}
		_, err := a.cfg.Manager.ExportRedacted(ctx.Context(), out, filter, hide)
		switch {
		case err == nil:
			out.begin()
		case !out.done:
			failed := a.fail(ctx.Context(), err, 0)
			if status, ok := errors.AsType[huma.StatusError](failed); ok {
				_ = huma.WriteErr(a.huma, ctx, status.GetStatus(), status.Error()) // reports itself
			}
		default:
			if ctx.Context().Err() == nil { // otherwise the client is gone
				a.cfg.Logger.ErrorContext(ctx.Context(), "export broke off", "error", err)
			}
			panic(http.ErrAbortHandler) // so that the client does not treat it as complete
		}
	}}, nil
}

// exported hides values in the lines of an export, and records the reads if configured.
func (a *API) exported(ctx context.Context) func(*wire.Letter) {
	hide := a.visible(ctx).Letter()
	if !a.cfg.AuditReads {
		return hide
	}
	return func(l *wire.Letter) {
		if err := a.cfg.Read(ctx, "export", l.Entry.ID); err != nil {
			panic(http.ErrAbortHandler) // what is not recorded is not shown
		}
		if hide != nil {
			hide(l)
		}
	}
}

// begun writes the head of the response with the first bytes, so that an error before them can still set the status.
type begun struct {
	ctx  huma.Context
	done bool
}

func (b *begun) begin() {
	if !b.done {
		b.done = true
		b.ctx.SetHeader("Content-Type", wire.LinesType)
		b.ctx.SetHeader("Content-Disposition", `attachment; filename="dead-letters.jsonl"`)
	}
}

// Write writes to the client.
func (b *begun) Write(p []byte) (int, error) {
	b.begin()
	return b.ctx.BodyWriter().Write(p)
}

func (a *API) importEntries(ctx context.Context, in *importInput) (*output[wire.Imported], error) {
	switch kind, _, _ := mime.ParseMediaType(in.contentType); kind {
	case wire.LinesType, "application/x-ndjson", "application/jsonlines":
	default:
		return nil, huma.NewError(http.StatusUnsupportedMediaType,
			"an import is "+wire.LinesType+": the lines that an export has written")
	}
	body := http.MaxBytesReader(nil, io.NopCloser(in.body), a.cfg.Limits.Import)
	limited := &limitedReader{from: body, extend: in.extend}
	imported, err := a.cfg.Manager.Import(ctx, limited, by(ctx, in.Note))
	switch {
	case limited.over:
		return nil, huma.NewError(http.StatusRequestEntityTooLarge,
			"this server imports at most "+driver.FormatID(a.cfg.Limits.Import)+
				" bytes at once: send it in parts; earlier lines may have been stored")
	case limited.late:
		return nil, huma.NewError(http.StatusRequestTimeout,
			"the import was cut off: send it again; earlier lines may have been stored")
	case err != nil:
		return nil, &importError{err, imported}
	}
	return &output[wire.Imported]{imported}, nil
}

// importError is the error of an import, with the result of the lines before it.
type importError struct {
	error
	imported wire.Imported
}

// Unwrap is the error.
func (e *importError) Unwrap() error { return e.error }

// limitedReader reads an import, and records how it ended.
type limitedReader struct {
	from       io.Reader // fails beyond the limit
	over, late bool      // late means that nothing came for too long
	// extend sets the deadline for more: an import may take long, but must not be silent forever.
	extend func(deadline time.Time) error
}

// Read reads.
func (l *limitedReader) Read(p []byte) (int, error) {
	_ = l.extend(time.Now().Add(BodyTimeout)) // where there are no deadlines, nothing is waited for
	n, err := l.from.Read(p)
	l.late = errors.Is(err, os.ErrDeadlineExceeded)
	_, l.over = errors.AsType[*http.MaxBytesError](err)
	return n, err
}

// plain refuses what no store can hold, before the store is called: text with NUL or that is not UTF-8, numbers beyond
// 32 bits where a column has no more, and times outside of the years 1 to 9999. The response names each field, like
// every other validation. Fields with the tag bytes may have any bytes.
func plain(in any) error {
	var faults []error
	walk(reflect.ValueOf(in).Elem(), "", &faults)
	if len(faults) == 0 {
		return nil
	}
	return huma.NewError(http.StatusUnprocessableEntity, "validation failed", faults...)
}

var timeType = reflect.TypeFor[time.Time]()

// walk checks a value at a location in the request.
func walk(v reflect.Value, at string, faults *[]error) {
	fault := func(message string) { *faults = append(*faults, &huma.ErrorDetail{Location: at, Message: message}) }
	switch v.Kind() {
	case reflect.String:
		if !operations.Storable(v.String()) {
			fault("expected text in UTF-8 without NUL")
		}
	case reflect.Int:
		if n := v.Int(); n > math.MaxInt32 || n < math.MinInt32 {
			fault("expected number <= 2147483647")
		}
	case reflect.Pointer:
		if !v.IsNil() {
			walk(v.Elem(), at, faults)
		}
	case reflect.Slice:
		for i := range v.Len() {
			walk(v.Index(i), at, faults)
		}
	case reflect.Struct:
		if v.Type() == timeType {
			if t, _ := reflect.TypeAssert[time.Time](v); t.UTC().Year() < 1 || t.UTC().Year() > 9999 {
				fault("expected a time of the years 1 to 9999")
			}
			return
		}
		for i := range v.NumField() {
			if field := v.Type().Field(i); field.IsExported() && field.Tag.Get("bytes") == "" {
				walk(v.Field(i), place(at, &field), faults)
			}
		}
	default: // numbers that any column holds, and what a handler reads as a stream
	}
}

// place is the location of a field in a request: query.topic, body.filter.topic.
func place(at string, field *reflect.StructField) string {
	for _, kind := range []string{"path", "query", "header"} {
		if name, _, _ := strings.Cut(field.Tag.Get(kind), ","); name != "" && at == "" { // a filter is in bodies too
			return kind + "." + name
		}
	}
	name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
	switch {
	case name != "" && !field.Anonymous:
		return at + "." + name
	case at == "" && field.Name == "Body":
		return "body"
	default: // embedded, or the value of an optional parameter
		return at
	}
}
