package dlqtest

import (
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
)

func (w *world) notices() driver.NoticeStore {
	w.Helper()
	s, ok := driver.As[driver.NoticeStore](w.Store)
	if !ok {
		w.Skip("the store does not store notices")
	}
	return s
}

// Only one process notifies at a time, and all know which notices a receiver was sent.
func testNotices(w *world) {
	s, other := w.notices(), w.on(w.open()).notices()
	hold := func(s driver.NoticeStore, process string, at time.Time) bool {
		return must(s.HoldNotices(w.Context(), process, at, at.Add(time.Minute)))(w)
	}
	require.True(w, hold(s, "a", noon))
	require.True(w, hold(s, "a", noon), "it holds them already")
	require.False(w, hold(other, "b", noon.Add(59*time.Second)))
	require.True(w, hold(s, "a", noon.Add(30*time.Second)))
	require.False(w, hold(other, "b", noon.Add(89*time.Second)), "the hold was renewed")
	require.True(w, hold(other, "b", noon.Add(90*time.Second)))
	require.False(w, hold(s, "a", noon.Add(91*time.Second)))

	begun, first := driver.Notice{Receiver: "ops é", At: noon},
		driver.Notice{Receiver: "ops é", ID: "1", At: noon.Add(time.Second)}
	for _, n := range []driver.Notice{begun, first} {
		require.NoError(w, s.PutNotice(w.Context(), n))
		n.At = n.At.Add(time.Hour)
		require.NoError(w, other.PutNotice(w.Context(), n), "the first one is kept")
	}
	require.Equal(w, []driver.Notice{begun, first}, must(other.Notices(w.Context(), noon))(w))
	all := must(other.Notices(w.Context(), noon.Add(time.Minute)))(w)
	require.Equal(w, []driver.Notice{begun}, all, "the beginning is returned whatever its time")
	require.NoError(w, s.PutNotice(w.Context(),
		driver.Notice{Receiver: "other", ID: "2", At: noon.Add(31 * 24 * time.Hour)}))
	all = must(s.Notices(w.Context(), noon))(w)
	require.Len(w, all, 2, "notices older than a month are removed, but not the beginning")
	require.Equal(w, begun, all[0])
	require.ErrorIs(w, s.PutNotice(w.Context(), driver.Notice{ID: "x", At: noon}), dlq.ErrInvalid)
}

// A cause is muted until the mute expires or is ended, for every process, and the audit log records who did it.
func testMutes(w *world) {
	s, other := w.notices(), w.on(w.open()).notices()
	good := driver.Mute{Fingerprint: "f1", By: "ana é", Note: "known", At: noon}
	require.NoError(w, s.Mute(w.Context(), driver.Mute{
		Fingerprint: "f1", By: "bob", At: noon, Until: noon.Add(time.Minute),
	}))
	require.NoError(w, s.Mute(w.Context(), good), "it replaces the first one")
	hour := driver.Mute{Fingerprint: "f2", By: "ana", At: noon.Add(time.Second), Until: noon.Add(time.Hour)}
	require.NoError(w, s.Mute(w.Context(), hour))
	require.Equal(w, []driver.Mute{hour, good}, must(other.Mutes(w.Context(), noon))(w))
	found := must(other.Mutes(w.Context(), noon.Add(time.Hour)))(w)
	require.Equal(w, []driver.Mute{good}, found)
	require.NoError(w, other.Unmute(w.Context(), "f1", dlq.By{Actor: "bob", Note: "fixed"}, noon.Add(time.Minute)))
	require.ErrorIs(w, other.Unmute(w.Context(), "f1", dlq.By{Actor: "bob"}, noon), dlq.ErrNotFound)
	for _, m := range []driver.Mute{
		{By: "ana", At: noon}, {Fingerprint: "f", At: noon}, {Fingerprint: "f", By: "ana", At: noon, Until: noon},
	} {
		require.ErrorIs(w, s.Mute(w.Context(), m), dlq.ErrInvalid)
	}
	records := w.recorded(dlq.AuditFilter{Action: driver.ActionUnmute}, dlq.Page{})
	require.Len(w, records, 1)
	require.Equal(w, []any{"bob", "fixed", "f1"},
		[]any{records[0].Actor, records[0].Note, records[0].Detail[driver.DetailFingerprint]})
	records = w.recorded(dlq.AuditFilter{Action: driver.ActionMute}, dlq.Page{})
	require.Len(w, records, 3)
}
