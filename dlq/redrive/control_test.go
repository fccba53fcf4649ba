package redrive_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/sqlstore"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/envelope"
)

// slow delays outcomes, in the test's virtual time.
func (c *consumer) slow(t *testing.T, after time.Duration) dlq.Redriver {
	t.Helper()
	c.silent = true
	return dlq.RedriverFunc(func(ctx context.Context, o envelope.Origin, m *message.Message, d time.Duration) error {
		err := c.Reschedule(ctx, o, m, d)
		go func() {
			time.Sleep(after) // virtual: the consumer works
			if err := c.outcome(context.WithoutCancel(ctx), o, m); err != nil {
				t.Error(err)
			}
		}()
		return err
	})
}

// The canary: 1, then 10, then the rest, each step after the outcomes of the one before.
func TestRun_Canary(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &consumer{}
		_, store := operated(t, 50, c)
		m := operate(t, store, c.slow(t, 10*time.Second))
		began := time.Now()
		run, err := m.StartRun(t.Context(), redrive.Spec{Canary: []int{1, 10}}, ana)
		require.NoError(t, err)
		run, err = m.Drive(t.Context(), run.ID)
		require.NoError(t, err)
		require.Equal(t, redrive.Counts{Succeeded: 50}, run.Counts)
		steps := make([]int, 3)
		for _, at := range c.at {
			steps[int(at.Sub(began)/(10*time.Second))]++
		}
		require.Equal(t, []int{1, 10, 39}, steps)
	})
}

// Neither a limit of outstanding messages nor a canary makes a run faster than its rate.
func TestRun_RateWithOtherLimits(t *testing.T) {
	t.Parallel()
	for name, spec := range map[string]redrive.Spec{
		"outstanding": {MaxOut: 1}, "canary": {Canary: []int{1, 1, 1, 1, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m, _ := operated(t, 20, &consumer{})
				began := time.Now()
				spec.Rate = 1
				run, err := m.StartRun(t.Context(), spec, ana)
				require.NoError(t, err)
				run, err = m.Drive(t.Context(), run.ID)
				require.NoError(t, err)
				require.Equal(t, redrive.Counts{Succeeded: 20}, run.Counts)
				require.GreaterOrEqual(t, time.Since(began), 19*time.Second)
			})
		})
	}
}

// One failure in a canary of two is more than the bound, though it is not a sample.
func TestRun_CanaryStops(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &consumer{fail: func(m *message.Message) bool { return m.Metadata[envelope.KeyMessageID] == "message-1" }}
		_, store := operated(t, 50, c)
		m := operate(t, store, c.slow(t, time.Second))
		run, err := m.StartRun(t.Context(), redrive.Spec{Canary: []int{2, 10}}, ana)
		require.NoError(t, err)
		run, err = m.Drive(t.Context(), run.ID)
		require.NoError(t, err)
		require.Equal(t, redrive.Stopped, run.State)
		require.Equal(t, "canary step 1 of 2: 50 % of its 2 outcomes are failures, more than 10 %", run.Cause)
		require.Equal(t, redrive.Counts{Waiting: 48, Succeeded: 1, Failed: 1}, run.Counts)
		require.Equal(t, 2, c.total())
		// A person reviews it and resumes.
		_, err = m.ResumeRun(t.Context(), run.ID, ana)
		require.NoError(t, err)
		run, err = m.Drive(t.Context(), run.ID)
		require.NoError(t, err)
		require.Equal(t, redrive.Counts{Succeeded: 49, Failed: 1}, run.Counts)
	})
}

// The outcomes of a step may come before the broker's answer to its publish. They are still judged before anything
// after the step is sent.
func TestRun_CanaryWaitsForItsOwnPublish(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &consumer{fail: func(*message.Message) bool { return true }}
		_, store := operated(t, 30, c)
		answers := dlq.RedriverFunc(func(ctx context.Context, o envelope.Origin, m *message.Message, d time.Duration) error {
			err := c.Reschedule(ctx, o, m, d)
			time.Sleep(5 * time.Second) // virtual: the consumer was faster
			return err
		})
		m := operate(t, store, answers)
		run, err := m.StartRun(t.Context(), redrive.Spec{Canary: []int{5}}, ana)
		require.NoError(t, err)
		run, err = m.Drive(t.Context(), run.ID)
		require.NoError(t, err)
		require.Equal(t, redrive.Counts{Waiting: 25, Failed: 5}, run.Counts)
		require.Equal(t, redrive.Stopped, run.State)
		require.Equal(t, 5, c.total())
	})
}

func TestRun_Rate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &consumer{}
		m, _ := operated(t, 100, c)
		began := time.Now()
		run, err := m.StartRun(t.Context(), redrive.Spec{Rate: 20}, ana)
		require.NoError(t, err)
		run, err = m.Drive(t.Context(), run.ID)
		require.NoError(t, err)
		require.Equal(t, redrive.Completed, run.State)
		took := c.at[len(c.at)-1].Sub(began)
		require.InDelta(t, 5.0, took.Seconds(), 0.3)
		for i := 10; i < len(c.at); i++ {
			require.GreaterOrEqual(t, c.at[i].Sub(c.at[i-10]), 350*time.Millisecond, "no burst of more than a tenth of a second")
		}
		p := run.Progress(time.Now())
		require.InDelta(t, 20, p.Rate, 3)
	})
}

// unsent is a store that knows how many bytes of payload were read and not sent yet.
type unsent struct {
	*sqlstore.Store

	bytes, most atomic.Int64
}

func (u *unsent) NextItems(ctx context.Context, run string, after int64, limit int, bytes int64) ([]redrive.Item,
	error,
) {
	items, err := u.Store.NextItems(ctx, run, after, limit, bytes)
	for i := range items {
		u.most.Store(max(u.most.Load(), u.bytes.Add(items[i].Entry.Size)))
	}
	return items, err
}

// storeLarge stores dead letters that claim to have that many bytes.
func storeLarge(t *testing.T, store dlq.Store, letters, size int) {
	t.Helper()
	for n := range letters {
		e := dlq.NewEntry(death(n))
		e.Size = int64(size)
		_, err := store.Put(t.Context(), e)
		require.NoError(t, err)
	}
}

// However many messages a run may read ahead, large ones do not fill the memory while its rate holds them back.
func TestRun_LargeMessagesAreNotReadAhead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const letters, size = 16, 4 << 20
		c := &consumer{}
		_, s := operated(t, 0, c)
		store := &unsent{Store: s}
		c.refuse = func(*message.Message) error {
			store.bytes.Add(-size)
			return nil
		}
		storeLarge(t, store, letters, size)
		m := operate(t, store, c)
		run, err := m.StartRun(t.Context(), redrive.Spec{Rate: 1}, ana)
		require.NoError(t, err)
		run, err = m.Drive(t.Context(), run.ID)
		require.NoError(t, err)
		require.Equal(t, redrive.Counts{Succeeded: letters}, run.Counts)
		require.LessOrEqual(t, store.most.Load(), int64(32<<20))
	})
}

// freed is a store that counts the bodies it has read and that are still in memory.
type freed struct {
	*sqlstore.Store

	kept atomic.Int64
}

func (f *freed) NextItems(ctx context.Context, run string, after int64, limit int, bytes int64) ([]redrive.Item,
	error,
) {
	items, err := f.Store.NextItems(ctx, run, after, limit, bytes)
	for i := range items {
		f.kept.Add(1)
		runtime.AddCleanup(items[i].Entry.Body, func(n *atomic.Int64) { n.Add(-1) }, &f.kept)
	}
	return items, err
}

// Messages that were sent do not stay in memory with those that were read in the same batch.
func TestRun_SentMessagesAreFreed(t *testing.T) {
	t.Parallel()
	const letters, limit = 50, 2 * time.Minute
	c := &consumer{}
	_, s := operated(t, 0, c)
	store := &freed{Store: s}
	var sent atomic.Int64
	c.refuse = func(*message.Message) error {
		if sent.Add(1) == letters {
			assert.Eventually(t, func() bool {
				runtime.GC()
				return store.kept.Load() < letters/2
			}, limit, 10*time.Millisecond)
		}
		return nil
	}
	storeLarge(t, store, letters, 1)
	m := operate(t, store, c)
	run, err := m.StartRun(t.Context(), redrive.Spec{Rate: 100}, ana)
	require.NoError(t, err)
	run, err = m.Drive(t.Context(), run.ID)
	require.NoError(t, err)
	require.Equal(t, redrive.Counts{Succeeded: letters}, run.Counts)
}

// MaxOut bounds the messages sent to a consumer that is slow or gone.
func TestRun_MaxOutAndLostOutcomes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &consumer{silent: true}
		m, store := operated(t, 30, c)
		run, err := m.StartRun(t.Context(), redrive.Spec{
			MaxOut: 10, OutcomeTimeout: wire.Seconds(30 * time.Second),
			Stop: redrive.StopCondition{Share: 1},
		}, ana)
		require.NoError(t, err)
		done := make(chan *redrive.Run)
		go func() {
			run, err := m.Drive(t.Context(), run.ID)
			if err != nil {
				t.Error(err)
			}
			done <- run
		}()
		time.Sleep(20 * time.Second)
		synctest.Wait()
		require.Equal(t, 10, c.total())
		run, err = m.Run(t.Context(), run.ID)
		require.NoError(t, err)
		require.Equal(t, redrive.Counts{Waiting: 20, Out: 10}, run.Counts)
		run = <-done
		require.Equal(t, redrive.Completed, run.State)
		require.Equal(t, redrive.Counts{Lost: 30}, run.Counts)
		// The late outcome still counts for the entry.
		late := c.sent[3]
		require.NoError(t, c.letters.Redriven(t.Context(), envelope.RedrivenBy(late, envelope.Origin{}, time.Now())))
		require.Equal(t, int64(1), count(t, store, dlq.Filter{Statuses: []dlq.Status{dlq.Resolved}}))
	})
}

// pausable is a run of 100 entries, ten a second, that this process works on.
type pausable struct {
	*consumer
	m     operator
	store dlq.Store
	id    string
}

// after lets time pass, and returns the run.
func (p *pausable) after(t *testing.T, d time.Duration) *redrive.Run {
	t.Helper()
	time.Sleep(d) // virtual
	synctest.Wait()
	run, err := p.m.Run(t.Context(), p.id)
	require.NoError(t, err)
	return run
}

// A run that is paused at any moment of its preparation sends nothing, and one that is resumed then sends everything.
func TestRun_PausedWhilePreparing(t *testing.T) {
	t.Parallel()
	for after, acted := 1, true; acted; after++ {
		for _, resume := range []bool{false, true} {
			acted = false
			c := &consumer{}
			_, store := operated(t, 3, c)
			runs := &cancelledRuns{Store: store, after: after}
			runs.cancel = func(id string) {
				other := operate(t, store, nil)
				_, err := other.PauseRun(t.Context(), id, dlq.By{Actor: "bob", Note: "lunch"})
				require.NoError(t, err)
				_, err = other.PauseRun(t.Context(), id, ana)
				require.ErrorIs(t, err, dlq.ErrConflict)
				if resume {
					_, err = other.ResumeRun(t.Context(), id, ana)
					require.NoError(t, err)
				}
				acted = true
			}
			m := operateBy(t, dlq.ManagerConfig{Store: runs, Redriver: c})
			run, err := m.StartRun(t.Context(), redrive.Spec{}, ana)
			require.NoError(t, err)
			if !acted {
				require.Greater(t, after, 3)
				break
			}
			if run, err = m.Drive(t.Context(), run.ID); resume {
				require.NoError(t, err)
				require.Equal(t, redrive.Completed, run.State, "after call %d", after)
				continue
			}
			require.NoError(t, err)
			require.Equal(t, []any{redrive.Paused, "lunch", 0}, []any{run.State, run.Cause, c.total()}, "after call %d", after)
			_, err = m.ResumeRun(t.Context(), run.ID, ana)
			require.NoError(t, err)
			run, err = m.Drive(t.Context(), run.ID)
			require.NoError(t, err)
			require.Equal(t, redrive.Counts{Succeeded: 3}, run.Counts, "after call %d", after)
		}
	}
}

func TestRun_PauseResumeCancel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &consumer{}
		_, store := operated(t, 100, c)
		m := operate(t, store, c.slow(t, 3*time.Second))
		ctx, stop := context.WithCancel(t.Context())
		worked := make(chan error)
		go func() { worked <- m.Work(ctx) }()
		run, err := m.StartRun(t.Context(), redrive.Spec{Rate: 10, Paused: true}, ana)
		require.NoError(t, err)
		p := &pausable{consumer: c, m: m, store: store, id: run.ID}
		run = p.after(t, time.Minute)
		require.Zero(t, c.total())
		require.Equal(t, redrive.Paused, run.State)
		_, err = m.ResumeRun(t.Context(), run.ID, ana)
		require.NoError(t, err)
		p.after(t, 2*time.Second)
		p.requirePaused(t)
		p.requireCancelled(t)
		stop()
		require.ErrorIs(t, <-worked, context.Canceled)
	})
}

// requirePaused pauses the run in another process: this one notices, and outcomes of sent messages are still recorded.
func (p *pausable) requirePaused(t *testing.T) {
	t.Helper()
	_, err := operate(t, p.store, nil).PauseRun(t.Context(), p.id, dlq.By{Actor: "bob", Note: "lunch"})
	require.NoError(t, err)
	p.after(t, 2*time.Second)
	sent := p.total()
	require.InDelta(t, 20, sent, 12)
	run := p.after(t, time.Minute)
	require.Equal(t, sent, p.total())
	require.Equal(t, []any{redrive.Paused, "lunch", int64(sent), int64(0)},
		[]any{run.State, run.Cause, run.Counts.Succeeded, run.Counts.Open()})
	require.Empty(t, run.Holder, "a run with nothing to do has no holder")

	_, err = p.m.PauseRun(t.Context(), p.id, ana)
	var conflict *redrive.ConflictError
	require.ErrorAs(t, err, &conflict)
	require.Equal(t, []any{"bob", string(redrive.Paused)}, []any{conflict.By, conflict.Status})
	_, err = p.m.ResumeRun(t.Context(), p.id, dlq.By{Actor: "ana", Version: 1})
	require.ErrorIs(t, err, dlq.ErrConflict)
	_, err = p.m.ResumeRun(t.Context(), p.id, dlq.By{Actor: "ana", Version: run.Version})
	require.NoError(t, err)
}

// requireCancelled cancels the run after another second.
func (p *pausable) requireCancelled(t *testing.T) {
	t.Helper()
	p.after(t, time.Second)
	run, err := p.m.CancelRun(t.Context(), p.id, ana)
	require.NoError(t, err)
	require.Equal(t, redrive.Cancelled, run.State)
	run = p.after(t, time.Minute)
	sent := p.total()
	require.Less(t, sent, 60)
	require.Equal(t, redrive.Counts{Waiting: int64(100 - sent), Succeeded: int64(sent)}, run.Counts)
	require.Equal(t, int64(100-sent), count(t, p.store, pending()))
	_, err = p.m.ResumeRun(t.Context(), p.id, ana)
	require.ErrorIs(t, err, dlq.ErrConflict)
}

// No one approves their own run, however their name is written.
func TestRun_Approval(t *testing.T) {
	t.Parallel()
	c := &consumer{}
	lab := map[string]envelope.Origin{"lab": {Broker: "mem", Topic: "lab"}}
	_, store := operated(t, 10, c)
	m := operateBy(t, dlq.ManagerConfig{Store: store, Redriver: c, Approval: &dlq.Approval{Above: 5}},
		redrive.Config{Targets: lab})
	preview, err := m.PreviewRun(t.Context(), redrive.Spec{}, 0)
	require.NoError(t, err)
	require.True(t, preview.NeedsApproval)
	run, err := m.StartRun(t.Context(), redrive.Spec{}, ana)
	require.NoError(t, err)
	require.Equal(t, redrive.AwaitingApproval, run.State)
	run, err = m.Drive(t.Context(), run.ID)
	require.NoError(t, err)
	require.Equal(t, redrive.AwaitingApproval, run.State)
	require.Zero(t, c.total())
	for _, own := range []string{"ana", "Ana", " ANA "} {
		_, err = m.ApproveRun(t.Context(), run.ID, dlq.By{Actor: own})
		require.ErrorIs(t, err, redrive.ErrForbidden)
	}
	_, err = m.ResumeRun(t.Context(), run.ID, dlq.By{Actor: "bob"})
	require.ErrorIs(t, err, dlq.ErrConflict, "resume is no way around it")
	// Approved without a configured approval: the run records the request.
	run, err = operate(t, store, nil).ApproveRun(t.Context(), run.ID, dlq.By{Actor: "bob", Note: "looks right"})
	require.NoError(t, err)
	require.Equal(t, []any{redrive.Running, "bob"}, []any{run.State, run.ApprovedBy})
	run, err = m.Drive(t.Context(), run.ID)
	require.NoError(t, err)
	require.Equal(t, int64(10), run.Counts.Succeeded)

	require.Equal(t, int64(0), count(t, store, pending()))
	id := stored(t, store, death(100))
	for name, spec := range map[string]redrive.Spec{"small": {}, "edits": {JQ: ".x = 1"}, "elsewhere": {Target: "lab"}} {
		spec.Filter.IDs = []int64{id}
		run, err = m.StartRun(t.Context(), spec, ana)
		require.NoError(t, err)
		require.Equal(t, name != "small", run.NeedsApproval, name)
		if run.NeedsApproval {
			run, err = m.RejectRun(t.Context(), run.ID, dlq.By{Actor: "bob", Note: "no"})
			require.NoError(t, err)
			require.Equal(t, []any{redrive.Cancelled, "no"}, []any{run.State, run.Cause})
		}
	}
	records, _, err := m.AuditLog(t.Context(), dlq.AuditFilter{Action: redrive.ActionApprove}, dlq.Page{})
	require.NoError(t, err)
	require.Len(t, records, 1)
	require.Equal(t, []string{"bob", "looks right"}, []string{records[0].Actor, records[0].Note})
}

// For consumers that report no outcome, and for other destinations, a confirmed publish closes the entry.
func TestRun_CloseOnPublishAndTarget(t *testing.T) {
	t.Parallel()
	c := &consumer{silent: true}
	lab := envelope.Origin{Broker: "mem", Topic: "lab", Consumer: "testers"}
	m, store := operated(t, 20, c, redrive.Config{Targets: map[string]envelope.Origin{"lab": lab}})
	_, err := m.StartRun(t.Context(), redrive.Spec{Target: "amqp://elsewhere"}, ana)
	require.ErrorIs(t, err, dlq.ErrInvalid)
	run, err := m.StartRun(t.Context(), redrive.Spec{Limit: 5, Target: "lab"}, ana)
	require.NoError(t, err)
	run, err = m.Drive(t.Context(), run.ID)
	require.NoError(t, err)
	require.Equal(t, redrive.Counts{Succeeded: 5}, run.Counts)
	require.Equal(t, lab, c.to["message-0"])
	run, err = m.StartRun(t.Context(), redrive.Spec{CloseOnPublish: true}, ana)
	require.NoError(t, err)
	run, err = m.Drive(t.Context(), run.ID)
	require.NoError(t, err)
	require.Equal(t, redrive.Counts{Succeeded: 15}, run.Counts)
	require.Equal(t, "orders", c.to["message-19"].Topic)
	listing, err := store.List(t.Context(), dlq.Filter{}, dlq.Page{})
	require.NoError(t, err)
	for _, e := range listing.Entries {
		require.Equal(t, []any{dlq.Resolved, "ana"}, []any{e.Status, e.ResolvedBy})
	}
	records, err := m.Audit(t.Context(), listing.Entries[0].ID)
	require.NoError(t, err)
	require.Equal(t, "published; no outcome is awaited", records[1].Note)
}

// A message that the broker refuses is skipped after three tries; a broker that accepts nothing stops the run.
func TestRun_BrokerRefuses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		away := true
		c := &consumer{}
		c.refuse = func(m *message.Message) error {
			if away || m.Metadata[envelope.KeyMessageID] == "message-7" {
				return errors.New("broker says no")
			}
			return nil
		}
		m, store := operated(t, 100, c, redrive.Config{Batch: 25, Publishers: 4})
		run, err := m.StartRun(t.Context(), redrive.Spec{}, ana)
		require.NoError(t, err)
		run, err = m.Drive(t.Context(), run.ID)
		require.NoError(t, err)
		require.Equal(t, redrive.Stopped, run.State)
		require.Contains(t, run.Cause, "broker says no")
		require.Equal(t, redrive.Counts{Waiting: 100}, run.Counts)
		require.Equal(t, int64(100), count(t, store, pending()))
		away = false
		_, err = m.ResumeRun(t.Context(), run.ID, ana)
		require.NoError(t, err)
		run, err = m.Drive(t.Context(), run.ID)
		require.NoError(t, err)
		require.Equal(t, redrive.Completed, run.State)
		require.Equal(t, redrive.Counts{Succeeded: 99, Skipped: 1}, run.Counts)
		items, err := m.RunItems(t.Context(), run.ID, redrive.ItemFilter{State: redrive.ItemSkipped})
		require.NoError(t, err)
		require.Equal(t, "not published: broker says no", items[0].Detail)
		e, err := m.Get(t.Context(), items[0].EntryID)
		require.NoError(t, err)
		require.Equal(t, []any{dlq.Pending, 0, "message-7"}, []any{e.Status, e.RedriveCount, e.EventID})
	})
}

// The process dies after the claim: another one takes the run over when the lease is over, waits for the outcomes of
// messages that may have been published, and redrives the others.
func TestRun_TakenOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &consumer{}
		m, store := operated(t, 10, c)
		run, err := m.StartRun(t.Context(), redrive.Spec{}, ana)
		require.NoError(t, err)
		_, err = store.LeaseRun(t.Context(), run.ID, "who dies", time.Now(), 30*time.Second)
		require.NoError(t, err)
		items, err := store.NextItems(t.Context(), run.ID, 0, 4, 1<<20)
		require.NoError(t, err)
		step := redrive.Step{
			Run: run.ID, Holder: "who dies", At: time.Now(), Lease: 30 * time.Second, Actor: "ana", OutcomeTimeout: time.Hour,
			ClaimTimeout: time.Minute,
		}
		for _, item := range items {
			step.Claims = append(step.Claims, redrive.Claim{EntryID: item.EntryID, Version: item.Version})
		}
		stepped, err := store.StepRun(t.Context(), step)
		require.NoError(t, err)
		require.Len(t, stepped.Claimed, 4)
		// Two of the four had been published, and are handled a little later.
		for i := range 2 {
			e, err := m.Get(t.Context(), stepped.Claimed[i].ID)
			require.NoError(t, err)
			go func() {
				time.Sleep(20 * time.Second)
				if err := c.Reschedule(t.Context(), e.Origin, dlq.RedriveMessage(e), 0); err != nil {
					t.Error(err)
				}
			}()
		}
		began := time.Now()
		run, err = m.Drive(t.Context(), run.ID)
		require.NoError(t, err)
		require.Equal(t, redrive.Counts{Succeeded: 10}, run.Counts)
		require.Len(t, c.count, 10)
		for id, n := range c.count {
			require.Equal(t, 1, n, id)
		}
		require.GreaterOrEqual(t, c.at[2].Sub(began), 30*time.Second, "not before the lease is over")
		require.GreaterOrEqual(t, c.at[len(c.at)-1].Sub(began), time.Minute, "not before the claims are over")
		_, err = store.StepRun(t.Context(), step)
		require.ErrorIs(t, err, redrive.ErrLeaseLost, "the holder that was dead cannot continue")
	})
}

// Processes come and go at random while a run is in progress; nothing is redriven twice and nothing is forgotten.
func TestRun_ManyWorkers(t *testing.T) {
	t.Parallel()
	const letters = 60
	c := &consumer{}
	_, store := operated(t, letters, c)
	run, err := operate(t, store, nil).StartRun(t.Context(), redrive.Spec{}, ana)
	require.NoError(t, err)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for attempt := 1; t.Context().Err() == nil; attempt++ { // longer each time: a slow machine gets on too
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(5+rand.IntN(20*attempt))*time.Millisecond)
				m := operate(t, store, c, redrive.Config{Batch: 5, Publishers: 4, WorkInterval: 2 * time.Millisecond})
				got, err := m.Drive(ctx, run.ID)
				cancel()
				if err == nil && got.State == redrive.Completed {
					return
				}
				if err != nil && !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	run, err = store.Run(t.Context(), run.ID)
	require.NoError(t, err)
	require.Equal(t, redrive.Counts{Succeeded: letters}, run.Counts)
	for id, n := range c.count {
		require.Equal(t, 1, n, id)
	}
}

// The actor of a change since the set was frozen is named, and the entry left alone.
func TestRun_SkipsEntriesThatOthersChanged(t *testing.T) {
	t.Parallel()
	c := &consumer{}
	m, _ := operated(t, 5, c)
	run, err := m.StartRun(t.Context(), redrive.Spec{}, ana)
	require.NoError(t, err)
	items, err := m.RunItems(t.Context(), run.ID, redrive.ItemFilter{})
	require.NoError(t, err)
	_, err = m.Discard(t.Context(), items[1].EntryID, dlq.By{Actor: "bob"})
	require.NoError(t, err)
	_, _, err = m.Edit(t.Context(), items[2].EntryID, dlq.Edit{Payload: []byte("{}")}, dlq.By{Actor: "eve"})
	require.NoError(t, err)
	run, err = m.Drive(t.Context(), run.ID)
	require.NoError(t, err)
	require.Equal(t, redrive.Counts{Succeeded: 3, Skipped: 2}, run.Counts)
	items, err = m.RunItems(t.Context(), run.ID, redrive.ItemFilter{State: redrive.ItemSkipped})
	require.NoError(t, err)
	require.Contains(t, items[0].Detail, "it has been DISCARDED")
	require.Contains(t, items[0].Detail, "by bob")
	require.Contains(t, items[1].Detail, "by eve")
}

func TestRun_Refuses(t *testing.T) {
	t.Parallel()
	c := &consumer{}
	m, store := operated(t, 1, c)
	for name, spec := range map[string]redrive.Spec{
		"id":             {ID: "../etc"},
		"status":         {Filter: dlq.Filter{Statuses: []dlq.Status{"LOST"}}},
		"closed entries": {Filter: dlq.Filter{Statuses: []dlq.Status{dlq.Resolved}}},
		"limit":          {Limit: -1},
		"rate":           {Rate: -1},
		"canary":         {Canary: []int{1, 0}},
		"share":          {Stop: redrive.StopCondition{Share: 1.5}},
		"sample":         {Stop: redrive.StopCondition{MinSample: -1}},
		"jq":             {JQ: ".a |"},
		"jq function":    {JQ: "nothing_like_it"},
		"jq input":       {JQ: "input"},
		"target":         {Target: "lab"},
		"timeout":        {OutcomeTimeout: -1},
	} {
		_, err := m.StartRun(t.Context(), spec, ana)
		require.ErrorIs(t, err, dlq.ErrInvalid, name)
		_, err = m.PreviewRun(t.Context(), spec, 0)
		require.ErrorIs(t, err, dlq.ErrInvalid, name)
	}
	_, err := m.StartRun(t.Context(), redrive.Spec{}, dlq.By{})
	require.ErrorIs(t, err, dlq.ErrInvalid)
	_, err = m.StartRun(t.Context(), redrive.Spec{ID: "mine"}, ana)
	require.NoError(t, err)
	_, err = m.StartRun(t.Context(), redrive.Spec{ID: "mine"}, ana)
	require.ErrorIs(t, err, dlq.ErrConflict)
	_, err = m.PauseRun(t.Context(), "mine", dlq.By{})
	require.ErrorIs(t, err, dlq.ErrInvalid)
	_, err = m.PauseRun(t.Context(), "none", ana)
	require.ErrorIs(t, err, dlq.ErrNotFound)
	_, err = m.Drive(t.Context(), "none")
	require.ErrorIs(t, err, dlq.ErrNotFound)
	none := operate(t, store, nil)
	_, err = none.Drive(t.Context(), "mine")
	require.ErrorIs(t, err, dlq.ErrInvalid)
	require.ErrorIs(t, none.Work(t.Context()), dlq.ErrInvalid)
	runs, _, err := m.Runs(t.Context(), redrive.RunFilter{}, dlq.Page{})
	require.NoError(t, err)
	require.Len(t, runs, 1, "what is refused leaves nothing")
	// An empty set is complete.
	run, err := m.StartRun(t.Context(), redrive.Spec{Filter: dlq.Filter{Topic: "none"}}, ana)
	require.NoError(t, err)
	require.Equal(t, redrive.Completed, run.State)
}

// An entry that the broker refuses waits as it did before its run: for rules if a person has restored it, for a person
// if one has parked it.
func TestRun_RefusedAsBefore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &consumer{refuse: func(m *message.Message) error {
			if m.Metadata[envelope.KeyMessageID] != "message-0" {
				return errors.New("no such queue")
			}
			return nil
		}}
		m, store := operated(t, 0, c)
		e := dlq.NewEntry(death(2))
		e.RedriveCount = dlq.DefaultRedriveBudget
		ids := []int64{stored(t, store, death(0)), stored(t, store, death(1))}
		receipts, err := store.Put(t.Context(), e)
		require.NoError(t, err)
		ids = append(ids, receipts[0].ID)
		_, err = m.Park(t.Context(), ids[1], ana)
		require.NoError(t, err)
		filter := dlq.Filter{IDs: ids, Statuses: []dlq.Status{dlq.Pending, dlq.Parked}}
		run, err := m.StartRun(t.Context(), redrive.Spec{Filter: filter}, ana)
		require.NoError(t, err)
		run, err = m.Drive(t.Context(), run.ID)
		require.NoError(t, err)
		require.Equal(t, redrive.Counts{Succeeded: 1, Skipped: 2}, run.Counts)
		for i, want := range []dlq.Status{dlq.Resolved, dlq.Parked, dlq.Pending} {
			got, err := store.Get(t.Context(), ids[i])
			require.NoError(t, err)
			require.Equal(t, want, got.Status)
		}
	})
}
