package rest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/visible"
	"github.com/redrive-go/redrive/dlq/wire"
)

type previewInput struct {
	ID
	Body wire.Edit
}

type editInput struct {
	ID
	Match
	Body wire.EditRequest
}

func (a *API) editRoutes() {
	handle(a, route{
		ID: "preview-edit", Method: http.MethodPost, Path: "/entries/{id}/edit/preview", Tag: "entries",
		Role:    access.Operator,
		Summary: "Show what an edit would change, and change nothing",
	}, a.previewEdit)
	register(a, route{
		ID: "edit-entry", Method: http.MethodPost, Path: "/entries/{id}/edit", Tag: "entries", Role: access.Operator,
		Changes:     true,
		Summary:     "Change a dead letter's payload or headers before it is sent back",
		Description: "The original is kept as revision 0. An edit that changes nothing makes no revision.",
	}, a.edit)
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
	return &tagged[wire.Edited]{ETag: etag(e.Version), Body: shown}, nil
}
