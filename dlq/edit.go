package dlq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/payload"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/envelope"
)

// Edit changes the message of an entry before it is redriven. The zero Edit changes nothing.
type Edit struct {
	// Payload, unless nil, replaces the payload. A structured message (JSON envelope) is replaced as a whole, envelope
	// included.
	Payload []byte
	// JQ, unless empty, is a jq expression applied to the payload, which must be JSON. Not together with Payload. Parts
	// that it does not change keep their bytes.
	JQ string
	// SetHeaders and RemoveHeaders change the headers. The headers that this project writes (x-message-id, x-retry-count,
	// ...) identify the message and its history and cannot be changed.
	SetHeaders    map[string]string
	RemoveHeaders []string
}

// PreviewEdit shows what an edit would change, and changes nothing.
func (m *Manager) PreviewEdit(ctx context.Context, id int64, edit Edit) (payload.Diff, error) {
	e, after, err := m.edited(ctx, id, edit)
	if err != nil {
		return payload.Diff{}, err
	}
	return payload.Compare(e.Body, after), nil
}

// edited is an entry, and its body after an edit.
func (m *Manager) edited(ctx context.Context, id int64, edit Edit) (*Entry, *Body, error) {
	e, err := m.cfg.Store.Get(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	after, err := edit.apply(ctx, m.cfg.JQ, e.Body)
	if err != nil {
		return nil, nil, fmt.Errorf("dlq: edit entry %d: %w", id, err)
	}
	return e, after, nil
}

// Edit gives a PENDING or PARKED entry a new revision of its body, which is what a redrive then sends. The original and
// every revision remain available through Body; the difference is in the audit log. By.Version should be the
// version that the edit is based on. An edit that changes nothing makes no revision.
func (m *Manager) Edit(ctx context.Context, id int64, edit Edit, by By) (*Entry, payload.Diff, error) {
	e, after, err := m.edited(ctx, id, edit)
	if err != nil {
		return nil, payload.Diff{}, err
	}
	diff := payload.Compare(e.Body, after)
	if diff.Empty() {
		return e, diff, nil
	}
	by.Version = cmp.Or(by.Version, e.Version) // the version that was edited
	revised, err := m.cfg.Store.Revise(ctx, driver.Revision{
		EntryID: id, Version: by.Version, Body: after, Actor: by.Actor, Note: by.Note, At: m.Now(ctx), Detail: diff.Detail(),
	})
	if err != nil {
		return nil, diff, err
	}
	return revised, diff, nil
}

// EditAndRedrive edits an entry and sends it back. If the redrive fails, the edit remains, and the edited entry is
// returned with the error; if the actor may not send another message alone (see [Approval]), nothing is changed.
func (m *Manager) EditAndRedrive(ctx context.Context, id int64, edit Edit, by By) (*Entry, error) {
	if err := m.MaySend(ctx, id, by); err != nil {
		return nil, err
	}
	edited, _, err := m.Edit(ctx, id, edit, by)
	if err != nil {
		return nil, err
	}
	by.Version = edited.Version
	sent, err := m.Redrive(ctx, id, by)
	return cmp.Or(sent, edited), err
}

// ApplyEdit returns the edited body and leaves the original unchanged. The error wraps [ErrInvalid] when the edit is
// not possible.
func (m *Manager) ApplyEdit(ctx context.Context, edit Edit, b *Body) (*Body, error) {
	return edit.apply(ctx, m.cfg.JQ, b)
}

func (e Edit) apply(ctx context.Context, jq payload.Evaluator, b *Body) (*Body, error) {
	if e.JQ != "" {
		if e.Payload != nil {
			return nil, fmt.Errorf("%w: give a payload or a jq expression, not both", ErrInvalid)
		}
		switch edited, err := payload.Edit(ctx, jq, e.JQ, b); {
		case errors.Is(err, payload.ErrNotEvaluated):
			return nil, err
		case err != nil:
			return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
		case edited != nil:
			e.Payload = edited.Payload
		}
	}
	after := *b
	after.Headers = maps.Clone(b.Headers)
	if after.Headers == nil {
		after.Headers = map[string]string{}
	}
	for _, key := range slices.Concat(slices.Collect(maps.Keys(e.SetHeaders)), e.RemoveHeaders) {
		if key == "" {
			return nil, fmt.Errorf("%w: a header needs a name", ErrInvalid)
		}
		if locked(key) {
			return nil, fmt.Errorf("%w: header %q is part of the message's identity or history and cannot be edited", ErrInvalid,
				key)
		}
	}
	for _, key := range e.RemoveHeaders {
		delete(after.Headers, key)
	}
	maps.Copy(after.Headers, e.SetHeaders)
	if e.Payload != nil {
		after.Payload = slices.Clone(e.Payload)
	}
	after.Rehash()
	return &after, nil
}

// EditableHeader reports whether an [Edit] may change the header: those of the message's identity and history are
// fixed.
func EditableHeader(name string) bool { return name != "" && !locked(name) }

// locked reports whether a header cannot be edited. The content type and the correlation id are the producer's, and
// can.
func locked(key string) bool {
	switch strings.ToLower(key) {
	case envelope.KeyContentType, envelope.KeyCorrelationID:
		return false
	default:
		return envelope.IsOurs(key) || envelope.IsBrokerMade(key)
	}
}

// SetWire sets the edit from its JSON form.
func (e *Edit) SetWire(w *wire.Edit) {
	*e = Edit{JQ: w.JQ, SetHeaders: w.SetHeaders, RemoveHeaders: w.RemoveHeaders, Payload: w.PayloadBase64}
	if w.Payload != nil {
		e.Payload = []byte(*w.Payload)
	}
}
