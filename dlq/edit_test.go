package dlq_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/envelope"
)

func TestManager_Edit(t *testing.T) {
	t.Parallel()
	store := newStore(t)
	letters, _ := newLetters(t, &faultyStore{Store: store}, t.TempDir())
	c := &outbox{}
	m := operate(t, store, dlq.RedriverFunc(
		func(ctx context.Context, origin envelope.Origin, msg *message.Message, _ time.Duration) error {
			return errors.Join(c.Reschedule(ctx, origin, msg, 0), handled(letters).Reschedule(ctx, origin, msg, 0))
		}))
	d := death(1)
	d.Message.Payload = []byte(`{"cpf":"123","age":15}`)
	id := stored(t, store, d)
	edit := dlq.Edit{
		Payload: []byte(`{"cpf":"529.982.247-25","age":15}`), SetHeaders: map[string]string{"fixed": "yes"},
		RemoveHeaders: []string{"tenant"},
	}
	preview, err := m.PreviewEdit(t.Context(), id, edit)
	require.NoError(t, err)
	require.Equal(t, "+fixed: yes\n-tenant: acme\n {\n-  \"cpf\": \"123\",\n+  \"cpf\": \"529.982.247-25\",\n   "+
		"\"age\": 15\n }\n", preview.String())
	before, err := m.Get(t.Context(), id)
	require.NoError(t, err)
	require.Zero(t, before.Revision, "a preview changes nothing")

	_, _, err = m.Edit(t.Context(), id, edit, dlq.By{Actor: "bob", Version: before.Version + 1})
	require.ErrorIs(t, err, dlq.ErrConflict)
	e, diff, err := m.Edit(t.Context(), id, edit, dlq.By{Actor: "ana", Note: "the CPF was cut", Version: before.Version})
	require.NoError(t, err)
	require.Equal(t, preview, diff)
	require.Equal(t, []any{1, dlq.Pending, "ana", before.Version + 1}, []any{e.Revision, e.Status, e.ChangedBy, e.Version})
	_, diff, err = m.Edit(t.Context(), id, edit, ana)
	require.NoError(t, err)
	require.True(t, diff.Empty())
	original, err := m.Body(t.Context(), id, 0)
	require.NoError(t, err)
	require.Equal(t, before.Body, original, "the original is kept, headers and all")
	records, err := m.Audit(t.Context(), id)
	require.NoError(t, err)
	require.Len(t, records, 1, "what changes nothing leaves no record")
	require.Equal(t, []any{driver.ActionEdit, "the CPF was cut", "1"}, []any{
		records[0].Action, records[0].Note,
		records[0].Detail["revision"],
	})
	require.Contains(t, records[0].Detail["diff"], `+  "cpf": "529.982.247-25"`)

	// After the correction and a redrive, it is handled.
	_, err = m.EditAndRedrive(t.Context(), id, dlq.Edit{SetHeaders: map[string]string{"fixed": "twice"}}, ana)
	require.NoError(t, err)
	require.Equal(t, string(edit.Payload), string(c.sent[0].Payload))
	require.Equal(t, "twice", c.sent[0].Metadata["fixed"])
	e, err = m.Get(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, []any{dlq.Resolved, 2}, []any{e.Status, e.Revision})
	_, _, err = m.Edit(t.Context(), id, dlq.Edit{Payload: []byte("x")}, ana)
	require.ErrorIs(t, err, dlq.ErrConflict, "it is done")
}

func TestManager_EditRefuses(t *testing.T) {
	t.Parallel()
	store := newStore(t)
	m := operate(t, store, nil)
	id := stored(t, store, death(1))
	for _, edit := range []dlq.Edit{
		{SetHeaders: map[string]string{"x-message-id": "another"}},
		{SetHeaders: map[string]string{"x-retry-count": "0"}},
		{RemoveHeaders: []string{"x-redrive-id"}},
		{SetHeaders: map[string]string{"x-death": "[]"}},
		{SetHeaders: map[string]string{"": "x"}},
	} {
		_, _, err := m.Edit(t.Context(), id, edit, ana)
		require.ErrorIs(t, err, dlq.ErrInvalid)
		_, err = m.PreviewEdit(t.Context(), id, edit)
		require.ErrorIs(t, err, dlq.ErrInvalid)
	}
	_, _, err := m.Edit(t.Context(), id, dlq.Edit{Payload: []byte("x")}, dlq.By{})
	require.ErrorIs(t, err, dlq.ErrInvalid)
	_, _, err = m.Edit(t.Context(), 4711, dlq.Edit{}, ana)
	require.ErrorIs(t, err, dlq.ErrNotFound)
}
