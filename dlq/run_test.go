package dlq_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/envelope"
)

// consumer is a Redriver with the consumer behind it: each message is handled at once, and the outcome reported as the retry pipeline
// does. fail says whether the handler fails on a message; hold keeps outcomes back until it is called.
type consumer struct {
	letters *dlq.Letters
	fail    func(m *message.Message) bool
	refuse  func(m *message.Message) error
	silent  bool // tells no outcome

	mu    sync.Mutex
	count map[string]int // deliveries by message id
	to    map[string]envelope.Origin
	sent  []*message.Message
	at    []time.Time
}

func (c *consumer) Reschedule(ctx context.Context, origin envelope.Origin, m *message.Message, _ time.Duration) error {
	if c.refuse != nil {
		if err := c.refuse(m); err != nil {
			return err
		}
	}
	id := m.Metadata[envelope.KeyMessageID]
	c.mu.Lock()
	if c.count == nil {
		c.count, c.to = map[string]int{}, map[string]envelope.Origin{}
	}
	c.count[id]++
	c.to[id] = origin
	c.sent = append(c.sent, m)
	c.at = append(c.at, time.Now())
	c.mu.Unlock()
	if c.silent {
		return nil
	}
	return c.outcome(ctx, origin, m)
}

func (c *consumer) outcome(ctx context.Context, origin envelope.Origin, m *message.Message) error {
	if c.fail != nil && c.fail(m) {
		d := death(0)
		d.Message, d.Origin, d.At = m, origin, time.Now()
		d.Err.Message = "still closed"
		return c.letters.DeadLetter(ctx, d)
	}
	return c.letters.Redriven(ctx, m.Metadata[envelope.KeyRedriveID], m.Metadata[envelope.KeyMessageID], time.Now())
}

func (c *consumer) total() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.sent)
}

// operated is a store with dead letters, and a Manager whose messages a consumer handles.
func operated(t *testing.T, letters int, c *consumer, opts ...dlq.ManagerOption) (*dlq.Manager, dlq.Store) {
	t.Helper()
	store := newStore(t)
	c.letters, _ = newLetters(t, &faultyStore{Store: store}, t.TempDir())
	entries := make([]*dlq.Entry, letters)
	for n := range entries {
		entries[n] = dlq.NewEntry(death(n))
	}
	_, err := store.Put(t.Context(), entries...)
	require.NoError(t, err)
	return dlq.NewManager(store, c, opts...), store
}

func pending() dlq.Filter { return dlq.Filter{Statuses: []dlq.Status{dlq.Pending}} }

// C45: every entry of the set is redriven once, and what dies later is not taken.
func TestRun_RedrivesTheFrozenSet(t *testing.T) {
	t.Parallel()
	c := &consumer{}
	m, store := operated(t, 432, c, dlq.WithBatch(100, 16))
	run, err := m.StartRun(t.Context(), dlq.RunSpec{Filter: dlq.Filter{Topic: "orders"}}, ana)
	require.NoError(t, err)
	require.Equal(t, dlq.RunRunning, run.State)
	require.Equal(t, dlq.RunCounts{Waiting: 432}, run.Counts)
	late := stored(t, store, death(9999))

	run, err = m.Drive(t.Context(), run.ID)
	require.NoError(t, err)
	require.Equal(t, dlq.RunCompleted, run.State, run.Cause)
	require.Equal(t, dlq.RunCounts{Succeeded: 432}, run.Counts)
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
	require.Equal(t, []any{int64(432), int64(432), 1.0, time.Duration(0)}, []any{p.Total, p.Done, p.Share, p.Left})
	require.Positive(t, p.Rate)
}

// A handler that fails 30 % of the messages stops the run soon after the sample is there, and resuming goes on.
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
	m, store := operated(t, 500, c, dlq.WithBatch(20, 4))
	run, err := m.StartRun(t.Context(), dlq.RunSpec{MaxOut: 20, Stop: dlq.StopRule{Share: 0.2, MinSample: 40}}, ana)
	require.NoError(t, err)
	run, err = m.Drive(t.Context(), run.ID)
	require.NoError(t, err)
	require.Equal(t, dlq.RunStopped, run.State)
	require.Contains(t, run.Cause, "% of")
	require.LessOrEqual(t, c.total(), 80, "it stops within what may be out")
	require.Equal(t, int64(500), run.Counts.Total())
	require.GreaterOrEqual(t, count(t, store, dlq.Filter{ErrorText: "still closed"}), run.Counts.Failed, "some outcomes may not be in the counts yet")

	_, err = m.ResumeRun(t.Context(), run.ID, dlq.By{Actor: "bob", Note: "it is fixed"})
	require.NoError(t, err)
	c.fail = nil
	run, err = m.Drive(t.Context(), run.ID)
	require.NoError(t, err)
	require.Equal(t, dlq.RunCompleted, run.State, run.Cause)
	require.Equal(t, int64(500), run.Counts.Done())
	for id, n := range c.count {
		require.Equal(t, 1, n, id)
	}
}

// Two operators, the same group, the same second: each entry is redriven once, and the loser's run says who won.
func TestRun_TwoOperators(t *testing.T) {
	t.Parallel()
	c := &consumer{}
	m, store := operated(t, 300, c, dlq.WithBatch(20, 4))
	other := dlq.NewManager(store, c, dlq.WithBatch(20, 4))
	runs := make([]*dlq.Run, 2)
	for i, manager := range []*dlq.Manager{m, other} {
		var err error
		runs[i], err = manager.StartRun(t.Context(), dlq.RunSpec{Filter: dlq.Filter{Topic: "orders"}}, dlq.By{Actor: []string{"ana", "bob"}[i]})
		require.NoError(t, err)
		require.Equal(t, int64(300), runs[i].Counts.Waiting)
	}
	var wg sync.WaitGroup
	errs := make([]error, 2)
	for i, manager := range []*dlq.Manager{m, other} {
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
		items, err := m.RunItems(t.Context(), run.ID, dlq.ItemFilter{State: dlq.ItemSkipped, Limit: 1000})
		require.NoError(t, err)
		for _, item := range items {
			require.Regexp(t, fmt.Sprintf("cannot redrive: it is (RETRYING|RESOLVED) .*by (%s|redrive)", winner), item.Detail)
		}
	}
}
