package dlqtest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
)

func noticeStore(t *testing.T, db Database) driver.NoticeStore {
	t.Helper()
	s, ok := driver.As[driver.NoticeStore](db.open(t))
	if !ok {
		t.Skip("the store does not store notices")
	}
	return s
}

// Only one process notifies at a time, and all know which notices a receiver was sent.
func testNotices(t *testing.T, db Database) {
	t.Helper()
	s, other := noticeStore(t, db), noticeStore(t, db)
	hold := func(s driver.NoticeStore, process string, at time.Time) bool {
		holds := must(s.HoldNotices(t.Context(), process, at, at.Add(time.Minute)))(t)
		return holds
	}
	require.True(t, hold(s, "a", noon))
	require.True(t, hold(s, "a", noon), "it holds them already")
	require.False(t, hold(other, "b", noon.Add(59*time.Second)))
	require.True(t, hold(s, "a", noon.Add(30*time.Second)))
	require.False(t, hold(other, "b", noon.Add(89*time.Second)), "the hold was renewed")
	require.True(t, hold(other, "b", noon.Add(90*time.Second)))
	require.False(t, hold(s, "a", noon.Add(91*time.Second)))

	begun, first := driver.Notice{Receiver: "ops é", At: noon},
		driver.Notice{Receiver: "ops é", ID: "1", At: noon.Add(time.Second)}
	for _, n := range []driver.Notice{begun, first} {
		require.NoError(t, s.PutNotice(t.Context(), n))
		n.At = n.At.Add(time.Hour)
		require.NoError(t, other.PutNotice(t.Context(), n), "the first one is kept")
	}
	require.Equal(t, []driver.Notice{begun, first}, must(other.Notices(t.Context(), noon))(t))
	all := must(other.Notices(t.Context(), noon.Add(time.Minute)))(t)
	require.Equal(t, []driver.Notice{begun}, all, "the beginning is returned whatever its time")
	require.NoError(t, s.PutNotice(t.Context(),
		driver.Notice{Receiver: "other", ID: "2", At: noon.Add(31 * 24 * time.Hour)}))
	all = must(s.Notices(t.Context(), noon))(t)
	require.Len(t, all, 2, "notices older than a month are removed, but not the beginning")
	require.Equal(t, begun, all[0])
	require.ErrorIs(t, s.PutNotice(t.Context(), driver.Notice{ID: "x", At: noon}), dlq.ErrInvalid)
}

// A cause is muted until the mute expires or is ended, for every process, and the audit log records who did it.
func testMutes(t *testing.T, db Database) {
	t.Helper()
	s, other := noticeStore(t, db), noticeStore(t, db)
	good := driver.Mute{Fingerprint: "f1", By: "ana é", Note: "known", At: noon}
	require.NoError(t, s.Mute(t.Context(), driver.Mute{
		Fingerprint: "f1", By: "bob", At: noon, Until: noon.Add(time.Minute),
	}))
	require.NoError(t, s.Mute(t.Context(), good), "it replaces the first one")
	hour := driver.Mute{Fingerprint: "f2", By: "ana", At: noon.Add(time.Second), Until: noon.Add(time.Hour)}
	require.NoError(t, s.Mute(t.Context(), hour))
	require.Equal(t, []driver.Mute{hour, good}, must(other.Mutes(t.Context(), noon))(t))
	found := must(other.Mutes(t.Context(), noon.Add(time.Hour)))(t)
	require.Equal(t, []driver.Mute{good}, found)
	require.NoError(t, other.Unmute(t.Context(), "f1", dlq.By{Actor: "bob", Note: "fixed"}, noon.Add(time.Minute)))
	require.ErrorIs(t, other.Unmute(t.Context(), "f1", dlq.By{Actor: "bob"}, noon), dlq.ErrNotFound)
	for _, m := range []driver.Mute{
		{By: "ana", At: noon}, {Fingerprint: "f", At: noon}, {Fingerprint: "f", By: "ana", At: noon, Until: noon},
	} {
		require.ErrorIs(t, s.Mute(t.Context(), m), dlq.ErrInvalid)
	}
	records := recorded(t, s, dlq.AuditFilter{Action: driver.ActionUnmute}, dlq.Page{})
	require.Len(t, records, 1)
	require.Equal(t, []any{"bob", "fixed", "f1"},
		[]any{records[0].Actor, records[0].Note, records[0].Detail[driver.DetailFingerprint]})
	records = recorded(t, s, dlq.AuditFilter{Action: driver.ActionMute}, dlq.Page{})
	require.Len(t, records, 3)
}
