package rest

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/wire"
)

// ID is an entry's id in a path.
type ID struct {
	ID int64 `path:"id" minimum:"1" doc:"The entry's id."`
}

// Link is the header of a list with the address of the next page.
type Link struct {
	Link string `header:"Link" doc:"The next page, as rel=next."`
}

// Self is the address of the request itself, for a response that needs it.
type Self struct{ url url.URL }

// Resolve keeps the address.
func (s *Self) Resolve(ctx huma.Context) []error {
	s.url = ctx.URL()
	return nil
}

// next is the address of the next page, as a Link header.
func (s *Self) next(cursor string) Link { return s.from("cursor", cursor) }

// from is next for a list whose parameter has another name.
func (s *Self) from(parameter, value string) Link {
	if value == "" {
		return Link{}
	}
	query := s.url.Query()
	query.Set(parameter, value)
	return Link{Link: "<" + s.url.EscapedPath() + "?" + query.Encode() + `>; rel="next"`}
}

type listInput struct {
	Query
	wire.Page
	Self
}

type getInput struct {
	ID
	IfNoneMatch string `header:"If-None-Match" doc:"An ETag; the answer is 304 when it is the entry's."`
}

type revisionInput struct {
	ID
	Revision int `path:"revision" minimum:"0" maximum:"2147483647" doc:"0 is what died first."`
}

type diffInput struct {
	ID
	From int           `query:"from" minimum:"0" maximum:"2147483647" doc:"The revision before; 0 is what died first."`
	To   optional[int] `query:"to" minimum:"0" maximum:"2147483647" doc:"The revision after. Defaults to what a redrive sends."`
}

type countInput struct {
	Query
	UpTo int64 `query:"up_to" minimum:"0" doc:"Count no further than this; 0 counts all."`
}

func (a *API) entryRoutes() {
	get := func(id, path, summary string) route { return readRoute("entries", id, path, summary) }
	register(a, get("list-entries", "/entries", "List dead letters"), a.list)
	handle(a, get("count-entries", "/entries/count", "Count dead letters"), a.count)
	register(a, get("get-entry", "/entries/{id}", "Get a dead letter with its message"), a.get)
	raw := get("get-payload", "/entries/{id}/payload", "Get the payload, byte for byte")
	raw.Sends = "application/octet-stream"
	register(a, raw, a.payload)
	handle(a, get("get-revision", "/entries/{id}/revisions/{revision}", "Get one revision of a dead letter's message"),
		a.revision)
	handle(a, get("diff-revisions", "/entries/{id}/diff", "Compare two revisions of a dead letter's message"), a.diff)
	handle(a, get("get-entry-audit", "/entries/{id}/audit", "Get the actions on a dead letter, oldest first"), a.audit)
}

func (a *API) list(ctx context.Context, in *listInput) (*page[wire.EntryList], error) {
	filter, err := in.allowed(ctx, a)
	if err != nil {
		return nil, err
	}
	listing, err := a.cfg.List(ctx, filter, in.Page)
	if err != nil {
		return nil, err
	}
	body := wire.EntryList{Entries: a.visible(ctx).Entries(listing.Entries), Next: listing.Next}
	return &page[wire.EntryList]{Link: in.next(listing.Next), Body: body}, nil
}

func (a *API) count(ctx context.Context, in *countInput) (*wire.Count, error) {
	filter, err := in.allowed(ctx, a)
	if err != nil {
		return nil, err
	}
	n, err := a.cfg.Count(ctx, filter, in.UpTo)
	return &wire.Count{Count: n}, err
}

func (a *API) get(ctx context.Context, in *getInput) (*tagged[wire.EntryDetail], error) {
	e, err := a.cfg.Manager.Get(ctx, in.ID.ID)
	if err != nil {
		return nil, err
	}
	if tag := wire.ETag(e.Version); in.IfNoneMatch != "" && matches(in.IfNoneMatch, tag) {
		return nil, huma.ErrorWithHeaders(huma.Status304NotModified(), http.Header{"Etag": {tag}})
	}
	if err := a.cfg.Read(ctx, "entry", e.ID); err != nil {
		return nil, err
	}
	return &tagged[wire.EntryDetail]{ETag: wire.ETag(e.Version), Body: a.visible(ctx).Detail(e)}, nil
}

func (a *API) payload(ctx context.Context, in *ID) (*huma.StreamResponse, error) {
	e, err := a.cfg.Manager.Get(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	if err := a.cfg.Read(ctx, "payload", e.ID); err != nil {
		return nil, err
	}
	body := a.visible(ctx).Body(e.Body)
	return &huma.StreamResponse{Body: func(ctx huma.Context) {
		// Never the message's own content type: anyone may have produced the payload, and a browser would run it.
		ctx.SetHeader("Content-Type", "application/octet-stream")
		ctx.SetHeader("Content-Disposition", fmt.Sprintf(`attachment; filename="entry-%d.bin"`, e.ID))
		ctx.SetHeader("ETag", wire.ETag(e.Version))
		_, _ = ctx.BodyWriter().Write(body.Bytes()) // the client disconnected: no reader is left for the error
	}}, nil
}

func (a *API) revision(ctx context.Context, in *revisionInput) (*wire.Body, error) {
	body, err := a.cfg.Manager.Body(ctx, in.ID.ID, in.Revision)
	if err != nil {
		return nil, err
	}
	if err := a.cfg.Read(ctx, "revision", in.ID.ID); err != nil {
		return nil, err
	}
	return new(a.visible(ctx).Body(body)), nil
}

func (a *API) diff(ctx context.Context, in *diffInput) (*wire.Diff, error) {
	if !in.To.set {
		e, err := a.cfg.Manager.Get(ctx, in.ID.ID)
		if err != nil {
			return nil, err
		}
		in.To.Value = e.Revision
	}
	before, err := a.cfg.Manager.Body(ctx, in.ID.ID, in.From)
	if err != nil {
		return nil, err
	}
	after, err := a.cfg.Manager.Body(ctx, in.ID.ID, in.To.Value)
	if err != nil {
		return nil, err
	}
	if err := a.cfg.Read(ctx, "difference", in.ID.ID); err != nil {
		return nil, err
	}
	return new(a.visible(ctx).Diff(before, after)), nil
}

func (a *API) audit(ctx context.Context, in *ID) (*wire.AuditList, error) {
	records, err := a.cfg.Manager.Audit(ctx, in.ID)
	if err == nil && len(records) == 0 { // an entry that only died has none, one that never was has none either
		_, err = a.cfg.Manager.Get(ctx, in.ID)
	}
	return &wire.AuditList{Records: a.visible(ctx).Audit(records)}, err
}

// Query is a Filter in a URL, which is too short for as many ids as a body.
type Query struct {
	wire.Filter
	PayloadFields []string `query:"payload_fields,explode" nullable:"false" maxItems:"8" doc:"Fields of the JSON payload and their required values: customer.id=42. Lists are searched. Reads every payload that matches the other fields." example:"[\"customer.id=42\"]"`

	IDs      []int64       `query:"ids" nullable:"false" maxItems:"1000" doc:"These entries: 7,9,12."`
	Redrives optional[int] `query:"redrives" minimum:"0" maximum:"2147483647" doc:"Exact number of redrives."`
}

func (q *Query) filter() (*wire.Filter, error) {
	f := q.Filter
	for _, text := range q.PayloadFields {
		field, err := wire.ParsePayloadField(text)
		if err != nil {
			return nil, fmt.Errorf("payload_fields: %w", err)
		}
		f.PayloadFields = append(f.PayloadFields, field)
	}
	f.IDs = q.IDs
	if q.Redrives.set {
		f.Redrives = &q.Redrives.Value
	}
	return &f, nil
}

// allowed returns the filter of the parameters, which the caller may use.
func (q *Query) allowed(ctx context.Context, a *API) (dlq.Filter, error) {
	f, err := q.filter()
	if err != nil {
		return dlq.Filter{}, err
	}
	return a.filtered(ctx, f)
}

// filtered checks that the caller may use a filter.
func (a *API) filtered(ctx context.Context, f *dlq.Filter) (dlq.Filter, error) {
	if err := a.visible(ctx).Search(ctx, f); err != nil {
		return *f, err
	}
	return *f, f.Validate()
}

// picks refuses an empty filter: a bulk change never takes everything because something was forgotten.
func picks(f *dlq.Filter) error {
	if reflect.ValueOf(*f).IsZero() {
		return huma.NewError(http.StatusUnprocessableEntity,
			`body.filter: say which entries; {"statuses": ["PENDING"]} means all that wait`)
	}
	return nil
}

// optional is a query parameter that can be absent.
type optional[T any] struct {
	Value T
	set   bool
}

// Schema is that of the value.
func (o optional[T]) Schema(r huma.Registry) *huma.Schema {
	return huma.SchemaFromType(r, reflect.TypeFor[T]())
}

// Receiver is where huma puts the value.
func (o *optional[T]) Receiver() reflect.Value { return reflect.ValueOf(o).Elem().Field(0) }

// OnParamSet reports whether it was given.
func (o *optional[T]) OnParamSet(set bool, _ any) { o.set = set }

// Match is the header that makes a change conditional on the version that the caller saw.
type Match struct {
	IfMatch string `header:"If-Match" doc:"The ETag that was read; the change is refused with 412 when it is not the latest. * is any."`
}

// version reads the header: 0 is any.
func (m *Match) version() (int64, error) {
	text := strings.TrimSpace(m.IfMatch)
	if text == "" || text == "*" {
		return 0, nil
	}
	quoted, ok := strings.CutPrefix(text, `"`)
	digits, closed := strings.CutSuffix(quoted, `"`)
	version, err := strconv.ParseInt(digits, 10, 64)
	if !ok || !closed || err != nil || version < 1 {
		return 0, huma.NewError(http.StatusBadRequest, `If-Match is an ETag as this server gives it, such as "7", or *`)
	}
	return version, nil
}

// matches reports whether an If-None-Match names the ETag.
func matches(header, tag string) bool {
	for candidate := range strings.SplitSeq(header, ",") {
		if candidate = strings.TrimSpace(candidate); candidate == "*" || strings.TrimPrefix(candidate, "W/") == tag {
			return true
		}
	}
	return false
}

type auditInput struct {
	wire.AuditQuery
	wire.Page
	Self
}

func (a *API) groupRoutes() {
	handle(a, readRoute("groups", "list-groups", "/groups", "List causes, those with the most dead letters first"),
		a.groups)
	handle(a, readRoute("groups", "get-report", "/report", "Report which causes are new, grow, return or are fixed"),
		a.report)
	handle(a, readRoute("groups", "get-stats", "/stats", "Count dead letters by status, topic, type, cause and hour"),
		a.stats)
	register(a, readRoute("groups", "list-audit", "/audit", "List the actions taken, by whom and why"), a.auditLog)
	handle(a, readRoute("groups", "list-mutes", "/mutes", "List the muted causes"), a.mutes)
	handle(a, changeRoute(access.Operator, "groups", "mute-group", "/groups/{fingerprint}/mute",
		"Stop the notifications of a cause, for a time or for good"), a.mute)
	handle(a, changeRoute(access.Operator, "groups", "unmute-group", "/groups/{fingerprint}/unmute",
		"Resume the notifications of a cause; returns what is still muted"), a.unmute)
}

// GroupID is the fingerprint of a cause in a path.
type GroupID struct {
	Fingerprint string `path:"fingerprint" maxLength:"64" doc:"The cause."`
}

type muteInput struct {
	GroupID
	Body *wire.MuteRequest
}

type unmuteInput struct {
	GroupID
	Body *wire.Note
}

func (a *API) mutes(ctx context.Context, _ *none) (*wire.MuteList, error) {
	mutes, err := a.cfg.Manager.Mutes(ctx)
	return &wire.MuteList{Mutes: a.visible(ctx).Mutes(mutes)}, err
}

func (a *API) mute(ctx context.Context, in *muteInput) (*wire.Mute, error) {
	body := cmp.Or(in.Body, &wire.MuteRequest{})
	if err := a.visible(ctx).SearchGroups(ctx, &dlq.GroupQuery{Fingerprint: in.Fingerprint}); err != nil {
		return nil, err
	}
	return a.cfg.Manager.Mute(ctx, in.Fingerprint, wire.SecondsOf(body.Seconds).Duration(),
		by(ctx, body.Note.Note))
}

func (a *API) unmute(ctx context.Context, in *unmuteInput) (*wire.MuteList, error) {
	if err := a.visible(ctx).SearchGroups(ctx, &dlq.GroupQuery{Fingerprint: in.Fingerprint}); err != nil {
		return nil, err
	}
	if err := a.cfg.Manager.Unmute(ctx, in.Fingerprint, noted(ctx, in.Body)); err != nil {
		return nil, err
	}
	return a.mutes(ctx, nil)
}

func (a *API) groups(ctx context.Context, in *wire.GroupQuery) (*wire.GroupList, error) {
	if err := a.visible(ctx).SearchGroups(ctx, in); err != nil {
		return nil, err
	}
	groups, more, err := a.cfg.Groups(ctx, *in)
	return &wire.GroupList{Groups: groups, Incomplete: more}, err
}

func (a *API) stats(ctx context.Context, in *wire.StatsQuery) (*wire.Stats, error) {
	return a.cfg.Stats(ctx, *in)
}

func (a *API) auditLog(ctx context.Context, in *auditInput) (*page[wire.AuditList], error) {
	if err := a.visible(ctx).Values(in.Actor, in.Run); err != nil {
		return nil, err
	}
	records, next, err := a.cfg.Manager.AuditLog(ctx, in.AuditFilter, in.Page)
	if err != nil {
		return nil, err
	}
	shown := a.visible(ctx).Audit(records)
	if in.Fold {
		shown = driver.FoldAudit(shown)
	}
	return &page[wire.AuditList]{Link: in.next(next), Body: wire.AuditList{Records: shown, Next: next}}, nil
}

type reportInput struct {
	Hours int `query:"hours" minimum:"1" maximum:"8784" default:"168" doc:"How long the period is; it is compared with as many hours before. A week, unless given."`
}

func (a *API) report(ctx context.Context, in *reportInput) (*wire.Recurrence, error) {
	return a.cfg.Recurrence(ctx, time.Duration(in.Hours)*time.Hour)
}
