package redrive_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/envelope"
)

// Every entry of the set is redriven once, and later deaths are not included.
func TestRun_RedrivesTheFrozenSet(t *testing.T) {
	t.Parallel()
	c := &consumer{}
	m, store := operated(t, 432, c, redrive.Config{Batch: 100, Publishers: 16})
	run, err := m.StartRun(t.Context(), redrive.Spec{Filter: dlq.Filter{Topic: "orders"}}, ana)
	require.NoError(t, err)
	require.Equal(t, redrive.Running, run.State)
	require.Equal(t, redrive.Counts{Waiting: 432}, run.Counts)
	late := stored(t, store, death(9999))

	run, err = m.Drive(t.Context(), run.ID)
	require.NoError(t, err)
	require.Equal(t, redrive.Completed, run.State, run.Cause)
	require.Equal(t, redrive.Counts{Succeeded: 432}, run.Counts)
	require.Len(t, c.count, 432)
	for id, n := range c.count {
		require.Equal(t, 1, n, id)
	}
	require.Equal(t, run.ID, c.sent[0].Metadata[envelope.KeyRedriveRun])
	require.Equal(t, int64(432), count(t, store, dlq.Filter{Statuses: []dlq.Status{dlq.Resolved}, Run: run.ID}))
	e, err := m.Get(t.Context(), late)
	require.NoError(t, err)
	require.Equal(t, dlq.Pending, e.Status)
	p := run.Progress(time.Now())
	require.Equal(t, []any{int64(432), int64(432), 1.0, wire.Seconds(0)}, []any{p.Total, p.Done, p.Share, p.Left})
	require.Positive(t, p.Rate)
}

// A handler that fails 30 % of the messages stops the run soon after the sample is complete, and resuming continues it.
func TestRun_StopsOnFailures(t *testing.T) {
	t.Parallel()
	n := 0
	var mu sync.Mutex
	c := &consumer{fail: func(*message.Message) bool {
		mu.Lock()
		defer mu.Unlock()
		n++
		return n%10 < 3
	}}
	m, store := operated(t, 500, c, redrive.Config{Batch: 20, Publishers: 4})
	run, err := m.StartRun(t.Context(), redrive.Spec{
		MaxOut: 20, Stop: redrive.StopCondition{Share: 0.2, MinSample: 40},
	}, ana)
	require.NoError(t, err)
	run, err = m.Drive(t.Context(), run.ID)
	require.NoError(t, err)
	require.Equal(t, redrive.Stopped, run.State)
	require.Contains(t, run.Cause, "% of")
	require.LessOrEqual(t, c.total(), 80, "it stops within what may be out")
	require.Equal(t, int64(500), run.Counts.Total())
	require.GreaterOrEqual(t, count(t, store, dlq.Filter{ErrorText: "still closed"}), run.Counts.Failed,
		"some outcomes may not be in the counts yet")

	_, err = m.ResumeRun(t.Context(), run.ID, dlq.By{Actor: "bob", Note: "it is fixed"})
	require.NoError(t, err)
	c.fail = nil
	run, err = m.Drive(t.Context(), run.ID)
	require.NoError(t, err)
	require.Equal(t, redrive.Completed, run.State, run.Cause)
	require.Equal(t, int64(500), run.Counts.Done())
	for id, n := range c.count {
		require.Equal(t, 1, n, id)
	}
}

// Two operators, the same group, the same second: each entry is redriven once, and the loser's run names the winner.
func TestRun_TwoOperators(t *testing.T) {
	t.Parallel()
	c := &consumer{}
	m, store := operated(t, 300, c, redrive.Config{Batch: 20, Publishers: 4})
	other := operate(t, store, c, redrive.Config{Batch: 20, Publishers: 4})
	runs := make([]*redrive.Run, 2)
	for i, manager := range []operator{m, other} {
		var err error
		runs[i], err = manager.StartRun(t.Context(), redrive.Spec{Filter: dlq.Filter{Topic: "orders"}},
			dlq.By{Actor: []string{"ana", "bob"}[i]})
		require.NoError(t, err)
		require.Equal(t, int64(300), runs[i].Counts.Waiting)
	}
	var wg sync.WaitGroup
	errs := make([]error, 2)
	for i, manager := range []operator{m, other} {
		wg.Go(func() { runs[i], errs[i] = manager.Drive(t.Context(), runs[i].ID) })
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	require.Equal(t, int64(300), runs[0].Counts.Succeeded+runs[1].Counts.Succeeded)
	require.Equal(t, int64(300), runs[0].Counts.Skipped+runs[1].Counts.Skipped)
	for id, n := range c.count {
		require.Equal(t, 1, n, id)
	}
	for i, run := range runs {
		winner := []string{"bob", "ana"}[i]
		items, err := m.RunItems(t.Context(), run.ID, redrive.ItemFilter{State: redrive.ItemSkipped, Limit: 1000})
		require.NoError(t, err)
		for _, item := range items {
			require.Regexp(t, fmt.Sprintf("cannot redrive: it has been (RETRYING|RESOLVED) .*by (%s|redrive)", winner),
				item.Detail)
		}
	}
}

func TestNewRunner_BadConfig(t *testing.T) {
	t.Parallel()
	_, err := redrive.NewRunner(nil, redrive.Config{})
	require.ErrorIs(t, err, dlq.ErrInvalid)
	m, err := dlq.NewManager(dlq.ManagerConfig{Store: struct{ dlq.Store }{}})
	require.NoError(t, err)
	_, err = redrive.NewRunner(m, redrive.Config{Batch: driver.MaxPage + 1, Lease: -1})
	require.ErrorIs(t, err, dlq.ErrInvalid)
	for _, what := range []string{"keeps no runs", "batch", "times"} {
		require.ErrorContains(t, err, what)
	}
}

// The rest of a run that has almost no rate takes very long.
func TestRun_ProgressOfATinyRate(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, time.May, 4, 3, 2, 1, 0, time.UTC)
	run := redrive.Run{Run: wire.Run{
		State: redrive.Running, ResumedAt: began, Counts: redrive.Counts{Waiting: 1_000_000_000, Succeeded: 1},
	}}
	require.Positive(t, run.Progress(began.Add(100*24*time.Hour)).Left)
}
