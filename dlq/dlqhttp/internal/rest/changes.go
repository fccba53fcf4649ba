package rest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/visible"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/wire"
)

type changeInput struct {
	ID
	Match
	Body *wire.Note
}

type change func(context.Context, int64, dlq.By) (*dlq.Entry, error)

func (a *API) changeRoutes() {
	m := a.cfg.Manager
	for _, c := range []struct {
		verb, summary string
		status        int
		role          access.Role
		do            change
	}{
		{"redrive", "Send a dead letter back to its consumer", http.StatusAccepted, access.Operator, m.Redrive},
		{"resolve", "Mark a dead letter as taken care of", http.StatusOK, access.Operator, m.Resolve},
		{"discard", "Give a dead letter up; it is kept and can be restored", http.StatusOK, access.Operator, m.Discard},
		{"restore", "Undo resolve, discard or park", http.StatusOK, access.Operator, m.Restore},
		{"park", "Set a dead letter aside for a person", http.StatusOK, access.Operator, m.Park},
		{
			"release", "End the wait for the outcome of a redrive; the note is required", http.StatusOK, access.Admin,
			m.Release,
		},
	} {
		r := changeRoute(c.role, "entries", c.verb+"-entry", "/entries/{id}/"+c.verb, c.summary)
		r.Status = c.status
		register(a, r, func(ctx context.Context, in *changeInput) (*tagged[wire.Entry], error) {
			return a.change(ctx, in, c.do)
		})
	}
	handle(a, route{
		ID: "change-entries", Method: http.MethodPost, Path: "/entries/bulk", Tag: "entries", Slow: true,
		Summary: "Resolve, discard, restore or park everything that a filter picks", Role: access.Operator, Changes: true,
		Description: "To send back what a filter picks, start a run. Changes made before an error remain; repeating the " +
			"request is safe.",
	}, a.bulk)
	handle(a, route{
		ID: "preview-edit", Method: http.MethodPost, Path: "/entries/{id}/edit/preview", Tag: "entries",
		Role:    access.Operator,
		Summary: "Show what an edit would change, and change nothing",
	}, a.previewEdit)
	edit := changeRoute(access.Operator, "entries", "edit-entry", "/entries/{id}/edit",
		"Change a dead letter's payload or headers before it is sent back")
	edit.Description = "The original is kept as revision 0. An edit that changes nothing makes no revision."
	register(a, edit, a.edit)
}

func (a *API) change(ctx context.Context, in *changeInput, do change) (*tagged[wire.Entry], error) {
	who := noted(ctx, in.Body)
	var err error
	if who.Version, err = in.version(); err != nil {
		return nil, err
	}
	e, err := do(ctx, in.ID.ID, who)
	if err != nil {
		return nil, err
	}
	return &tagged[wire.Entry]{ETag: wire.ETag(e.Version), Body: a.visible(ctx).Entry(e)}, nil
}

func (a *API) bulk(ctx context.Context, in *struct{ Body wire.BulkRequest }) (*wire.BulkResult, error) {
	filter, err := a.filtered(ctx, &in.Body.Filter)
	if err != nil {
		return nil, err
	}
	if err := picks(&filter); err != nil {
		return nil, err
	}
	done, err := a.cfg.Manager.ChangeAll(ctx, driver.Action(in.Body.Action), filter, by(ctx, in.Body.Note.Note))
	if err != nil {
		return nil, err
	}
	result := wire.BulkResult{Changed: done.Changed, Refused: done.Refused, Conflicts: []wire.Conflict{}}
	for _, c := range done.Conflicts {
		if conflict := a.conflict(ctx, c); conflict != nil {
			result.Conflicts = append(result.Conflicts, *conflict)
		}
	}
	return new(result), nil
}

type previewInput struct {
	ID
	Body wire.Edit
}

type editInput struct {
	ID
	Match
	Body wire.EditRequest
}

// editOf is the requested edit of a body, which the caller may make.
func (a *API) editOf(ctx context.Context, id int64, w *wire.Edit, of *dlq.Body) (dlq.Edit, error) {
	var edit dlq.Edit
	edit.SetWire(w)
	ways := 0
	for _, given := range []bool{w.Payload != nil, w.PayloadBase64 != nil, w.JQ != ""} {
		if given {
			ways++
		}
	}
	if ways > 1 {
		return edit, huma.NewError(http.StatusUnprocessableEntity, "body: give one of payload, payload_base64 and jq")
	}
	if ways == 0 && len(w.SetHeaders)+len(w.RemoveHeaders) == 0 {
		return edit, huma.NewError(http.StatusUnprocessableEntity,
			"body: nothing to change: give payload, payload_base64, jq, set_headers or remove_headers")
	}
	if err := a.visible(ctx).Edit(&edit, of); err != nil {
		if refused, ok := errors.AsType[*visible.RefusedError](err); ok {
			refused.Entry = id
		}
		return edit, err
	}
	if err := a.cfg.Read(ctx, "difference", id); err != nil {
		return edit, err
	}
	return edit, nil
}

func (a *API) previewEdit(ctx context.Context, in *previewInput) (*wire.Diff, error) {
	e, err := a.cfg.Manager.Get(ctx, in.ID.ID)
	if err != nil {
		return nil, err
	}
	edit, err := a.editOf(ctx, e.ID, &in.Body, e.Body)
	if err != nil {
		return nil, err
	}
	after, err := a.cfg.Manager.ApplyEdit(ctx, edit, e.Body)
	if err != nil {
		return nil, fmt.Errorf("dlq: edit entry %d: %w", e.ID, err)
	}
	return new(a.visible(ctx).Diff(e.Body, after)), nil
}

func (a *API) edit(ctx context.Context, in *editInput) (*tagged[wire.Edited], error) {
	version, err := in.version()
	if err != nil {
		return nil, err
	}
	before, err := a.cfg.Manager.Get(ctx, in.ID.ID)
	if err != nil {
		return nil, err
	}
	edit, err := a.editOf(ctx, before.ID, &in.Body.Edit, before.Body)
	if err != nil {
		return nil, err
	}
	who := by(ctx, in.Body.Note.Note)
	who.Version = cmp.Or(version, before.Version) // the difference is shown from this one
	var e *dlq.Entry
	if in.Body.Redrive {
		e, err = a.cfg.Manager.EditAndRedrive(ctx, before.ID, edit, who)
	} else {
		e, _, err = a.cfg.Manager.Edit(ctx, before.ID, edit, who)
	}
	if err != nil {
		return nil, err
	}
	after, err := a.cfg.Manager.Body(ctx, e.ID, e.Revision)
	if err != nil {
		return nil, err
	}
	shown := wire.Edited{Entry: a.visible(ctx).Entry(e), Diff: a.visible(ctx).Diff(before.Body, after)}
	return &tagged[wire.Edited]{ETag: wire.ETag(e.Version), Body: shown}, nil
}

type none struct{}

func (a *API) purgeRoutes() {
	handle(a, route{
		ID: "preview-purge", Method: http.MethodPost, Path: "/purge/preview", Tag: "maintenance", Role: access.Viewer,
		Summary: "Count what a purge would remove, and remove nothing",
	}, a.previewPurge)
	handle(a, route{
		ID: "purge-entries", Method: http.MethodPost, Path: "/purge", Tag: "maintenance", Role: access.Admin, Changes: true,
		Slow: true, Summary: "Remove closed dead letters that are old, after a copy to the archive",
	}, a.purge)
	handle(a, changeRoute(access.Admin, "maintenance", "restore-archived", "/archive/restore",
		"Bring purged dead letters back from the archive"), a.unarchive)
	handle(a, readRoute("maintenance", "get-retention", "/retention",
		"Show how long closed dead letters are kept, and how many are due"), a.retention)
}

// purgeable is what a purge of the scope picks.
func purgeable(s *wire.PurgeScope) (dlq.Filter, error) {
	if s.ClosedBefore.IsZero() {
		return dlq.Filter{}, huma.NewError(http.StatusUnprocessableEntity, "body.closed_before: say how old")
	}
	f := dlq.Filter{Statuses: s.Statuses, ResolvedBefore: s.ClosedBefore}
	if len(f.Statuses) == 0 {
		f.Statuses = []dlq.Status{dlq.Resolved}
	}
	return f, nil
}

func (a *API) previewPurge(ctx context.Context, in *struct{ Body wire.PurgeScope }) (*wire.Count, error) {
	filter, err := purgeable(&in.Body)
	if err != nil {
		return nil, err
	}
	n, err := a.cfg.Manager.Count(ctx, filter, 0)
	return &wire.Count{Count: n}, err
}

func (a *API) purge(ctx context.Context, in *struct{ Body wire.PurgeRequest }) (*wire.Purged, error) {
	if _, err := purgeable(&in.Body.PurgeScope); err != nil {
		return nil, err
	}
	who := by(ctx, in.Body.Note.Note)
	n, err := a.cfg.Manager.Purge(ctx, dlq.Purge{
		Statuses: in.Body.Statuses, ClosedBefore: in.Body.ClosedBefore, SkipArchive: in.Body.SkipArchive,
		Actor: who.Actor, Note: who.Note,
	})
	return &wire.Purged{Purged: n}, err
}

func (a *API) unarchive(ctx context.Context, in *struct{ Body wire.ArchiveRequest }) (*wire.ArchiveResult, error) {
	ids, err := a.cfg.Manager.Unarchive(ctx, by(ctx, in.Body.Note.Note), in.Body.IDs...)
	return &wire.ArchiveResult{Restored: append([]int64{}, ids...)}, err
}

func (a *API) retention(ctx context.Context, _ *none) (*wire.Retention, error) {
	r := a.cfg.Retention
	shown := wire.Retention{
		ResolvedSeconds: int64(r.Resolved.Seconds()), DiscardedSeconds: int64(r.Discarded.Seconds()),
		SkipArchive: r.SkipArchive,
	}
	for _, due := range []struct {
		status dlq.Status
		keep   time.Duration
		count  *int64
	}{{dlq.Resolved, r.Resolved, &shown.ResolvedDue}, {dlq.Discarded, r.Discarded, &shown.DiscardedDue}} {
		if due.keep == 0 {
			continue
		}
		before := a.cfg.Manager.Now(ctx).Add(-due.keep)
		n, err := a.cfg.Manager.Count(ctx, dlq.Filter{Statuses: []dlq.Status{due.status}, ResolvedBefore: before}, 0)
		if err != nil {
			return nil, err
		}
		*due.count = n
	}
	return new(shown), nil
}

func (a *API) validationEvent(ctx context.Context, e *dlq.Entry) wire.ValidationEvent {
	shown := a.visible(ctx).Entry(e)
	return wire.ValidationEventOf(&shown)
}

type validationInput struct {
	Status string `query:"status" enum:"PENDING,RETRYING,PARKED,RESOLVED,DISCARDED" default:"PENDING"`
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"1000" doc:"At most this many, the newest first."`
	Cursor string `query:"cursor" maxLength:"200" doc:"From the Link header of the previous page."`
	Self
}

type validationOutput struct {
	Link
	Body []wire.ValidationEvent `nullable:"false"`
}

type resolveInput struct {
	ID
	ResolvedBy string `query:"resolvedBy" maxLength:"100" doc:"Who took care of it."`
}

// validationRoutes are the four routes of older services, for existing callers.
func (a *API) validationRoutes() {
	register(a, readRoute("validation", "validation-list", "/validation/dlq",
		"List dead letters in a status, the newest first"), a.validationList)
	retry := changeRoute(access.Operator, "validation", "validation-retry", "/validation/dlq/{id}/retry",
		"Send a dead letter back to its consumer")
	retry.Status = http.StatusAccepted
	handle(a, retry, func(ctx context.Context, in *ID) (*wire.ValidationEvent, error) {
		return a.validationChange(ctx, in.ID, by(ctx, ""), a.cfg.Manager.Redrive)
	})
	handle(a, route{
		ID: "validation-resolve", Method: http.MethodPut, Path: "/validation/dlq/{id}/resolve", Tag: "validation",
		Role: access.Operator, Changes: true, Summary: "Mark a dead letter as taken care of",
		Description: "The entry has resolvedBy as it was sent. The actor in the audit log is the authenticated caller," +
			" and the record has both names.",
	}, a.validationResolve)
	register(a, route{
		ID: "validation-discard", Method: http.MethodDelete, Path: "/validation/dlq/{id}", Tag: "validation",
		Role: access.Operator, Changes: true, Status: http.StatusNoContent,
		Summary: "Give a dead letter up; it is kept as DISCARDED and can be restored",
	}, func(ctx context.Context, in *ID) (*none, error) {
		_, err := a.validationChange(ctx, in.ID, by(ctx, ""), a.cfg.Manager.Discard)
		return nil, err
	})
}

func (a *API) validationList(ctx context.Context, in *validationInput) (*validationOutput, error) {
	listing, err := a.cfg.Manager.List(ctx, dlq.Filter{Statuses: []dlq.Status{dlq.Status(in.Status)}},
		dlq.Page{Limit: in.Limit, After: in.Cursor})
	if err != nil {
		return nil, err
	}
	out := &validationOutput{Link: in.next(listing.Next), Body: make([]wire.ValidationEvent, 0, len(listing.Entries))}
	for i := range listing.Entries {
		out.Body = append(out.Body, a.validationEvent(ctx, &listing.Entries[i]))
	}
	return out, nil
}

func (a *API) validationResolve(ctx context.Context, in *resolveInput) (*wire.ValidationEvent, error) {
	who := by(ctx, "")
	if in.ResolvedBy != "" && !access.Proper(in.ResolvedBy) {
		return nil, huma.NewError(http.StatusUnprocessableEntity, "validation failed",
			&huma.ErrorDetail{Location: "query.resolvedBy", Message: "expected a name without control characters"})
	}
	if who.ResolvedBy = in.ResolvedBy; in.ResolvedBy != "" && access.From(ctx).Unproven {
		who.Actor = in.ResolvedBy // no caller is authenticated here, so this is as good
	}
	return a.validationChange(ctx, in.ID.ID, who, a.cfg.Manager.Resolve)
}

func (a *API) validationChange(ctx context.Context, id int64, who dlq.By, do change) (*wire.ValidationEvent, error) {
	e, err := do(ctx, id, who)
	if err != nil {
		return nil, err
	}
	return new(a.validationEvent(ctx, e)), nil
}
