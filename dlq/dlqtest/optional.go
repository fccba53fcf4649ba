package dlqtest

import (
	"fmt"
	"reflect"
	"strings"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
)

// required returns an interface that every store has to implement, possibly behind wrappers.
func required[S any](w *world) S {
	w.Helper()
	s, ok := driver.As[S](w.Store)
	require.True(w, ok, "%T is not a %s", w.Store, reflect.TypeFor[S]())
	return s
}

// optional is required, but skips the case if the store does not implement the interface.
func optional[S any](w *world) S {
	w.Helper()
	s, ok := driver.As[S](w.Store)
	if !ok {
		w.Skipf("%T is not a %s", w.Store, reflect.TypeFor[S]())
	}
	return s
}

// reserve reserves entries for a person, who may redrive ten an hour.
func (w *world) reserve(key, actor string, entries int64, at time.Time, open bool) bool {
	w.Helper()
	return must(required[driver.LedgerStore](w).Reserve(w.Context(), driver.Reservation{
		Key: key, Actor: actor, Entries: entries, Limit: 10, At: at, Window: time.Hour, Open: open,
	}))(w)
}

// The entries that a person redrives count within a window, regardless of case and spaces in the name, and open
// reservations count until they are settled.
func (w *world) TestLedger() {
	l := required[driver.LedgerStore](w)
	require.True(w, w.reserve("a", "ana", 6, noon, false))
	require.False(w, w.reserve("b", "ana", 5, noon.Add(time.Minute), false))
	require.False(w, w.reserve("b", " ANA ", 5, noon.Add(time.Minute), false),
		"case and spaces do not make a second person")
	require.True(w, w.reserve("c", "bob", 10, noon.Add(time.Minute), false), "each person has a separate limit")
	require.True(w, w.reserve("b", "ana", 4, noon.Add(time.Minute), true), "a refused reservation does not count")
	require.True(w, w.reserve("b", "ana", 4, noon.Add(time.Minute), true), "the same key is the same reservation")
	require.False(w, w.reserve("d", "ana", 1, noon.Add(time.Minute), false))
	require.NoError(w, l.Unreserve(w.Context(), "a"))
	require.NoError(w, l.Unreserve(w.Context(), "a"))
	require.True(w, w.reserve("d", "ana", 6, noon.Add(time.Minute), false))
	later := noon.Add(3 * time.Hour)
	require.False(w, w.reserve("e", "ana", 7, later, false), "an open reservation counts at any age")
	require.True(w, w.reserve("e", "ana", 6, later, false), "a settled one counts within the window")
	require.True(w, w.reserve("none", "ana", 0, later, false))
	nameless := driver.Reservation{Key: "x", Actor: " ", At: noon, Window: time.Hour}
	fails(l.Reserve(w.Context(), nameless))(w, dlq.ErrInvalid)
	require.True(w, w.reserve("é😀", "Éva 😀 \xff", 1, later, false))
}

// Concurrent requests never exceed the limit.
func (w *world) TestLedgerConcurrent() {
	stores := []driver.LedgerStore{required[driver.LedgerStore](w), required[driver.LedgerStore](w.on(w.open()))}
	var granted atomic.Int64
	atOnce(20, func(i int) {
		ok, err := stores[i%2].Reserve(w.Context(), driver.Reservation{
			Key: fmt.Sprint("entry ", i), Actor: "ana", Entries: 1, Limit: 7, At: noon, Window: time.Hour,
		})
		if assert.NoError(w, err) && ok {
			granted.Add(1)
		}
	})
	require.Equal(w, int64(7), granted.Load())
}

// The end of a run closes its reservation: entries that it has started still count, the rest do not.
func (w *world) TestLedgerRun() {
	l := required[driver.LedgerStore](w)
	_, r := w.runOf(5)
	room := func(n int64, at time.Time) bool {
		w.Helper()
		ok := w.reserve("probe", "ana", n, at, false)
		require.NoError(w, l.Unreserve(w.Context(), "probe"))
		return ok
	}
	require.True(w, w.reserve(driver.RunKey(r.ID), "ana", 5, noon, true))
	require.False(w, room(6, noon.Add(9*time.Hour)))
	require.Len(w, w.claimAll(r.ID, noon, 2), 2)
	run := must(w.Run(w.Context(), r.ID))(w)
	require.Equal(w, int64(2), run.Counts.Started())
	started := run.Counts.Started()
	run.Version++
	run.State, run.ChangedAt = redrive.Cancelled, noon.Add(10*time.Hour)
	cancelled := driver.AuditRecord{At: run.ChangedAt, Actor: "ana", Action: redrive.ActionCancel, Run: run.ID}
	require.NoError(w, w.ChangeRun(w.Context(), run, cancelled))
	require.True(w, room(10-started, noon.Add(10*time.Hour)))
	require.False(w, room(11-started, noon.Add(10*time.Hour)))
}

// The entries of a run are counted by topic and by cause.
func (w *world) TestRunSplit() {
	list, r := w.runOf(5)
	topics, causes, err := w.SplitRun(w.Context(), r.ID, 20)
	require.NoError(w, err)
	require.Equal(w, []redrive.TopicCount{{Topic: "orders", Count: 5}}, topics)
	cause := w.get(list[0])
	require.Len(w, causes, 1)
	require.Equal(w, []any{cause.Fingerprint, cause.Cause, int64(5)},
		[]any{causes[0].Fingerprint, causes[0].Cause, causes[0].Count})
	_, causes, err = w.SplitRun(w.Context(), r.ID, 1)
	require.NoError(w, err)
	require.Len(w, causes, 1)
	topics, causes, err = w.SplitRun(w.Context(), "none", 20)
	require.NoError(w, err)
	require.Empty(w, topics)
	require.Empty(w, causes)
}

// Tokens are found by their digest, have unique names, and can be used and revoked; the audit log has everything except
// their use.
func (w *world) TestTokens() {
	s := required[driver.PeopleStore](w)
	token := driver.Token{
		Name: "ci é", Role: "operator", Digest: "sha256:1", CreatedAt: noon, CreatedBy: "ana", ExpiresAt: noon.Add(time.Hour),
	}
	require.NoError(w, s.PutToken(w.Context(), token))
	for _, other := range []driver.Token{
		{Name: token.Name, Role: "viewer", Digest: "sha256:2", CreatedAt: noon, CreatedBy: "ana"},
		{Name: "other", Role: "viewer", Digest: token.Digest, CreatedAt: noon, CreatedBy: "ana"},
	} {
		require.ErrorIs(w, s.PutToken(w.Context(), other), dlq.ErrConflict)
	}
	require.ErrorIs(w, s.PutToken(w.Context(), driver.Token{Name: "x"}), dlq.ErrInvalid)
	got := must(s.Token(w.Context(), token.Digest))(w)
	require.Equal(w, &token, got)
	require.True(w, got.Valid(noon))
	require.False(w, got.Valid(noon.Add(time.Hour)))
	fails(s.Token(w.Context(), "sha256:3"))(w, dlq.ErrNotFound)
	require.NoError(w, s.UseToken(w.Context(), token.Digest, noon.Add(time.Minute)))
	require.NoError(w, s.RevokeToken(w.Context(), token.Name, dlq.By{Actor: "bob", Note: "left"}, noon.Add(2*time.Minute)))
	require.ErrorIs(w, s.RevokeToken(w.Context(), token.Name, dlq.By{Actor: "bob"}, noon), dlq.ErrNotFound)
	require.ErrorIs(w, s.RevokeToken(w.Context(), "none", dlq.By{Actor: "bob"}, noon), dlq.ErrNotFound)
	all := must(s.Tokens(w.Context()))(w)
	token.UsedAt, token.RevokedAt, token.RevokedBy = noon.Add(time.Minute), noon.Add(2*time.Minute), "bob"
	require.Equal(w, []driver.Token{token}, all)
	require.False(w, all[0].Valid(noon))
	records := w.recorded(2, dlq.AuditFilter{}, dlq.Page{})
	require.Equal(w, []any{driver.ActionRevokeToken, "bob", "left"},
		[]any{records[0].Action, records[0].Actor, records[0].Note})
}

// A session exists for every process until it expires or ends.
func (w *world) TestSessions() {
	s, other := required[driver.PeopleStore](w), required[driver.PeopleStore](w.on(w.open()))
	session := driver.Session{
		Digest: "d1", Name: "ana é", Role: "approver", CreatedAt: noon, ExpiresAt: noon.Add(time.Hour),
	}
	require.NoError(w, s.PutSession(w.Context(), session))
	require.Equal(w, &session, must(other.Session(w.Context(), "d1", noon))(w))
	fails(other.Session(w.Context(), "d1", noon.Add(time.Hour)))(w, dlq.ErrNotFound)
	later := driver.Session{
		Digest: "d2", Name: "bob", Role: "viewer", CreatedAt: noon.Add(2 * time.Hour), ExpiresAt: noon.Add(3 * time.Hour),
	}
	require.NoError(w, other.PutSession(w.Context(), later))
	fails(s.Session(w.Context(), "d1", noon))(w, dlq.ErrNotFound, "removed because it has expired")
	require.NoError(w, s.EndSession(w.Context(), "d2"))
	require.NoError(w, s.EndSession(w.Context(), "d2"))
	fails(other.Session(w.Context(), "d2", noon.Add(2*time.Hour)))(w, dlq.ErrNotFound)
	require.ErrorIs(w, s.PutSession(w.Context(), driver.Session{Digest: "d3"}), dlq.ErrInvalid)
}

// Records that change no entry are stored all or none.
func (w *world) TestRecord() {
	s := required[driver.RecordStore](w)
	read := driver.AuditRecord{
		At: noon, Actor: "ana", Action: driver.ActionRead, EntryID: 7, Detail: map[string]string{"as": "é"},
	}
	require.ErrorIs(w, s.Record(w.Context(), read, driver.AuditRecord{Actor: "ana"}), dlq.ErrInvalid)
	require.NoError(w, s.Record(w.Context()))
	require.NoError(w, s.Record(w.Context(), read))
	records := w.recorded(1, dlq.AuditFilter{}, dlq.Page{})
	records[0].ID = 0
	require.Equal(w, read, records[0])
}

// Only one process notifies at a time, and all know which notices a receiver was sent.
func (w *world) TestNotices() {
	s, other := optional[driver.NoticeStore](w), optional[driver.NoticeStore](w.on(w.open()))
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
func (w *world) TestMutes() {
	s, other := optional[driver.NoticeStore](w), optional[driver.NoticeStore](w.on(w.open()))
	good := driver.Mute{Fingerprint: "f1", By: "ana é", Note: "known", At: noon}
	bobs := driver.Mute{Fingerprint: "f1", By: "bob", At: noon, Until: noon.Add(time.Minute)}
	require.NoError(w, s.Mute(w.Context(), bobs))
	require.NoError(w, s.Mute(w.Context(), good), "it replaces the first one")
	hour := driver.Mute{Fingerprint: "f2", By: "ana", At: noon.Add(time.Second), Until: noon.Add(time.Hour)}
	require.NoError(w, s.Mute(w.Context(), hour))
	require.Equal(w, []driver.Mute{hour, good}, must(other.Mutes(w.Context(), noon))(w))
	require.Equal(w, []driver.Mute{good}, must(other.Mutes(w.Context(), noon.Add(time.Hour)))(w))
	require.NoError(w, other.Unmute(w.Context(), "f1", dlq.By{Actor: "bob", Note: "fixed"}, noon.Add(time.Minute)))
	require.ErrorIs(w, other.Unmute(w.Context(), "f1", dlq.By{Actor: "bob"}, noon), dlq.ErrNotFound)
	for _, m := range []driver.Mute{
		{By: "ana", At: noon}, {Fingerprint: "f", At: noon}, {Fingerprint: "f", By: "ana", At: noon, Until: noon},
	} {
		require.ErrorIs(w, s.Mute(w.Context(), m), dlq.ErrInvalid)
	}
	records := w.recorded(1, dlq.AuditFilter{Action: driver.ActionUnmute}, dlq.Page{})
	require.Equal(w, []any{"bob", "fixed", "f1"},
		[]any{records[0].Actor, records[0].Note, records[0].Detail[driver.DetailFingerprint]})
	w.recorded(3, dlq.AuditFilter{Action: driver.ActionMute}, dlq.Page{})
}

// Processes report, an operator pauses their service, and each process learns that with its next report, as do
// processes that start later.
func (w *world) TestServices() {
	s := optional[driver.ServiceStore](w)
	report := func(service, process string, at time.Time) *driver.ServiceReport {
		return &driver.ServiceReport{
			Service: service, Process: process, At: at, CanPause: true,
			Queues: []driver.ServiceQueue{{
				Topic: "orders", Consumer: "billing", Handler: "charge", Handling: 3, Since: at.Add(-time.Second),
				Waiting: 2, Next: at.Add(time.Minute), Due: []driver.DueCount{{Within: time.Minute, Messages: 2}},
			}},
			Circuits: []driver.Circuit{{Key: "charge", State: "open", Since: at}},
		}
	}
	beat := func(r *driver.ServiceReport) driver.IntakePause {
		return must(s.Beat(w.Context(), r))(w)
	}
	for range 2 { // the same report again replaces it
		require.False(w, beat(report("shop", "a", noon)).Paused)
	}
	beat(report("shop", "b", noon.Add(-time.Hour)))
	beat(report("mail", "c", noon))
	found := must(s.Services(w.Context(), noon.Add(-time.Minute)))(w)
	require.Equal(w, []driver.Service{
		{Name: "mail", Processes: []driver.ServiceReport{*report("mail", "c", noon)}},
		{Name: "shop", Processes: []driver.ServiceReport{*report("shop", "a", noon)}},
	}, found)

	pause := driver.IntakePause{Service: "shop", Paused: true, By: "ana", At: noon}
	record := driver.AuditRecord{
		At: noon, Actor: "ana", Action: driver.ActionPauseIntake, Note: "bank is down",
		Detail: map[string]string{"service": "shop"},
	}
	for range 2 {
		require.NoError(w, s.PauseIntake(w.Context(), pause, record))
	}
	require.Equal(w, pause, beat(report("shop", "a", noon.Add(time.Second))))
	require.Equal(w, pause, beat(report("shop", "new", noon.Add(time.Second))))
	require.False(w, beat(report("mail", "c", noon.Add(time.Second))).Paused)
	found = must(s.Services(w.Context(), noon.Add(time.Hour)))(w)
	require.Equal(w, []driver.Service{{Name: "shop", Pause: pause}}, found, "a pause is shown although no process reports")
	records := w.recorded(2, dlq.AuditFilter{Action: driver.ActionPauseIntake}, dlq.Page{})
	require.Equal(w, []any{"ana", "bank is down", "shop"},
		[]any{records[0].Actor, records[0].Note, records[0].Detail["service"]})
	pause.Paused = false
	require.NoError(w, s.PauseIntake(w.Context(), pause, record))
	require.False(w, beat(report("shop", "a", noon.Add(2*time.Second))).Paused)

	// A starting process removes the reports of processes that ended a day before.
	beat(report("shop", "z", noon.Add(25*time.Hour)))
	found = must(s.Services(w.Context(), noon.Add(-24*time.Hour)))(w)
	require.Len(w, found[1].Processes, 1, "shop")
	for _, r := range []*driver.ServiceReport{
		report("", "a", noon), report("shop", "", noon), report(strings.Repeat("x", 256), "a", noon),
	} {
		fails(s.Beat(w.Context(), r))(w, dlq.ErrInvalid)
	}
}
