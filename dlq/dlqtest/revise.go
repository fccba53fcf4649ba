package dlqtest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
)

// Edits: a new revision by compare-and-set; every revision stays.
func testRevise(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	id := put(t, s, letter(1))[0].ID
	before := get(t, s, id)
	revision := dlq.Revision{
		EntryID: id, Version: 1, Body: &dlq.Body{UUID: "u", Payload: []byte("\x00one"), Headers: map[string]string{"h": "\xff"}},
		Actor: "bob", Note: "typo", Detail: map[string]string{"diff": "…"}, At: noon.Add(time.Hour),
	}
	e, err := s.Revise(t.Context(), revision)
	require.NoError(t, err)
	require.Equal(t, []any{1, int64(4), int64(2), dlq.Pending, "bob"}, []any{e.Revision, e.Size, e.Version, e.Status, e.ChangedBy})
	_, err = s.Revise(t.Context(), revision)
	var conflict *dlq.ConflictError
	require.ErrorAs(t, err, &conflict)
	require.Equal(t, "bob", conflict.By)
	revision.Version = 0
	_, err = s.Revise(t.Context(), revision)
	require.NoError(t, err)
	require.Equal(t, 2, get(t, s, id).Revision)
	original, err := s.Body(t.Context(), id, 0)
	require.NoError(t, err)
	require.Equal(t, before.Body, original)
	records, _, err := s.Audit(t.Context(), dlq.AuditFilter{Action: dlq.ActionEdit}, dlq.Page{Order: dlq.OldestFirst})
	require.NoError(t, err)
	require.Len(t, records, 2)
	require.Equal(t, map[string]string{"diff": "…", "revision": "1"}, records[0].Detail)
	claim(t, s, id, noon.Add(2*time.Hour))
	_, err = s.Revise(t.Context(), revision)
	require.ErrorIs(t, err, dlq.ErrConflict, "it is out")
	revision.EntryID = 4711
	_, err = s.Revise(t.Context(), revision)
	require.ErrorIs(t, err, dlq.ErrNotFound)
	for _, bad := range []dlq.Revision{{EntryID: id}, {EntryID: id, Body: &dlq.Body{}, At: noon}, {EntryID: id, Body: &dlq.Body{}, Actor: "ana"}} {
		_, err = s.Revise(t.Context(), bad)
		require.ErrorIs(t, err, dlq.ErrInvalid)
	}
}
