package dlqtest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
)

// Import: entries as they were, once, all or none.
func testImport(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	put(t, s, letter(50)) // so that ids differ
	parked := letter(1)
	parked.Status, parked.Version, parked.RedriveCount, parked.Revision, parked.ChangedBy = dlq.Parked, 9, 3, 1, "bob"
	first, second := *parked.Body, *parked.Body
	second.Revision, second.Payload = 1, []byte("\xff")
	parked.Size = 1
	parked.Body = nil
	exported := dlq.Exported{Entry: *parked, Bodies: []dlq.Body{first, second}}
	by := dlq.By{Actor: "ana", Note: "moved"}
	receipts, err := s.Import(t.Context(), by, noon, exported, exported)
	require.NoError(t, err)
	require.Equal(t, []dlq.Receipt{{ID: receipts[0].ID, Outcome: dlq.Stored}, {ID: receipts[0].ID, Outcome: dlq.Seen}}, receipts)
	got := get(t, s, receipts[0].ID)
	want := *parked
	want.ID, want.Body = receipts[0].ID, &second
	require.Equal(t, &want, got)
	body, err := s.Body(t.Context(), got.ID, 0)
	require.NoError(t, err)
	require.Equal(t, &first, body)
	receipts, err = s.Import(t.Context(), by, noon, exported)
	require.NoError(t, err)
	require.Equal(t, dlq.Receipt{ID: got.ID, Outcome: dlq.Seen}, receipts[0])
	require.Equal(t, got, get(t, s, got.ID), "what is there stays as it is")
	kept, err := s.Stats(t.Context(), dlq.StatsQuery{})
	require.NoError(t, err)
	require.Equal(t, dlq.Counts{Pending: 1, Parked: 1}, kept.Counts)

	bad := exported
	bad.Entry.Key = dlq.Key{}
	other := dlq.Exported{Entry: *letter(2), Bodies: []dlq.Body{*letter(2).Body}}
	_, err = s.Import(t.Context(), by, noon, other, bad)
	require.ErrorIs(t, err, dlq.ErrInvalid)
	_, err = s.Import(t.Context(), dlq.By{}, noon, other)
	require.ErrorIs(t, err, dlq.ErrInvalid)
	require.Len(t, all(t, s, dlq.Filter{}), 2)
}
