package rest

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	"github.com/danielgtaylor/huma/v2"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
)

// Page asks for a part of a list.
type Page struct {
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"50" doc:"At most so many."`
	Order  string `query:"order" enum:"newest,oldest" default:"newest"`
	Cursor string `query:"cursor" maxLength:"200" doc:"next of the page before."`
}

func (p *Page) page() dlq.Page {
	return dlq.Page{Limit: p.Limit, Order: dlq.Order(p.Order), After: p.Cursor}
}

// ID is an entry's id in a path.
type ID struct {
	ID int64 `path:"id" minimum:"1" doc:"The entry's id."`
}

// Link is a list's header that names the next page.
type Link struct {
	Link string `header:"Link" doc:"The next page, as rel=next."`
}

// Self puts the request's own address where the answer needs it.
type Self struct{ url url.URL }

// Resolve notes the address.
func (s *Self) Resolve(ctx huma.Context) []error {
	s.url = ctx.URL()
	return nil
}

// next is the address of the next page, as a Link header.
func (s *Self) next(cursor string) Link {
	if cursor == "" {
		return Link{}
	}
	query := s.url.Query()
	query.Set("cursor", cursor)
	return Link{Link: "<" + s.url.EscapedPath() + "?" + query.Encode() + `>; rel="next"`}
}

type listInput struct {
	Query
	Page
	Self
}

type listOutput struct {
	Link
	Body EntryList
}

// EntryList is a page of entries.
type EntryList struct {
	Entries []Entry `json:"entries" nullable:"false"`
	Next    string  `json:"next,omitempty" doc:"The cursor of the next page; absent on the last."`
}

type getInput struct {
	ID
	IfNoneMatch string `header:"If-None-Match" doc:"An ETag; the answer is 304 when it is the entry's."`
}

type detailOutput struct {
	ETag string `header:"ETag"`
	Body EntryDetail
}

type revisionInput struct {
	ID
	Revision int `path:"revision" minimum:"0" doc:"0 is what died first."`
}

type diffInput struct {
	ID
	From int           `query:"from" minimum:"0" doc:"The revision before; 0 is what died first."`
	To   optional[int] `query:"to" minimum:"0" doc:"The revision after. Defaults to what a redrive sends."`
}

// AuditList is a page of the audit log.
type AuditList struct {
	Records []AuditRecord `json:"records" nullable:"false"`
	Next    string        `json:"next,omitempty" doc:"The cursor of the next page; absent on the last."`
}

// Count is a number of entries.
type Count struct {
	Count int64 `json:"count"`
}

type countInput struct {
	Query
	UpTo int64 `query:"up_to" minimum:"0" doc:"Count no further than this; 0 counts all."`
}

type output[T any] struct{ Body T }

func (a *API) entryRoutes() {
	get := func(id, path, summary string) route {
		return route{
			id: id, method: http.MethodGet, path: path, tag: "entries", summary: summary, role: access.Viewer,
		}
	}
	handle(a, get("list-entries", "/entries", "List dead letters"), a.list)
	handle(a, get("count-entries", "/entries/count", "Count dead letters"), a.count)
	handle(a, get("get-entry", "/entries/{id}", "Get a dead letter with its message"), a.get)
	raw := get("get-payload", "/entries/{id}/payload", "Get the payload, byte for byte")
	op := a.operation(raw)
	op.Responses = map[string]*huma.Response{"200": {
		Description: "The payload", Content: map[string]*huma.MediaType{"application/octet-stream": {Schema: binary}},
	}}
	huma.Register(a.huma, op, a.payload)
	a.finish(raw)
	handle(a, get("get-revision", "/entries/{id}/revisions/{revision}", "Get one revision of a dead letter's message"), a.revision)
	handle(a, get("diff-revisions", "/entries/{id}/diff", "Compare two revisions of a dead letter's message"), a.diff)
	handle(a, get("get-entry-audit", "/entries/{id}/audit", "Get what was done to a dead letter, oldest first"), a.audit)
}

var binary = &huma.Schema{Type: huma.TypeString, Format: "binary"}

func (a *API) list(ctx context.Context, in *listInput) (*listOutput, error) {
	filter, err := a.filtered(ctx, in)
	if err != nil {
		return nil, a.fail(ctx, err, 0)
	}
	listing, err := a.cfg.Manager.List(ctx, filter, in.page())
	if err != nil {
		return nil, a.fail(ctx, err, 0)
	}
	return &listOutput{Link: in.next(listing.Next), Body: EntryList{Entries: a.entries(ctx, listing.Entries), Next: listing.Next}}, nil
}

// entries shows what may be shown of entries.
func (a *API) entries(ctx context.Context, entries []dlq.Entry) []Entry {
	rules := a.visible(ctx)
	shown := make([]Entry, 0, len(entries))
	for i := range entries {
		shown = append(shown, entryOf(rules.Entry(&entries[i])))
	}
	return shown
}

func (a *API) count(ctx context.Context, in *countInput) (*output[Count], error) {
	filter, err := a.filtered(ctx, in)
	if err != nil {
		return nil, a.fail(ctx, err, 0)
	}
	n, err := a.cfg.Manager.Count(ctx, filter, in.UpTo)
	if err != nil {
		return nil, a.fail(ctx, err, 0)
	}
	return &output[Count]{Count{n}}, nil
}

func (a *API) get(ctx context.Context, in *getInput) (*detailOutput, error) {
	e, err := a.cfg.Manager.Get(ctx, in.ID.ID)
	if err != nil {
		return nil, a.fail(ctx, err, 0)
	}
	if tag := etag(e.Version); in.IfNoneMatch != "" && matches(in.IfNoneMatch, tag) {
		return nil, huma.ErrorWithHeaders(huma.Status304NotModified(), http.Header{"Etag": {tag}})
	}
	return a.detail(ctx, e), nil
}

func (a *API) detail(ctx context.Context, e *dlq.Entry) *detailOutput {
	shown := a.visible(ctx).Entry(e)
	return &detailOutput{ETag: etag(e.Version), Body: EntryDetail{Entry: entryOf(shown), Body: bodyOf(shown.Body)}}
}

func (a *API) payload(ctx context.Context, in *ID) (*huma.StreamResponse, error) {
	e, err := a.cfg.Manager.Get(ctx, in.ID)
	if err != nil {
		return nil, a.fail(ctx, err, 0)
	}
	body := a.visible(ctx).Body(e.Body)
	return &huma.StreamResponse{Body: func(ctx huma.Context) {
		// Never what the message says that it is: a payload is anybody's, and a browser would run it.
		ctx.SetHeader("Content-Type", "application/octet-stream")
		ctx.SetHeader("Content-Disposition", fmt.Sprintf(`attachment; filename="entry-%d.bin"`, e.ID))
		ctx.SetHeader("ETag", etag(e.Version))
		_, _ = ctx.BodyWriter().Write(body.Payload) // the client has gone: nobody is left to be told
	}}, nil
}

func (a *API) revision(ctx context.Context, in *revisionInput) (*output[Body], error) {
	body, err := a.cfg.Manager.Body(ctx, in.ID.ID, in.Revision)
	if err != nil {
		return nil, a.fail(ctx, err, 0)
	}
	return &output[Body]{bodyOf(a.visible(ctx).Body(body))}, nil
}

func (a *API) diff(ctx context.Context, in *diffInput) (*output[Diff], error) {
	if !in.To.set {
		e, err := a.cfg.Manager.Get(ctx, in.ID.ID)
		if err != nil {
			return nil, a.fail(ctx, err, 0)
		}
		in.To.Value = e.Revision
	}
	before, err := a.cfg.Manager.Body(ctx, in.ID.ID, in.From)
	if err != nil {
		return nil, a.fail(ctx, err, 0)
	}
	after, err := a.cfg.Manager.Body(ctx, in.ID.ID, in.To.Value)
	if err != nil {
		return nil, a.fail(ctx, err, 0)
	}
	return &output[Diff]{diffOf(a.visible(ctx).Diff(before, after))}, nil
}

func (a *API) audit(ctx context.Context, in *ID) (*output[AuditList], error) {
	records, err := a.cfg.Manager.Audit(ctx, in.ID)
	if err == nil && len(records) == 0 { // an entry that only died has none, one that never was has none either
		_, err = a.cfg.Manager.Get(ctx, in.ID)
	}
	if err != nil {
		return nil, a.fail(ctx, err, 0)
	}
	return &output[AuditList]{AuditList{Records: auditOf(a.records(ctx, records))}}, nil
}

// records shows what may be shown of audit records.
func (a *API) records(ctx context.Context, records []dlq.AuditRecord) []dlq.AuditRecord {
	rules := a.visible(ctx)
	shown := make([]dlq.AuditRecord, 0, len(records))
	for i := range records {
		shown = append(shown, rules.Audit(records[i]))
	}
	return shown
}
