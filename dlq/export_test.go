package dlq_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqtest"
)

// everything is all entries of a store with all their bodies, without the ids that a store gives.
func everything(t *testing.T, s dlq.Store) map[dlq.Key]dlq.Exported {
	t.Helper()
	found := map[dlq.Key]dlq.Exported{}
	page := dlq.Page{Limit: dlq.MaxPage}
	listing, err := s.List(t.Context(), dlq.Filter{}, page)
	require.NoError(t, err)
	require.Empty(t, listing.Next)
	for _, e := range listing.Entries {
		x := dlq.Exported{Entry: e}
		for revision := 0; revision <= e.Revision; revision++ {
			body, err := s.Body(t.Context(), e.ID, revision)
			require.NoError(t, err)
			x.Bodies = append(x.Bodies, *body)
		}
		x.Entry.ID = 0
		found[e.Key] = x
	}
	return found
}

// An import of an export is the same entries: every status, every time, every revision, hostile bytes.
func TestManager_ExportImport(t *testing.T) {
	t.Parallel()
	source := newStore(t)
	m := dlq.NewManager(source, &consumer{silent: true})
	var ids []int64
	n := 0
	for _, payload := range dlqtest.Payloads() {
		d := death(n)
		n++
		d.Message.Payload = payload
		d.Message.Metadata["bytes"] = "\xff\x00\xfe"
		d.Message.Metadata["\xfe key"] = "a\nb"
		d.Origin.RoutingKey, d.Origin.Key = "\xff.key", []byte{0, 255}
		d.Origin.Timestamp = time.Now()
		ids = append(ids, stored(t, source, d))
	}
	_, err := m.Resolve(t.Context(), ids[0], ana)
	require.NoError(t, err)
	_, err = m.Discard(t.Context(), ids[1], ana)
	require.NoError(t, err)
	_, err = m.Redrive(t.Context(), ids[2], ana)
	require.NoError(t, err)
	_, err = m.Park(t.Context(), ids[3], ana)
	require.NoError(t, err)
	_, _, err = m.Edit(t.Context(), ids[4], dlq.Edit{Payload: []byte("\x00edited\xff")}, ana)
	require.NoError(t, err)
	_, _, err = m.Edit(t.Context(), ids[4], dlq.Edit{SetHeaders: map[string]string{"tenant": "other"}}, ana)
	require.NoError(t, err)

	var file bytes.Buffer
	written, err := m.Export(t.Context(), &file, dlq.Filter{})
	require.NoError(t, err)
	require.Equal(t, int64(n), written)
	require.Equal(t, n, strings.Count(file.String(), "\n"))

	target := newStore(t)
	stored(t, target, death(777)) // so that the ids differ
	there := everything(t, target)
	to := dlq.NewManager(target, nil)
	for _, want := range []dlq.Imported{{Stored: int64(n)}, {Seen: int64(n)}} {
		got, err := to.Import(t.Context(), bytes.NewReader(file.Bytes()), dlq.By{Actor: "bob", Note: "moved"})
		require.NoError(t, err)
		require.Equal(t, want, got)
		imported := everything(t, target)
		for key := range there {
			delete(imported, key)
		}
		require.Equal(t, everything(t, source), imported)
	}
	records, _, err := to.AuditLog(t.Context(), dlq.AuditFilter{Action: dlq.ActionImport}, dlq.Page{Limit: dlq.MaxPage})
	require.NoError(t, err)
	require.Len(t, records, n)
	kept, err := target.Stats(t.Context(), dlq.StatsQuery{})
	require.NoError(t, err)
	require.Equal(t, int64(1), kept.Counts.Parked)
	require.NoError(t, target.Recount(t.Context()))
	counted, err := target.Stats(t.Context(), dlq.StatsQuery{})
	require.NoError(t, err)
	require.Equal(t, counted.Counts, kept.Counts)
}

func TestManager_ImportRefuses(t *testing.T) {
	t.Parallel()
	source := newStore(t)
	stored(t, source, death(1))
	var file bytes.Buffer
	_, err := dlq.NewManager(source, nil).Export(t.Context(), &file, dlq.Filter{})
	require.NoError(t, err)
	good := strings.TrimSpace(file.String())
	for name, c := range map[string]struct{ line, want string }{
		"not JSON":       {"hello", "line 2"},
		"newer version":  {strings.Replace(good, `"v":1`, `"v":99`, 1), "version 99"},
		"no version":     {`{}`, "version 0"},
		"no body":        {`{"v":1,"entry":{"version":1}}`, "body of revision 0 is missing"},
		"damaged":        {strings.Replace(good, `"payload":"`, `"payload":"AAAA`, 1), "SHA-256"},
		"unknown status": {strings.Replace(good, `"PENDING"`, `"LOST"`, 1), "not an entry"},
		"short key":      {strings.Replace(good, `"key":"`, `"key":"AAAA","other":"`, 1), "not an entry"},
	} {
		store := newStore(t)
		_, err := dlq.NewManager(store, nil).Import(t.Context(), strings.NewReader(good+"\n"+c.line+"\n"), ana)
		require.ErrorIs(t, err, dlq.ErrInvalid, name)
		require.ErrorContains(t, err, c.want, name)
		require.ErrorContains(t, err, "line 2", name)
		require.Equal(t, int64(1), count(t, store, dlq.Filter{}), "the line before is stored")
	}
	_, err = dlq.NewManager(newStore(t), nil).Import(t.Context(), strings.NewReader(good), dlq.By{})
	require.ErrorIs(t, err, dlq.ErrInvalid)
}

// "Discard this group": what was closed before is not touched, and what somebody takes meanwhile is told.
func TestManager_Bulk(t *testing.T) {
	t.Parallel()
	store := newStore(t)
	m := dlq.NewManager(store, nil)
	entries := make([]*dlq.Entry, 1100)
	for n := range entries {
		d := death(n)
		if n%11 == 0 {
			d.Handler = "other"
		}
		entries[n] = dlq.NewEntry(d)
	}
	receipts, err := store.Put(t.Context(), entries...)
	require.NoError(t, err)
	_, err = m.Resolve(t.Context(), receipts[5].ID, ana)
	require.NoError(t, err)
	group := dlq.Filter{Handler: death(0).Handler}
	bulk, err := m.DiscardAll(t.Context(), group, dlq.By{Actor: "bob", Note: "a test"})
	require.NoError(t, err)
	require.Equal(t, dlq.Bulk{Changed: 999}, bulk)
	bulk, err = m.RestoreAll(t.Context(), dlq.Filter{Handler: group.Handler, Statuses: []dlq.Status{dlq.Discarded}}, ana)
	require.NoError(t, err)
	require.Equal(t, int64(999), bulk.Changed)
	bulk, err = m.ParkAll(t.Context(), group, ana)
	require.NoError(t, err)
	require.Equal(t, int64(999), bulk.Changed)
	bulk, err = m.ResolveAll(t.Context(), dlq.Filter{Handler: group.Handler, Statuses: []dlq.Status{dlq.Parked, dlq.Resolved}}, ana)
	require.NoError(t, err)
	require.Equal(t, []int64{999, 1}, []int64{bulk.Changed, bulk.Refused})
	require.ErrorContains(t, bulk.Conflicts[0], "by ana")
	require.Equal(t, int64(100), count(t, store, pending()))
	_, err = m.DiscardAll(t.Context(), pending(), dlq.By{})
	require.ErrorIs(t, err, dlq.ErrInvalid)
}
