package redrive_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/sqlstore"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/envelope"
)

// frozenFor is longer than the lease of a run, and shorter than the timeout of a store call.
const frozenFor = 45 * time.Second

// heldRuns is the store of one process, of which one call begins late, as if the process had been frozen before it. It
// records the calls of a holder that has lost its lease.
type heldRuns struct {
	*sqlstore.Store

	method string // the call that freezes, and which one
	at     int

	mu     sync.Mutex
	calls  map[string]int
	lost   map[string]string // by holder, the refused call
	after  []string          // calls of a holder after its refusal
	leases int               // calls of LeaseRun that are not over
	most   int               // of them at once
}

func newHeldRuns(s *sqlstore.Store, method string, at int) *heldRuns {
	return &heldRuns{Store: s, method: method, at: at, calls: map[string]int{}, lost: map[string]string{}}
}

func held[T any](s *heldRuns, method, holder string, do func() (T, error)) (T, error) {
	s.mu.Lock()
	s.calls[method]++
	freeze := method == s.method && s.calls[method] == s.at
	if refused := s.lost[holder]; refused != "" {
		s.after = append(s.after, method+" after "+refused)
	}
	s.mu.Unlock()
	if freeze {
		time.Sleep(frozenFor) // virtual
	}
	got, err := do()
	if errors.Is(err, redrive.ErrLeaseLost) {
		s.mu.Lock()
		s.lost[holder] = method
		s.mu.Unlock()
	}
	return got, err
}

func (s *heldRuns) LeaseRun(ctx context.Context, id, holder string, at time.Time, lease time.Duration) (*redrive.Run,
	error,
) {
	s.mu.Lock()
	s.leases++
	s.most = max(s.most, s.leases)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.leases--
		s.mu.Unlock()
	}()
	return held(s, "LeaseRun", holder, func() (*redrive.Run, error) {
		return s.Store.LeaseRun(ctx, id, holder, at, lease)
	})
}

func (s *heldRuns) FreezeRun(ctx context.Context, id, holder string, at time.Time, limit int) (*redrive.Run, error) {
	return held(s, "FreezeRun", holder, func() (*redrive.Run, error) {
		return s.Store.FreezeRun(ctx, id, holder, at, limit)
	})
}

func (s *heldRuns) StepRun(ctx context.Context, step redrive.Step) (redrive.Stepped, error) {
	return held(s, "StepRun", step.Holder, func() (redrive.Stepped, error) { return s.Store.StepRun(ctx, step) })
}

func (s *heldRuns) SettleRun(ctx context.Context, id, holder string, at time.Time, limit int) (*redrive.Run, int,
	error,
) {
	got, err := held(s, "SettleRun", holder, func() (two[*redrive.Run, int], error) {
		run, n, err := s.Store.SettleRun(ctx, id, holder, at, limit)
		return two[*redrive.Run, int]{run, n}, err
	})
	return got.a, got.b, err
}

// requireOnce checks that every message was sent once, and that the run has recorded it.
func requireOnce(t *testing.T, s *sqlstore.Store, c *consumer, letters int) {
	t.Helper()
	run, err := s.Run(t.Context(), "shared")
	require.NoError(t, err)
	require.Equal(t, redrive.Completed, run.State, run.Cause)
	require.Equal(t, redrive.Counts{Succeeded: int64(letters)}, run.Counts)
	require.Len(t, c.count, letters)
	for id, n := range c.count {
		require.Equal(t, 1, n, id)
	}
}

// A process is frozen for longer than its lease before a call of the store, and another one takes the run over. The
// first is notified once that the lease is lost, does nothing more with the run, and neither sends anything twice nor
// stops the other one's work.
func TestRun_HolderFreezes(t *testing.T) {
	t.Parallel()
	for method, test := range map[string]struct {
		at      int // the call that freezes
		letters int
		rate    float64
	}{
		"LeaseRun":  {2, 12, 0.05}, // the renewal, as no step extends it
		"StepRun":   {3, 120, 1},
		"SettleRun": {3, 120, 1},
	} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := &consumer{}
				other, store := operated(t, test.letters, c)
				frozen := newHeldRuns(store, method, test.at)
				_, err := other.StartRun(t.Context(), redrive.Spec{ID: "shared", Rate: test.rate}, ana)
				require.NoError(t, err)
				var both sync.WaitGroup
				for _, process := range []operator{operate(t, frozen, c), other} {
					both.Go(func() {
						_, err := process.Drive(t.Context(), "shared")
						if err != nil {
							t.Error(err)
						}
					})
					time.Sleep(time.Second) // virtual: the first has the lease
					synctest.Wait()
				}
				both.Wait()
				requireOnce(t, store, c, test.letters)
				require.Contains(t, slices.Collect(maps.Values(frozen.lost)), method)
				require.Empty(t, frozen.after)
			})
		})
	}
}

// A process that shuts down waits for a message that it is sending, for longer than its lease: its late record is
// refused once, and not repeated. The process that has the run learns from the message's outcome.
func TestRun_HolderEndsLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &consumer{}
		other, store := operated(t, 60, c)
		ctx, end := context.WithCancel(t.Context())
		ending := newHeldRuns(store, "", 0)
		late := dlq.RedriverFunc(func(ctx context.Context, o envelope.Origin, m *message.Message, d time.Duration) error {
			if ctx.Err() == nil && c.total() == 5 {
				end()
				time.Sleep(frozenFor) // virtual
			}
			return c.Reschedule(context.WithoutCancel(ctx), o, m, d)
		})
		_, err := other.StartRun(t.Context(), redrive.Spec{ID: "shared", Rate: 1}, ana)
		require.NoError(t, err)
		m := operateBy(t, dlq.ManagerConfig{Store: ending, Redriver: late, PublishTimeout: time.Minute})
		ended := make(chan error, 1)
		go func() {
			_, err := m.Drive(ctx, "shared")
			ended <- err
		}()
		time.Sleep(time.Second) // virtual: the first has the lease
		synctest.Wait()
		_, err = other.Drive(t.Context(), "shared")
		require.NoError(t, err)
		require.ErrorIs(t, <-ended, context.Canceled)
		requireOnce(t, store, c, 60)
		require.Equal(t, []string{"StepRun"}, slices.Collect(maps.Values(ending.lost)))
		require.Empty(t, ending.after)
	})
}

// Processes that work on one store do not request a run that another one holds, and each has only one request for a run
// at a time, however long the store takes to answer.
func TestWork_LeavesHeldRunsAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &consumer{}
		first, store := operated(t, 60, c)
		_, err := first.StartRun(t.Context(), redrive.Spec{ID: "shared", Rate: 1}, ana)
		require.NoError(t, err)
		_, err = store.LeaseRun(t.Context(), "shared", "who dies", time.Now(), 2*time.Minute)
		require.NoError(t, err)
		ctx, end := context.WithCancel(t.Context())
		var all sync.WaitGroup
		var stores []*heldRuns
		for n := range 3 {
			s := newHeldRuns(store, "LeaseRun", 1-n) // the answer to the first one's first question is late
			stores = append(stores, s)
			m := operate(t, s, c)
			all.Go(func() { _ = m.Work(ctx) })
			time.Sleep(time.Second / 4) // virtual
			synctest.Wait()
		}
		for _, err := range first.WatchRun(t.Context(), "shared", time.Second) {
			require.NoError(t, err)
		}
		end()
		all.Wait()
		requireOnce(t, store, c, 60)
		steps := 0
		for i, s := range stores {
			require.LessOrEqual(t, s.most, 1, "process %d", i)
			require.LessOrEqual(t, len(s.lost), 1, "process %d asked for what another one held", i) // but for a tie
			if s.calls["StepRun"] > 0 {
				steps++
			}
		}
		require.Equal(t, 1, steps, "processes that carried the run on")
	})
}

// A process that hangs, each time, for longer than its lease before it has sent anything counts like one that died: it
// does not return claims that it has lost.
func TestRun_HoldersHang(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &consumer{}
		m, store := operated(t, 5, c)
		_, err := m.StartRun(t.Context(), redrive.Spec{ID: "shared"}, ana)
		require.NoError(t, err)
		run, err := operate(t, &hangingSteps{store}, c).Drive(t.Context(), "shared")
		require.NoError(t, err)
		require.Equal(t, redrive.Stopped, run.State)
		require.Zero(t, c.total())
	})
}

// hangingSteps is the store of a process that hangs before each step, and thereby loses its lease.
type hangingSteps struct{ *sqlstore.Store }

func (s *hangingSteps) StepRun(context.Context, redrive.Step) (redrive.Stepped, error) {
	time.Sleep(2 * time.Minute) // virtual
	return redrive.Stepped{}, redrive.ErrLeaseLost
}

// Starting a run that another process has taken meanwhile returns that run, and no error.
func TestStartRun_TakenMeanwhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &consumer{}
		other, store := operated(t, 60, c)
		s := newHeldRuns(store, "LeaseRun", 1)
		m, started := operate(t, s, c), make(chan error, 1)
		go func() {
			run, err := m.StartRun(t.Context(), redrive.Spec{ID: "shared", Rate: 1}, ana)
			if err == nil && run.State != redrive.Running {
				err = errors.New("it is " + string(run.State))
			}
			started <- err
		}()
		time.Sleep(time.Second) // virtual: the run is stored
		synctest.Wait()
		_, err := other.Drive(t.Context(), "shared")
		require.NoError(t, err)
		require.NoError(t, <-started)
		require.Equal(t, []string{"LeaseRun"}, slices.Collect(maps.Values(s.lost)))
		requireOnce(t, store, c, 60)
	})
}

// skewed is the store of a process whose clock is wrong by an hour, in a database with a correct clock.
type skewed struct{ *heldRuns }

func (s *skewed) Now(context.Context) time.Time { return time.Now().Add(-time.Hour) }

// The clock of the store decides when a lease ends: a process whose clock is an hour ahead takes nothing from others.
func TestRun_ClockOfTheStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &consumer{}
		first, store := operated(t, 3, c)
		_, err := first.StartRun(t.Context(), redrive.Spec{ID: "shared"}, ana)
		require.NoError(t, err)
		s := &skewed{newHeldRuns(store, "", 0)}
		_, err = store.LeaseRun(t.Context(), "shared", "another", time.Now().Add(-time.Hour), time.Minute)
		require.NoError(t, err)
		began := time.Now()
		_, err = operate(t, s, c).Drive(t.Context(), "shared")
		require.NoError(t, err)
		requireOnce(t, store, c, 3)
		require.GreaterOrEqual(t, c.at[0].Sub(began), time.Minute, "its lease lasts by the store's clock")
	})
}

// A claim ends when its own time is over, and not with the lease of its entry, which may be shorter: until then the
// process that has it may still send the message.
func TestItem_SettleClaimed(t *testing.T) {
	t.Parallel()
	now := time.Now()
	item := redrive.Item{RunItem: wire.RunItem{
		State: redrive.ItemClaimed, Redrive: 1, ClaimedUntil: now.Add(time.Minute),
	}}
	entry := &dlq.Entry{Status: dlq.Retrying, RedriveCount: 1, LeaseUntil: now.Add(-time.Minute)}
	for after, want := range map[time.Duration]redrive.ItemState{
		0: redrive.ItemClaimed, time.Minute - 1: redrive.ItemClaimed, time.Minute: redrive.ItemWaiting,
	} {
		state, _ := item.Settle(entry, now.Add(after))
		require.Equal(t, want, state, after)
	}
}

// awayAtFirst is the store of a process whose first steps fail, while all other calls work.
type awayAtFirst struct {
	*heldRuns

	fails int
}

func (s *awayAtFirst) StepRun(ctx context.Context, step redrive.Step) (redrive.Stepped, error) {
	if s.fails--; s.fails >= 0 {
		return redrive.Stepped{}, errAway
	}
	return s.heldRuns.StepRun(ctx, step)
}

// The pauses between the attempts of a process whose store refuses its steps end before its lease does, however short
// that is: it keeps the run, and another process does not get it.
func TestRun_PausesWithinTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &consumer{}
		first, store := operated(t, 5, c)
		_, err := first.StartRun(t.Context(), redrive.Spec{ID: "shared"}, ana)
		require.NoError(t, err)
		refused := &awayAtFirst{newHeldRuns(store, "", 0), 9} // at the tenth in a row it would stop the run
		other := newHeldRuns(store, "", 0)
		var both sync.WaitGroup
		for _, s := range []dlq.Store{refused, other} {
			process := operate(t, s, c, redrive.Config{Lease: 4 * time.Second})
			both.Go(func() {
				_, err := process.Drive(t.Context(), "shared")
				if err != nil {
					t.Error(err)
				}
			})
			time.Sleep(time.Second / 4) // virtual: the first has the lease
			synctest.Wait()
		}
		both.Wait()
		requireOnce(t, store, c, 5)
		require.Empty(t, refused.lost)
		require.Zero(t, other.calls["StepRun"], "the other process carried it on")
	})
}

// An entry that had succeeded once, and was restored, has not succeeded again because a person resolves it. One that a
// person restores has succeeded, whatever the consumer's clock shows.
func TestItem_SettleAfterARestore(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	for name, test := range map[string]struct {
		then []driver.Action
		want redrive.ItemState
	}{
		"by hand":   {[]driver.Action{driver.ActionReleaseByHand, driver.ActionResolve}, redrive.ItemLost},
		"succeeded": {[]driver.Action{driver.ActionSucceed}, redrive.ItemSucceeded},
		"restored":  {[]driver.Action{driver.ActionSucceed, driver.ActionRestore}, redrive.ItemSucceeded},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, at := driver.Entry{ID: 7, Status: dlq.Pending, Version: 1, RedriveBudget: 3}, now
			before := []driver.Action{driver.ActionRedrive, driver.ActionSucceed, driver.ActionRestore, driver.ActionRedrive}
			for _, action := range append(before, test.then...) {
				c := driver.Change{Action: action, IDs: []int64{7}, Actor: "ana", Note: "x", At: at, Lease: time.Hour}
				if action == driver.ActionSucceed {
					c.At, c.Reports = at.Add(-5*time.Minute), []driver.Report{{Number: e.RedriveCount}}
				}
				var err error
				e, err = c.Apply(e)
				require.NoError(t, err, action)
				at = at.Add(time.Minute)
			}
			item := redrive.Item{RunItem: wire.RunItem{EntryID: 7, State: redrive.ItemOut, Redrive: 2}}
			state, _ := item.Settle(&e, at)
			require.Equal(t, test.want, state)
		})
	}
}

// frozenOnce is a store whose server is frozen when it first has outcomes.
type frozenOnce struct {
	*sqlstore.Store

	was bool
}

func (s *frozenOnce) SettleRun(ctx context.Context, id, holder string, at time.Time, limit int) (*redrive.Run, int,
	error,
) {
	run, n, err := s.Store.SettleRun(ctx, id, holder, at, limit)
	if n > 0 && !s.was {
		s.was = true
		time.Sleep(20 * time.Second) // virtual
	}
	return run, n, err
}

// A run that had waited for a frozen server looked for the next outcomes only after ten times as long. For minutes it
// sent messages that all failed, because it stops by their outcomes.
func TestRun_StopsSoonAfterAFrozenServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &consumer{fail: func(*message.Message) bool { return true }}
		_, store := operated(t, 1000, c)
		m := operate(t, &frozenOnce{Store: store}, c)
		run, err := m.StartRun(t.Context(), redrive.Spec{Rate: 4}, ana)
		require.NoError(t, err)
		run, err = m.Drive(t.Context(), run.ID)
		require.NoError(t, err)
		require.Equal(t, redrive.Stopped, run.State)
		require.Less(t, c.total(), 200)
	})
}
