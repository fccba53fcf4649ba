package rest

import (
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

type editedOutput struct {
	ETag string `header:"ETag"`
	Body wire.Edited
}

func (a *API) editRoutes() {
	handle(a, route{
		id: "preview-edit", method: http.MethodPost, path: "/entries/{id}/edit/preview", tag: "entries",
		role:    access.Operator,
		summary: "Show what an edit would change, and change nothing",
	}, a.previewEdit)
	handleOutput(a, route{
		id: "edit-entry", method: http.MethodPost, path: "/entries/{id}/edit", tag: "entries", role: access.Operator,
		changes:     true,
		summary:     "Change a dead letter's payload or headers before it is sent back",
		description: "The original is kept as revision 0. An edit that changes nothing makes no revision.",
	}, a.edit)
}

// editOf checks that the caller may make this edit of a body.
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
	diff := a.visible(ctx).Diff(e.Body, after)
	return &diff, nil
}

func (a *API) edit(ctx context.Context, in *editInput) (*editedOutput, error) {
	version, err := in.version()
	if err != nil {
		return nil, err
	}
	who := by(ctx, in.Body.Note.Note)
	who.Version = version
	before, err := a.cfg.Manager.Get(ctx, in.ID.ID)
	if err != nil {
		return nil, err
	}
	edit, err := a.editOf(ctx, before.ID, &in.Body.Edit, before.Body)
	if err != nil {
		return nil, err
	}
	if who.Version == 0 {
		who.Version = before.Version // the difference is shown from this one
	}
	if in.Body.Redrive { // a refusal must have changed nothing
		if err := a.cfg.Manager.MaySend(ctx, in.ID.ID, who); err != nil {
			return nil, err
		}
	}
	e, _, err := a.cfg.Manager.Edit(ctx, in.ID.ID, edit, who)
	if err != nil {
		return nil, err
	}
	after, err := a.cfg.Manager.Body(ctx, e.ID, e.Revision)
	if err != nil {
		return nil, err
	}
	diff := a.visible(ctx).Diff(before.Body, after)
	if in.Body.Redrive {
		who.Version = e.Version
		if e, err = a.cfg.Manager.Redrive(ctx, e.ID, who); err != nil {
			return nil, err
		}
	}
	return &editedOutput{ETag: etag(e.Version), Body: wire.Edited{Entry: a.visible(ctx).Entry(e), Diff: diff}}, nil
}
