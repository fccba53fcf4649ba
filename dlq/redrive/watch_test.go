package redrive_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/sqlstore"
	"github.com/redrive-go/redrive/envelope"
)

// The rate can be changed in flight, and a watcher sees each step until the end.
func TestRun_AdjustAndWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &consumer{}
		m, _ := operated(t, 100, c)
		run, err := m.StartRun(t.Context(), redrive.Spec{Rate: 1}, ana)
		require.NoError(t, err)
		done := make(chan struct{})
		go func() {
			defer close(done)
			if _, err := m.Drive(t.Context(), run.ID); err != nil {
				t.Error(err)
			}
		}()
		time.Sleep(10*time.Second + 500*time.Millisecond)
		synctest.Wait()
		require.InDelta(t, 11, c.total(), 1)
		got, err := m.Run(t.Context(), run.ID)
		require.NoError(t, err)
		p := got.Progress(time.Now())
		require.InDelta(t, 1, p.Rate, 0.2)
		require.InDelta(t, 90, p.Left.Duration().Seconds(), 15)
		fast, wrong := 1000.0, -1.0
		_, err = m.AdjustRun(t.Context(), run.ID, redrive.Adjustment{Rate: &wrong}, ana)
		require.ErrorIs(t, err, dlq.ErrInvalid)
		_, err = m.AdjustRun(t.Context(), run.ID, redrive.Adjustment{Rate: &fast}, ana)
		require.NoError(t, err)
		seen := 0
		var last *redrive.Run
		for run, err := range m.WatchRun(t.Context(), run.ID, 100*time.Millisecond) {
			require.NoError(t, err)
			seen++
			last = run
		}
		require.Equal(t, []any{redrive.Completed, int64(100)}, []any{last.State, last.Counts.Succeeded})
		require.Greater(t, seen, 1)
		require.Less(t, time.Since(run.CreatedAt), 20*time.Second)
		<-done
		_, err = m.AdjustRun(t.Context(), run.ID, redrive.Adjustment{Rate: &fast}, ana)
		require.ErrorIs(t, err, dlq.ErrConflict, "it has ended")
		for _, err := range m.WatchRun(t.Context(), "none", time.Second) {
			require.ErrorIs(t, err, dlq.ErrNotFound)
		}
	})
}

// batches is a consumer that accepts whole batches.
type batches struct {
	*consumer

	calls atomic.Int64
	short bool // answers for too few
}

func (b *batches) RescheduleAll(ctx context.Context, origins []envelope.Origin, messages []*message.Message) []error {
	b.calls.Add(1)
	if b.short {
		return nil
	}
	errs := make([]error, len(messages))
	for i := range messages {
		errs[i] = b.Reschedule(ctx, origins[i], messages[i], 0)
	}
	return errs
}

func TestRun_BatchRedriver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &batches{consumer: &consumer{}, short: true}
		_, store := operated(t, 100, b.consumer)
		m := operate(t, store, b, redrive.Config{Batch: 25, Publishers: 1})
		run, err := m.StartRun(t.Context(), redrive.Spec{}, ana)
		require.NoError(t, err)
		run, err = m.Drive(t.Context(), run.ID)
		require.NoError(t, err)
		require.Contains(t, run.Cause, "answered for 0 of 25 messages")
		b.short = false
		b.calls.Store(0)
		_, err = m.ResumeRun(t.Context(), run.ID, ana)
		require.NoError(t, err)
		run, err = m.Drive(t.Context(), run.ID)
		require.NoError(t, err)
		require.Equal(t, redrive.Counts{Succeeded: 100}, run.Counts)
		require.Equal(t, int64(4), b.calls.Load())
	})
}

// A redriver that panics fails its message, not the process.
func TestRun_RedriverPanics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &consumer{refuse: func(m *message.Message) error {
			if m.Metadata[envelope.KeyMessageID] == "message-3" {
				panic("nil map")
			}
			return nil
		}}
		m, _ := operated(t, 10, c)
		run, err := m.StartRun(t.Context(), redrive.Spec{}, ana)
		require.NoError(t, err)
		run, err = m.Drive(t.Context(), run.ID)
		require.NoError(t, err)
		require.Equal(t, redrive.Counts{Succeeded: 9, Skipped: 1}, run.Counts)
		items, err := m.RunItems(t.Context(), run.ID, redrive.ItemFilter{State: redrive.ItemSkipped})
		require.NoError(t, err)
		require.Contains(t, items[0].Detail, "panicked: nil map")
	})
}

// The store fails in the middle: the run waits for it, and redrives nothing twice.
func TestRun_StoreFlaps(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &consumer{}
		_, store := operated(t, 300, c)
		flaky := &flakySteps{Store: store}
		m := operate(t, flaky, c, redrive.Config{Batch: 10, Publishers: 4})
		run, err := m.StartRun(t.Context(), redrive.Spec{}, ana)
		require.NoError(t, err)
		run, err = m.Drive(t.Context(), run.ID)
		require.NoError(t, err)
		require.Equal(t, redrive.Counts{Succeeded: 300}, run.Counts)
		require.Len(t, c.count, 300)
		for id, n := range c.count {
			require.Equal(t, 1, n, id)
		}
		require.Greater(t, flaky.steps.Load(), int64(50))
	})
}

// flakySteps fails every third step: before its execution, or afterwards, when only the answer is lost.
type flakySteps struct {
	*sqlstore.Store

	steps atomic.Int64
}

func (s *flakySteps) StepRun(ctx context.Context, step redrive.Step) (redrive.Stepped, error) {
	n := s.steps.Add(1)
	if n%3 == 0 {
		return redrive.Stepped{}, errAway
	}
	stepped, err := s.Store.StepRun(ctx, step)
	if n%7 == 0 {
		return redrive.Stepped{}, errors.Join(errAway, err)
	}
	return stepped, err
}
