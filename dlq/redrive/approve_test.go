package redrive_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/sqlstore"
	"github.com/redrive-go/redrive/envelope"
)

// The ways in which one person can send an entry; each reports whether it was sent without a second person.
func ways(t *testing.T, m *dlq.Manager, rn *redrive.Runner) map[string]func(id int64) bool {
	t.Helper()
	refused := func(err error) bool {
		if err != nil {
			require.ErrorIs(t, err, dlq.ErrForbidden)
		}
		return err == nil
	}
	run := func(spec redrive.Spec) bool {
		r, err := rn.StartRun(t.Context(), spec, ana)
		require.NoError(t, err)
		if r.State == redrive.AwaitingApproval {
			_, err = rn.RejectRun(t.Context(), r.ID, dlq.By{Actor: "bob"})
			require.NoError(t, err)
			return false
		}
		return true
	}
	return map[string]func(id int64) bool{
		"one": func(id int64) bool {
			_, err := m.Redrive(t.Context(), id, ana)
			return refused(err)
		},
		"another spelling of the name": func(id int64) bool {
			_, err := m.Redrive(t.Context(), id, dlq.By{Actor: " Ana"})
			return refused(err)
		},
		"edited": func(id int64) bool {
			_, err := m.EditAndRedrive(t.Context(), id, dlq.Edit{SetHeaders: map[string]string{"tenant": "b"}}, ana)
			return refused(err)
		},
		"a run": func(id int64) bool {
			return run(redrive.Spec{Filter: dlq.Filter{IDs: []int64{id}}, CloseOnPublish: true})
		},
		"a run that is paused": func(id int64) bool {
			return run(redrive.Spec{Filter: dlq.Filter{IDs: []int64{id}}, Paused: true})
		},
		"a run with a limit": func(id int64) bool {
			return run(redrive.Spec{Filter: dlq.Filter{IDs: []int64{id}}, Limit: 1})
		},
	}
}

// All entries that one person sends alone count together: after the limit, every way of sending needs a second person.
func TestApproval_EveryWay(t *testing.T) {
	t.Parallel()
	names := []string{
		"one", "another spelling of the name", "edited", "a run", "a run that is paused",
		"a run with a limit",
	}
	for _, first := range names {
		t.Run(first, func(t *testing.T) {
			t.Parallel()
			limit := &dlq.Approval{Above: 3}
			c := &consumer{silent: true}
			_, store := operated(t, 0, c, redrive.Config{})
			m, err := dlq.NewManager(dlq.ManagerConfig{Store: store, Redriver: c, Approval: limit})
			require.NoError(t, err)
			rn, err := redrive.NewRunner(m, redrive.Config{})
			require.NoError(t, err)
			all, n := ways(t, m, rn), 0
			next := func() int64 { n++; return stored(t, store, death(n)) }
			for range 3 {
				require.True(t, all[first](next()))
			}
			for _, then := range names {
				require.False(t, all[then](next()), "%s after three of %s", then, first)
			}
			edited, err := store.Get(t.Context(), int64(n-3))
			require.NoError(t, err)
			require.Zero(t, edited.Revision, "what is refused changes nothing")
			_, err = m.Redrive(t.Context(), next(), dlq.By{Actor: "bob"})
			require.NoError(t, err, "another person has a separate limit")
		})
	}
}

// Failed sends do not count, and successful ones count for the window.
func TestApproval_Window(t *testing.T) {
	t.Parallel()
	_, store := operated(t, 0, &consumer{}, redrive.Config{})
	ledger, ok := driver.As[driver.LedgerStore](store)
	require.True(t, ok)
	limit := &dlq.Approval{Above: 1}
	c := &consumer{silent: true}
	m, err := dlq.NewManager(dlq.ManagerConfig{Store: store, Redriver: c, Approval: limit})
	require.NoError(t, err)
	_, err = m.Redrive(t.Context(), 4711, ana)
	require.ErrorIs(t, err, dlq.ErrNotFound, "nothing was sent")
	_, err = m.Redrive(t.Context(), stored(t, store, death(1)), ana)
	require.NoError(t, err)
	again := stored(t, store, death(2))
	_, err = m.Redrive(t.Context(), again, ana)
	require.ErrorIs(t, err, dlq.ErrForbidden)
	ok, err = ledger.Reserve(t.Context(), driver.Reservation{
		Key: "tomorrow", Actor: "ana", Entries: 1, Limit: 1, At: time.Now().Add(25 * time.Hour), Window: 24 * time.Hour,
	})
	require.NoError(t, err)
	require.True(t, ok)
	none, err := dlq.NewManager(dlq.ManagerConfig{Store: store, Redriver: c, Approval: &dlq.Approval{}})
	require.NoError(t, err)
	_, err = none.Redrive(t.Context(), again, dlq.By{Actor: "bob"})
	require.ErrorIs(t, err, dlq.ErrForbidden, "0 is nothing without a second person")
	_, err = dlq.NewManager(dlq.ManagerConfig{Store: store, Approval: &dlq.Approval{Above: -1}})
	require.ErrorIs(t, err, dlq.ErrInvalid)
}

// The run that was reviewed is the run that is approved: it cannot be loosened while it waits, nor afterwards.
func TestApproval_FrozenSpecification(t *testing.T) {
	t.Parallel()
	c := &consumer{silent: true}
	_, store := operated(t, 10, c)
	m := operateBy(t, dlq.ManagerConfig{Store: store, Redriver: c, Approval: &dlq.Approval{Above: 5}})
	asked := redrive.Spec{Rate: 10, MaxOut: 100, Stop: redrive.StopCondition{Share: 0.1, MinSample: 5}, Paused: true}
	run, err := m.StartRun(t.Context(), asked, ana)
	require.NoError(t, err)
	require.Equal(t, redrive.AwaitingApproval, run.State)
	adjust := func(change redrive.Adjustment) error {
		_, err := m.AdjustRun(t.Context(), run.ID, change, ana)
		return err
	}
	require.ErrorIs(t, adjust(redrive.Adjustment{Rate: new(1.0)}), dlq.ErrConflict, "while it waits")
	approved, err := m.ApproveRun(t.Context(), run.ID, dlq.By{Actor: "bob"})
	require.NoError(t, err)
	require.Equal(t, run.Spec, approved.Spec)
	for name, change := range map[string]redrive.Adjustment{
		"rate":         {Rate: new(11.0)},
		"any rate":     {Rate: new(0.0)},
		"out":          {MaxOut: new(101)},
		"any number":   {MaxOut: new(-1)},
		"stop share":   {Stop: &redrive.StopCondition{Share: 1, MinSample: 5}},
		"stop sample":  {Stop: &redrive.StopCondition{Share: 0.1, MinSample: 6}},
		"stop default": {Stop: &redrive.StopCondition{}},
	} {
		require.ErrorIs(t, adjust(change), redrive.ErrForbidden, name)
	}
	got, err := m.Run(t.Context(), run.ID)
	require.NoError(t, err)
	require.Equal(t, run.Spec, got.Spec)
	require.NoError(t, adjust(redrive.Adjustment{
		Rate: new(5.0), MaxOut: new(50),
		Stop: &redrive.StopCondition{Share: 0.05, MinSample: 1},
	}))
}

// cancelledRuns cancels a run after the call with this number that prepares it.
type cancelledRuns struct {
	*sqlstore.Store

	cancel func(id string)
	after  int
	calls  int
}

func (s *cancelledRuns) count(id string) {
	if s.calls++; s.calls == s.after {
		s.cancel(id)
	}
}

func (s *cancelledRuns) LeaseRun(
	ctx context.Context, id, holder string, at time.Time, lease time.Duration,
) (*redrive.Run, error) {
	defer s.count(id)
	return s.Store.LeaseRun(ctx, id, holder, at, lease)
}

func (s *cancelledRuns) FreezeRun(
	ctx context.Context, id, holder string, at time.Time, limit int,
) (*redrive.Run, error) {
	defer s.count(id)
	return s.Store.FreezeRun(ctx, id, holder, at, limit)
}

func (s *cancelledRuns) Reserve(ctx context.Context, r driver.Reservation) (bool, error) {
	defer s.count(strings.TrimPrefix(r.Key, "run "))
	return s.Store.Reserve(ctx, r)
}

// A run that is cancelled at any moment of its preparation uses up nothing of what its author may send alone.
func TestApproval_CancelledWhilePreparing(t *testing.T) {
	t.Parallel()
	for after := 1; ; after++ {
		_, store := operated(t, 3, &consumer{})
		limit := &dlq.Approval{Above: 3}
		runs := &cancelledRuns{Store: store, after: after}
		cancelled := false
		runs.cancel = func(id string) {
			m := operateBy(t, dlq.ManagerConfig{Store: store, Approval: limit})
			_, err := m.CancelRun(t.Context(), id, dlq.By{Actor: "bob"})
			require.NoError(t, err)
			cancelled = true
		}
		m := operateBy(t, dlq.ManagerConfig{Store: runs, Redriver: &consumer{}, Approval: limit})
		run, err := m.StartRun(t.Context(), redrive.Spec{}, ana)
		require.NoError(t, err)
		if !cancelled {
			require.Greater(t, after, 4)
			require.Equal(t, redrive.Running, run.State)
			return
		}
		again, err := operateBy(t, dlq.ManagerConfig{Store: store, Approval: limit}).StartRun(t.Context(),
			redrive.Spec{}, ana)
		require.NoError(t, err)
		require.Equal(t, redrive.Running, again.State, "after call %d", after)
	}
}

// A rule redrives new dead letters, as configured. Those that a person has edited or restored it leaves to people, who
// redrive them one by one.
func TestApproval_Rules(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &consumer{}
		_, store := operated(t, 0, c)
		m := operateBy(t, dlq.ManagerConfig{Store: store, Redriver: c, Approval: &dlq.Approval{Above: 0}})
		var ids []int64
		for n := range 3 {
			ids = append(ids, stored(t, store, death(n)))
		}
		time.Sleep(time.Second) // virtual
		synctest.Wait()
		_, _, err := m.Edit(t.Context(), ids[1], dlq.Edit{Payload: []byte(`{"n":99}`)}, ana)
		require.NoError(t, err)
		_, err = m.Discard(t.Context(), ids[2], ana)
		require.NoError(t, err)
		_, err = m.Restore(t.Context(), ids[2], ana)
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		go func() { _ = m.Work(ctx) }()
		go func() { _ = m.Automate(ctx, redrive.Rule{Name: "bank", ErrorCode: "504", Topic: "orders"}) }()
		time.Sleep(10 * time.Minute) // virtual
		synctest.Wait()
		stop()
		synctest.Wait()
		var sent []int64
		for _, id := range ids {
			e, err := store.Get(t.Context(), id)
			require.NoError(t, err)
			if e.RedriveCount > 0 {
				sent = append(sent, id)
			}
		}
		require.Equal(t, ids[:1], sent)
	})
}

// A rule redrives what died again as often as it may, whatever the consumer has written into the message and however it
// is named, and what a process that died has left. What a person has edited it still leaves to people.
func TestApproval_RulesRedriveAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, store := operated(t, 0, &consumer{})
		dies := dlq.RedriverFunc(func(
			ctx context.Context, origin envelope.Origin, m *message.Message, _ time.Duration,
		) error {
			d := death(0)
			d.Message, d.Origin, d.At = m.Copy(), origin, time.Now()
			d.Origin.Consumer = "billing"
			d.Message.Payload = fmt.Appendf(nil, `{"retry_count":%d}`, time.Now().UnixNano()) // as in structured mode
			_, err := store.Put(ctx, dlq.NewEntry(d))
			return err
		})
		m := operateBy(t, dlq.ManagerConfig{Store: store, Redriver: dies, Approval: &dlq.Approval{Above: 1}})
		var ids []int64
		for n := range 4 {
			d := death(n)
			d.Origin.Consumer = []string{"billing", "", "billing", "billing"}[n]
			ids = append(ids, stored(t, store, d))
		}
		_, _, err := m.Edit(t.Context(), ids[2], dlq.Edit{Payload: []byte(`{"n":99}`)}, ana)
		require.NoError(t, err)
		_, err = m.Redrive(t.Context(), ids[2], ana)
		require.NoError(t, err)
		for _, c := range []driver.Change{
			{Action: driver.ActionRedrive, Actor: "rule bank", Lease: time.Minute},
			{Action: driver.ActionReleaseByHand, Actor: "redrive", Note: "its run has ended"},
		} {
			c.IDs, c.At = ids[3:], time.Now()
			_, err := store.Change(t.Context(), c)
			require.NoError(t, err)
		}
		ctx, stop := context.WithCancel(t.Context())
		go func() { _ = m.Work(ctx) }()
		go func() { _ = m.Automate(ctx, redrive.Rule{Name: "bank", ErrorCode: "504", Topic: "orders"}) }()
		time.Sleep(30 * time.Minute) // virtual
		synctest.Wait()
		stop()
		synctest.Wait()
		redrives, statuses := make([]int, len(ids)), make([]dlq.Status, len(ids))
		for i, id := range ids {
			e, err := store.Get(t.Context(), id)
			require.NoError(t, err)
			redrives[i], statuses[i] = e.RedriveCount, e.Status
		}
		require.Equal(t, []int{3, 3, 1, 3}, redrives)
		require.Equal(t, []dlq.Status{dlq.Parked, dlq.Parked, dlq.Pending, dlq.Parked}, statuses)
	})
}

// An approver sees what would be sent: causes in words, topics, and the difference from the original, edits by hand
// included.
func TestReviewRun(t *testing.T) {
	t.Parallel()
	c := &consumer{}
	_, store := operated(t, 3, c)
	m := operateBy(t, dlq.ManagerConfig{Store: store, Redriver: c, Approval: &dlq.Approval{Above: 0}})
	listing, err := store.List(t.Context(), dlq.Filter{}, dlq.Page{Order: driver.OldestFirst})
	require.NoError(t, err)
	_, _, err = m.Edit(t.Context(), listing.Entries[1].ID, dlq.Edit{Payload: []byte(`{"n":99}`)}, ana)
	require.NoError(t, err)
	run, err := m.StartRun(t.Context(), redrive.Spec{JQ: ".checked = true"}, ana)
	require.NoError(t, err)
	stored(t, store, death(1000)) // died later: not in the run
	review, err := m.ReviewRun(t.Context(), run.ID, 2)
	require.NoError(t, err)
	require.Equal(t, ana.Note, review.Run.Note)
	require.Equal(t, []redrive.TopicCount{{Topic: "orders", Count: 3}}, review.Topics)
	require.Len(t, review.Causes, 1)
	require.Equal(t, int64(3), review.Causes[0].Count)
	require.Contains(t, review.Causes[0].Cause, "timeout")
	require.Len(t, review.Sample, 2)
	require.Contains(t, review.Sample[0].Diff.String(), `+  "checked": true`)
	require.Contains(t, review.Sample[1].Diff.String(), `+  "n": 99`, "from the original, not from the edited payload")
	require.Contains(t, review.Sample[1].Diff.String(), `+  "checked": true`)
}
