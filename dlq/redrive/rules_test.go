package redrive_test

import (
	"context"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/envelope"
)

// Technical causes are redriven automatically, later and later, until the message's redrives are used up: then it is
// PARKED for a person. Two processes have the same rule.
func TestRule_BacksOffAndParks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &consumer{fail: func(*message.Message) bool { return true }}
		m, store := operated(t, 1, c)
		business := stored(t, store, func() *envelope.DeadLetter { d := death(5); d.Class = "*main.Invalid"; return d }())
		ctx, stop := context.WithCancel(t.Context())
		rule := redrive.Rule{Name: "bank", ErrorClass: death(0).Class, After: time.Minute, Redrives: 10}
		began := time.Now()
		var running atomic.Int32
		for range 2 {
			running.Add(2)
			manager := operate(t, store, c, redrive.Config{WorkInterval: 20 * time.Second})
			go func() { _ = manager.Work(ctx); running.Add(-1) }()
			go func() { _ = manager.Automate(ctx, rule); running.Add(-1) }()
		}
		time.Sleep(9 * time.Minute)
		synctest.Wait()
		c.mu.Lock()
		at := slices.Clone(c.at)
		c.mu.Unlock()
		require.Len(t, at, 3)
		last := began
		for i, want := range []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute} {
			require.GreaterOrEqual(t, at[i].Sub(last), want)
			require.Less(t, at[i].Sub(last), want+25*time.Second)
			last = at[i]
		}
		listing, err := store.List(t.Context(), dlq.Filter{Statuses: []dlq.Status{dlq.Parked}}, dlq.Page{})
		require.NoError(t, err)
		require.Len(t, listing.Entries, 1)
		require.Equal(t, 3, listing.Entries[0].RedriveCount)
		e, err := m.Get(t.Context(), business)
		require.NoError(t, err)
		require.Equal(t, []any{dlq.Pending, 0}, []any{e.Status, e.RedriveCount})
		runs, _, err := m.Runs(t.Context(), redrive.RunFilter{CreatedBy: "rule bank"}, dlq.Page{})
		require.NoError(t, err)
		require.Len(t, runs, 3, "of two processes with the same rule one starts the run")
		// The person redrives it, and it works.
		c.fail = nil
		_, err = m.Redrive(t.Context(), listing.Entries[0].ID, ana)
		require.NoError(t, err)
		e, err = m.Get(t.Context(), listing.Entries[0].ID)
		require.NoError(t, err)
		require.Equal(t, dlq.Resolved, e.Status)
		stop()
		synctest.Wait()
		require.Zero(t, running.Load())
	})
}

// Idle rules look every ten seconds, whether nothing has died, nothing is due or their run waits for a person: this
// bounds the reads of the store in an hour.
func TestRule_IdleDoesNotSpin(t *testing.T) {
	t.Parallel()
	const rules, reads = 2, 5 // a rule's runs, its exhausted letters, and those due after each number of redrives
	for name, prepare := range map[string]func(t *testing.T, m operator, s dlq.Store){
		"nothing has died": func(*testing.T, operator, dlq.Store) {},
		"nothing is due": func(t *testing.T, _ operator, s dlq.Store) {
			t.Helper()
			stored(t, s, death(1))
		},
		"a person has paused its run": func(t *testing.T, m operator, s dlq.Store) {
			t.Helper()
			stored(t, s, death(1))
			_, err := m.StartRun(t.Context(), redrive.Spec{Paused: true}, dlq.By{Actor: "rule class"})
			require.NoError(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := &consumer{}
				m, store := operated(t, 0, c)
				prepare(t, m, store)
				counted := &countedRuns{faultyRuns{Store: store, calls: map[string]int{}}}
				m = operate(t, counted, c, redrive.Config{WorkInterval: 10 * time.Second})
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				worked := make(chan error, 1)
				go func() { worked <- m.Work(ctx) }()
				err := m.Automate(ctx,
					redrive.Rule{Name: "class", ErrorClass: death(0).Class, After: 2 * time.Hour, MaxAfter: 2 * time.Hour},
					redrive.Rule{Name: "topic", Topic: "orders", After: 2 * time.Hour, MaxAfter: 2 * time.Hour})
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.ErrorIs(t, <-worked, context.DeadlineExceeded)
				const looks = int(time.Hour / (10 * time.Second))
				require.LessOrEqual(t, counted.total(), (looks+1)*(rules*reads+1), "and one for the worker")
				require.GreaterOrEqual(t, counted.total(), looks*(rules+1), "they do look")
				require.Zero(t, c.total())
			})
		})
	}
}

// A rule in an outage: it stops, backs off, tries again, picks up new dead letters, and parks those that it could not
// save.
func TestRule_SurvivesTheOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var outage atomic.Bool
		outage.Store(true)
		c := &consumer{fail: func(*message.Message) bool { return outage.Load() }}
		m, store := operated(t, 100, c, redrive.Config{Batch: 5, Publishers: 5, WorkInterval: time.Minute})
		ctx, stop := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer stop()
		go func() { _ = m.Work(ctx) }()
		go func() {
			_ = m.Automate(ctx, redrive.Rule{Name: "all", Topic: "orders", Rate: 5, Redrives: 2, MaxAfter: 20 * time.Minute})
		}()
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		early := c.total()
		require.Positive(t, early)
		require.Less(t, early, 80, "it does not send everything into an outage")
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		require.Greater(t, c.total(), early, "it tries again without a person")
		require.Less(t, c.total(), 200, "and not all the time")
		parked, err := store.Count(t.Context(), dlq.Filter{Statuses: []dlq.Status{dlq.Parked}}, 0)
		require.NoError(t, err)
		require.Positive(t, parked, "what it could not help waits for a person")

		outage.Store(false)
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		left, err := store.Count(t.Context(), dlq.Filter{Statuses: []dlq.Status{dlq.Pending, dlq.Retrying}}, 0)
		require.NoError(t, err)
		require.Zero(t, left, "after the outage all others are handled")
		resolved, err := store.Count(t.Context(), dlq.Filter{Statuses: []dlq.Status{dlq.Resolved}}, 0)
		require.NoError(t, err)
		require.Positive(t, resolved)
	})
}

// The pause after a run that stopped doubles with each stop in a row, up to MaxAfter, however many they are.
func TestRule_PausesUpToMaxAfter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, store := operated(t, 0, &consumer{})
		const stops = 15
		for n := range stops {
			run := &redrive.Run{Run: wire.Run{
				ID: strconv.Itoa(n), State: redrive.Preparing, Version: 1, CreatedAt: time.Now(), CreatedBy: "rule all",
			}}
			record := driver.AuditRecord{At: time.Now(), Actor: "rule all", Action: redrive.ActionStart, Run: run.ID}
			require.NoError(t, store.CreateRun(t.Context(), run, record))
			run.State, run.ChangedBy, run.Version, run.ChangedAt = redrive.Cancelled, "rule all", 2, time.Now()
			if n == stops-1 {
				run.State, run.ChangedBy = redrive.Stopped, "redrive"
			}
			require.NoError(t, store.ChangeRun(t.Context(), run, record))
		}
		ctx, stop := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer stop()
		go func() {
			_ = m.Automate(ctx, redrive.Rule{Name: "all", Topic: "orders", After: time.Second, MaxAfter: 2 * time.Hour})
		}()
		for _, want := range []redrive.State{redrive.Stopped, redrive.Cancelled} {
			time.Sleep(110 * time.Minute) // virtual
			synctest.Wait()
			run, err := m.Run(t.Context(), strconv.Itoa(stops-1))
			require.NoError(t, err)
			require.Equal(t, want, run.State)
		}
	})
}

// A rule leaves its run alone once a person has paused it.
func TestRule_PausedByAPerson(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &consumer{}
		m, _ := operated(t, 100, c, redrive.Config{Batch: 5, Publishers: 5, WorkInterval: 10 * time.Second})
		ctx, stop := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer stop()
		go func() { _ = m.Work(ctx) }()
		go func() { _ = m.Automate(ctx, redrive.Rule{Name: "all", Topic: "orders", Rate: 1}) }()
		time.Sleep(90 * time.Second)
		synctest.Wait()
		runs, _, err := m.Runs(t.Context(), redrive.RunFilter{}, dlq.Page{})
		require.NoError(t, err)
		require.Len(t, runs, 1)
		_, err = m.PauseRun(t.Context(), runs[0].ID, ana)
		require.NoError(t, err)
		time.Sleep(time.Minute)
		synctest.Wait()
		sent := c.total()
		time.Sleep(20 * time.Minute)
		synctest.Wait()
		require.Equal(t, sent, c.total())
	})
}

func TestRule_Refuses(t *testing.T) {
	t.Parallel()
	m := operate(t, newStore(t), nil)
	for name, rules := range map[string][]redrive.Rule{
		"no name":       {{Handler: "charge"}},
		"everything":    {{Name: "all"}},
		"two of a name": {{Name: "a", Handler: "x"}, {Name: "a", Handler: "y"}},
		"negative":      {{Name: "a", Handler: "x", After: -1}},
		"out of order":  {{Name: "a", Handler: "x", After: time.Hour, MaxAfter: time.Minute}},
		"reason":        {{Name: "a", Reason: "bored"}},
		"endless":       {{Name: "a", Handler: "x", Redrives: 1000}},
		"share":         {{Name: "a", Handler: "x", Stop: redrive.StopCondition{Share: 2}}},
	} {
		require.ErrorIs(t, m.Automate(t.Context(), rules...), dlq.ErrInvalid, name)
	}
}
