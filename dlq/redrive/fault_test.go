package redrive_test

import (
	"context"
	"fmt"
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

// fault is the way in which a call of a store fails.
type fault string

const (
	fails   fault = "fails"
	hangs   fault = "hangs"   // until its context ends
	late    fault = "late"    // answers after a while
	lost    fault = "lost"    // succeeds, but its answer is lost
	panics  fault = "panics"  // panics like a driver with a bug
	refuses fault = "refuses" // each time, while the store answers everything else
)

// faultyRuns is a store of which one method fails at one call, or from then on.
type faultyRuns struct {
	*sqlstore.Store

	method string
	at     int
	fault  fault

	mu    sync.Mutex
	calls map[string]int
	hit   bool
}

func guarded[T any](ctx context.Context, s *faultyRuns, method string, do func() (T, error)) (T, error) {
	var none T
	s.mu.Lock()
	s.calls[method]++
	n := s.calls[method]
	wrong := method == s.method && (n == s.at || n > s.at && s.fault == refuses)
	s.hit = s.hit || wrong
	s.mu.Unlock()
	if !wrong {
		return do()
	}
	switch s.fault {
	case hangs:
		<-ctx.Done()
		return none, ctx.Err()
	case late:
		time.Sleep(20 * time.Second) // virtual
		return do()
	case lost:
		if _, err := do(); err != nil {
			return none, err
		}
		return none, errAway
	case panics:
		panic("a bug in " + method)
	default:
		return none, errAway
	}
}

type two[A, B any] struct {
	a A
	b B
}

func (s *faultyRuns) Run(ctx context.Context, id string) (*redrive.Run, error) {
	return guarded(ctx, s, "Run", func() (*redrive.Run, error) { return s.Store.Run(ctx, id) })
}

func (s *faultyRuns) Runs(ctx context.Context, f redrive.RunFilter, p dlq.Page) ([]redrive.Run, string, error) {
	got, err := guarded(ctx, s, "Runs", func() (two[[]redrive.Run, string], error) {
		runs, next, err := s.Store.Runs(ctx, f, p)
		return two[[]redrive.Run, string]{runs, next}, err
	})
	return got.a, got.b, err
}

func (s *faultyRuns) ChangeRun(ctx context.Context, r *redrive.Run, audit driver.AuditRecord) error {
	_, err := guarded(ctx, s, "ChangeRun", func() (struct{}, error) {
		return struct{}{}, s.Store.ChangeRun(ctx, r, audit)
	})
	return err
}

func (s *faultyRuns) LeaseRun(ctx context.Context, id, holder string, at time.Time, lease time.Duration) (*redrive.Run,
	error,
) {
	return guarded(ctx, s, "LeaseRun", func() (*redrive.Run, error) {
		return s.Store.LeaseRun(ctx, id, holder, at, lease)
	})
}

func (s *faultyRuns) FreezeRun(ctx context.Context, id, holder string, at time.Time, limit int) (*redrive.Run, error) {
	return guarded(ctx, s, "FreezeRun", func() (*redrive.Run, error) {
		return s.Store.FreezeRun(ctx, id, holder, at, limit)
	})
}

func (s *faultyRuns) NextItems(ctx context.Context, id string, after int64, limit int, bytes int64) ([]redrive.Item,
	error,
) {
	return guarded(ctx, s, "NextItems", func() ([]redrive.Item, error) {
		return s.Store.NextItems(ctx, id, after, limit, bytes)
	})
}

func (s *faultyRuns) StepRun(ctx context.Context, step redrive.Step) (redrive.Stepped, error) {
	return guarded(ctx, s, "StepRun", func() (redrive.Stepped, error) { return s.Store.StepRun(ctx, step) })
}

func (s *faultyRuns) SettleRun(ctx context.Context, id, holder string, at time.Time, limit int) (*redrive.Run, int,
	error,
) {
	got, err := guarded(ctx, s, "SettleRun", func() (two[*redrive.Run, int], error) {
		run, n, err := s.Store.SettleRun(ctx, id, holder, at, limit)
		return two[*redrive.Run, int]{run, n}, err
	})
	return got.a, got.b, err
}

// Each store call of a run is made to fail, one by one, in each way: the process survives, and the run ends complete,
// with every message handled, or stopped with a cause, and a person can resume it.
func TestRun_EveryStoreCallFails(t *testing.T) {
	t.Parallel()
	for _, method := range []string{
		"Run", "Runs", "ChangeRun", "LeaseRun", "FreezeRun", "NextItems", "StepRun",
		"SettleRun",
	} {
		for _, f := range []fault{fails, hangs, late, lost, panics, refuses} {
			for _, at := range []int{1, 3} {
				t.Run(fmt.Sprintf("%s %d %s", method, at, f), func(t *testing.T) {
					t.Parallel()
					runsThrough(t, method, at, f)
				})
			}
		}
	}
}

func runsThrough(t *testing.T, method string, at int, f fault) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := &consumer{}
		m, store := operated(t, 30, c)
		run, err := m.StartRun(t.Context(), redrive.Spec{Paused: true}, ana)
		require.NoError(t, err)
		_, err = m.ResumeRun(t.Context(), run.ID, ana)
		require.NoError(t, err)
		faulty := &faultyRuns{Store: store, method: method, at: at, fault: f, calls: map[string]int{}}
		slow := c.slow(t, 3*time.Second)
		worker := operate(t, faulty, slow, redrive.Config{Batch: 10, Publishers: 10})
		ctx, stop := context.WithCancel(t.Context())
		worked := make(chan error, 1)
		go func() { worked <- worker.Work(ctx) }()
		for n := 0; ; n++ {
			time.Sleep(time.Minute)
			synctest.Wait()
			run, err = store.Run(t.Context(), run.ID)
			require.NoError(t, err)
			if run.State == redrive.Completed || run.State == redrive.Stopped || f == refuses && n > 10 {
				break
			}
			require.Less(t, n, 30, "neither complete nor stopped: %+v", run)
		}
		stop()
		require.ErrorIs(t, <-worked, context.Canceled)
		if run.State == redrive.Stopped {
			require.NotEmpty(t, run.Cause)
			_, err = m.ResumeRun(t.Context(), run.ID, ana)
			require.NoError(t, err)
		}
		time.Sleep(2 * time.Minute) // the lease and the claims of a worker that could not return them
		synctest.Wait()
		run, err = operate(t, store, slow).Drive(t.Context(), run.ID)
		require.NoError(t, err)
		require.Equal(t, redrive.Completed, run.State, run.Cause)
		require.Equal(t, redrive.Counts{Succeeded: 30}, run.Counts)
	})
}

// Lease renewals, and freezing a run that another process has left unfinished, are calls like any other: one refused
// connection there once ended the process.
func TestRun_RenewalAndFreezingGoWrong(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"LeaseRun", "FreezeRun"} {
		for _, f := range []fault{fails, late, lost, panics} {
			t.Run(method+" "+string(f), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					c := &consumer{}
					m, store := operated(t, 30, c)
					spec, err := redrive.Spec{}.Resolve()
					require.NoError(t, err)
					spec.ID, spec.OutcomeTimeout = "left", wire.Seconds(time.Hour)
					now := time.Now()
					require.NoError(t, store.CreateRun(t.Context(), &redrive.Run{Run: wire.Run{
						ID: "left", Spec: spec, State: redrive.Preparing, Version: 1, CreatedAt: now, CreatedBy: "ana", ChangedAt: now,
						ChangedBy:     "ana",
						ApprovalAbove: -1,
					}}, driver.AuditRecord{At: now, Actor: "ana", Action: redrive.ActionStart, Run: "left"}))
					at := map[string]int{"LeaseRun": 3, "FreezeRun": 1}[method]
					faulty := &faultyRuns{Store: store, method: method, at: at, fault: f, calls: map[string]int{}}
					slow := c.slow(t, 20*time.Second)
					run, err := operate(t, faulty, slow).Drive(t.Context(), "left")
					require.True(t, faulty.hit)
					if f == panics {
						require.Error(t, err)
						_, err = m.ResumeRun(t.Context(), "left", ana)
						require.NoError(t, err)
						time.Sleep(2 * time.Minute)
						synctest.Wait()
						run, err = operate(t, store, slow).Drive(t.Context(), "left")
					}
					require.NoError(t, err)
					require.Equal(t, redrive.Counts{Succeeded: 30}, run.Counts)
				})
			})
		}
	}
}

// A run that kills each process that continues it stops after the second, with a cause, and a person may resume it.
// Processes that die while the run makes progress do not count.
func TestRun_HoldersDie(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &consumer{}
		m, store := operated(t, 30, c)
		run, err := m.StartRun(t.Context(), redrive.Spec{}, ana)
		require.NoError(t, err)
		die := func(holder string) {
			_, err := store.LeaseRun(t.Context(), run.ID, holder, time.Now(), time.Minute)
			require.NoError(t, err)
			time.Sleep(2 * time.Minute)
		}
		die("one")
		die("two")
		_, err = m.Drive(t.Context(), run.ID)
		require.NoError(t, err)
		run, err = store.Run(t.Context(), run.ID)
		require.NoError(t, err)
		require.Equal(t, redrive.Stopped, run.State)
		require.Contains(t, run.Cause, "the last 2 processes")
		require.Zero(t, c.total())
		_, err = m.ResumeRun(t.Context(), run.ID, ana)
		require.NoError(t, err)
		die("three")
		_, err = store.LeaseRun(t.Context(), run.ID, "four", time.Now(), time.Minute)
		require.NoError(t, err)
		items, err := store.NextItems(t.Context(), run.ID, 0, 1, 1<<20)
		require.NoError(t, err)
		stepped, err := store.StepRun(t.Context(), redrive.Step{
			Run: run.ID, Holder: "four", At: time.Now(), Lease: time.Minute, Actor: "ana", ClosePublished: true,
			OutcomeTimeout: time.Hour,
			ClaimTimeout:   time.Minute, Claims: []redrive.Claim{{EntryID: items[0].EntryID, Version: items[0].Version}},
		})
		require.NoError(t, err)
		_, err = store.StepRun(t.Context(), redrive.Step{
			Run: run.ID, Holder: "four", At: time.Now(), Lease: time.Minute, Actor: "ana", ClosePublished: true,
			OutcomeTimeout: time.Hour,
			ClaimTimeout:   time.Minute, Published: []int64{stepped.Claimed[0].ID},
		})
		require.NoError(t, err)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		run, err = m.Drive(t.Context(), run.ID)
		require.NoError(t, err)
		require.Equal(t, redrive.Counts{Succeeded: 30}, run.Counts, run.Cause)
	})
}

// A panic of a broker client counts as a refusal: it stops only the run.
func TestRun_PanickingRedriver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, store := operated(t, 3, &consumer{})
		m := operate(t, store, dlq.RedriverFunc(
			func(context.Context, envelope.Origin, *message.Message, time.Duration) error { panic("a bug") }))
		run, err := m.StartRun(t.Context(), redrive.Spec{}, ana)
		require.NoError(t, err)
		run, err = m.Drive(t.Context(), run.ID)
		require.NoError(t, err)
		require.Equal(t, redrive.Stopped, run.State)
		require.Contains(t, run.Cause, "panicked: a bug")
	})
}

// A filter that no database can compare is refused before a run exists.
func TestRun_ImpossibleTexts(t *testing.T) {
	t.Parallel()
	m, _ := operated(t, 1, &consumer{})
	for _, f := range []dlq.Filter{{Topic: "t\x00"}, {Handler: "\xff"}, {CauseText: "\x00"}} {
		_, err := m.StartRun(t.Context(), redrive.Spec{Filter: f}, ana)
		require.ErrorIs(t, err, dlq.ErrInvalid)
		_, err = m.PreviewRun(t.Context(), redrive.Spec{Filter: f}, 1)
		require.ErrorIs(t, err, dlq.ErrInvalid)
	}
}

// Each step of a canary is judged by its own outcomes: 50 good ones do not outweigh a second step of which all fail.
func TestRun_CanaryStepsAreJudgedAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &consumer{}
		c.fail = func(*message.Message) bool { return c.total() > 50 }
		_, store := operated(t, 300, c)
		m := operate(t, store, c.slow(t, time.Second))
		run, err := m.StartRun(t.Context(), redrive.Spec{Canary: []int{50, 5}}, ana)
		require.NoError(t, err)
		run, err = m.Drive(t.Context(), run.ID)
		require.NoError(t, err)
		require.Equal(t, redrive.Counts{Succeeded: 50, Failed: 5, Waiting: 245}, run.Counts)
		require.Equal(t, redrive.Stopped, run.State)
		require.Contains(t, run.Cause, "canary step 2 of 2: 100 % of its 5 outcomes")
	})
}

// countedRuns counts the calls of a store.
type countedRuns struct {
	faultyRuns
}

func (s *countedRuns) total() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, calls := range s.calls {
		n += calls
	}
	return n
}

func (s *countedRuns) List(ctx context.Context, f dlq.Filter, p dlq.Page) (driver.Listing, error) {
	s.mu.Lock()
	s.calls["List"]++
	s.mu.Unlock()
	return s.Store.List(ctx, f, p)
}

// A rate of almost zero sleeps.
func TestRun_TinyRateDoesNotSpin(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &consumer{}
		_, store := operated(t, 3, c)
		counted := &countedRuns{faultyRuns{Store: store, calls: map[string]int{}}}
		m := operate(t, counted, c)
		run, err := m.StartRun(t.Context(), redrive.Spec{Rate: 1e-10}, ana)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err = m.Drive(ctx, run.ID)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Less(t, counted.total(), 200, "a minute of looking once a second")
		require.Equal(t, 1, c.total())
	})
}

// The burst of a rate beyond the range of an integer was one message.
func TestRun_HugeRateIsNoBrake(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &consumer{}
		_, store := operated(t, 50, c)
		m := operate(t, store, c)
		run, err := m.StartRun(t.Context(), redrive.Spec{Rate: 1e300}, ana)
		require.NoError(t, err)
		_, err = m.Drive(t.Context(), run.ID)
		require.NoError(t, err)
		require.Len(t, c.at, 50)
		require.Equal(t, c.at[0], c.at[49], "all at once")
	})
}
