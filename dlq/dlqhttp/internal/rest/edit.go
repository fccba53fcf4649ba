package rest

import (
	"bytes"
	"context"
	"fmt"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/redact"
)

// Edit changes the message of an entry.
type Edit struct {
	Payload       *string           `json:"payload,omitempty" doc:"The new payload, as text."`
	PayloadBase64 []byte            `json:"payload_base64,omitempty" doc:"The new payload, as bytes."`
	JQ            string            `json:"jq,omitempty" maxLength:"10000" doc:"A jq expression that the payload goes through; its first result is the new one."`
	SetHeaders    map[string]string `json:"set_headers,omitempty"`
	RemoveHeaders []string          `json:"remove_headers,omitempty" nullable:"false"`
}

// EditRequest is an edit to be made.
type EditRequest struct {
	Edit
	Note
	Redrive bool `json:"redrive,omitempty" doc:"Send it back at once. When that fails the edit stays."`
}

// Edited is what an edit made.
type Edited struct {
	Entry Entry `json:"entry"`
	Diff  Diff  `json:"diff"`
}

type previewInput struct {
	ID
	Body Edit
}

type editInput struct {
	ID
	Match
	Body EditRequest
}

type editedOutput struct {
	ETag string `header:"ETag"`
	Body Edited
}

func (a *API) editRoutes() {
	handle(a, route{
		id: "preview-edit", method: http.MethodPost, path: "/entries/{id}/edit/preview", tag: "entries", role: access.Operator,
		summary: "Show what an edit would change, and change nothing",
	}, a.previewEdit)
	handle(a, route{
		id: "edit-entry", method: http.MethodPost, path: "/entries/{id}/edit", tag: "entries", role: access.Operator, changes: true,
		summary:     "Change a dead letter's payload or headers before it is sent back",
		description: "The original is kept as revision 0. An edit that changes nothing makes no revision.",
	}, a.edit)
}

// editOf checks that who asks may edit so.
func (a *API) editOf(ctx context.Context, e *Edit) (dlq.Edit, error) {
	edit := dlq.Edit{Payload: e.PayloadBase64, JQ: e.JQ, SetHeaders: e.SetHeaders, RemoveHeaders: e.RemoveHeaders}
	ways := 0
	for _, given := range []bool{e.Payload != nil, e.PayloadBase64 != nil, e.JQ != ""} {
		if given {
			ways++
		}
	}
	if ways > 1 {
		return edit, huma.NewError(http.StatusUnprocessableEntity, "body: give one of payload, payload_base64 and jq")
	}
	if ways == 0 && len(e.SetHeaders)+len(e.RemoveHeaders) == 0 {
		return edit, huma.NewError(http.StatusUnprocessableEntity, "body: nothing to change: give payload, payload_base64, jq, set_headers or remove_headers")
	}
	if e.Payload != nil {
		edit.Payload = []byte(*e.Payload)
	}
	rules := a.visible(ctx)
	if rules == nil {
		return edit, nil
	}
	if e.JQ != "" {
		return edit, a.noJQ()
	}
	hidden := bytes.Contains(edit.Payload, []byte(redact.Mask))
	for _, value := range e.SetHeaders {
		hidden = hidden || bytes.Contains([]byte(value), []byte(redact.Mask))
	}
	if hidden {
		return edit, huma.NewError(http.StatusUnprocessableEntity,
			"body: this would overwrite what is hidden from you with "+redact.Mask+": ask somebody with the role "+a.cfg.RevealTo.String())
	}
	return edit, nil
}

// noJQ refuses an expression of who may not see everything: it could copy what is hidden to where it is not.
func (a *API) noJQ() error {
	return huma.NewError(http.StatusForbidden,
		"a jq expression sees what is hidden from you, and could copy it: ask somebody with the role "+a.cfg.RevealTo.String())
}

func (a *API) previewEdit(ctx context.Context, in *previewInput) (*output[Diff], error) {
	edit, err := a.editOf(ctx, &in.Body)
	if err != nil {
		return nil, err
	}
	e, err := a.cfg.Manager.Get(ctx, in.ID.ID)
	if err != nil {
		return nil, a.fail(ctx, err, 0)
	}
	after, err := edit.Apply(ctx, e.Body)
	if err != nil {
		return nil, a.fail(ctx, fmt.Errorf("dlq: edit entry %d: %w", e.ID, err), 0)
	}
	return &output[Diff]{diffOf(a.visible(ctx).Diff(e.Body, after))}, nil
}

func (a *API) edit(ctx context.Context, in *editInput) (*editedOutput, error) {
	edit, err := a.editOf(ctx, &in.Body.Edit)
	if err != nil {
		return nil, err
	}
	version, err := in.version()
	if err != nil {
		return nil, err
	}
	who := by(ctx, in.Body.Note.Note)
	who.Version = version
	before, err := a.cfg.Manager.Get(ctx, in.ID.ID)
	if err != nil {
		return nil, a.fail(ctx, err, 0)
	}
	if who.Version == 0 {
		who.Version = before.Version // the difference is shown from this one
	}
	e, _, err := a.cfg.Manager.Edit(ctx, in.ID.ID, edit, who)
	if err != nil {
		return nil, a.fail(ctx, err, version)
	}
	after, err := a.cfg.Manager.Body(ctx, e.ID, e.Revision)
	if err != nil {
		return nil, a.fail(ctx, err, 0)
	}
	diff := diffOf(a.visible(ctx).Diff(before.Body, after))
	if in.Body.Redrive {
		who.Version = e.Version
		if e, err = a.cfg.Manager.Redrive(ctx, e.ID, who); err != nil {
			return nil, a.fail(ctx, err, version)
		}
	}
	return &editedOutput{ETag: etag(e.Version), Body: Edited{Entry: entryOf(a.visible(ctx).Entry(e)), Diff: diff}}, nil
}
