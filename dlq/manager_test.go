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
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/envelope"
)

// operate returns a Manager of a store.
func operate(t testing.TB, store dlq.Store, r dlq.Redriver) *dlq.Manager {
	t.Helper()
	m, err := dlq.NewManager(dlq.ManagerConfig{Store: store, Redriver: r})
	require.NoError(t, err)
	return m
}

// outbox is a Redriver that keeps its messages, or fails.
type outbox struct {
	mu   sync.Mutex
	sent []*message.Message
	to   []envelope.Origin
	fail error
}

func (o *outbox) Reschedule(_ context.Context, origin envelope.Origin, m *message.Message, delay time.Duration) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.fail != nil {
		return o.fail
	}
	if delay != 0 {
		return fmt.Errorf("redrive asked for a delay of %s", delay)
	}
	o.sent, o.to = append(o.sent, m), append(o.to, origin)
	return nil
}

func stored(t *testing.T, s dlq.Store, d *envelope.DeadLetter) int64 {
	t.Helper()
	receipts, err := s.Put(t.Context(), dlq.NewEntry(d))
	require.NoError(t, err)
	return receipts[0].ID
}

var ana = dlq.By{Actor: "ana", Note: "the bank is back"}

func TestManager_Redrive(t *testing.T) {
	t.Parallel()
	store, out := newStore(t), &outbox{}
	m := operate(t, store, out)
	d := death(1)
	failed := envelope.RecordFailure(d.Message,
		envelope.Failure{Err: d.Err, Class: d.Class, At: d.At, Retry: 4, Reason: d.Reason})
	failed.Metadata[envelope.KeyOriginalDelay] = "10000"
	failed.Metadata[envelope.KeyCorrelationID] = "c-1"
	d.Message = failed
	d.Origin.RoutingKey, d.Origin.Key = "orders.created", []byte("k")
	id := stored(t, store, d)

	e, err := m.Redrive(t.Context(), id, ana)
	require.NoError(t, err)
	require.Equal(t, dlq.Retrying, e.Status)
	require.Equal(t, 1, e.RedriveCount)
	require.Greater(t, time.Until(e.LeaseUntil), 50*time.Minute, "the outcome may take its time")

	require.Len(t, out.sent, 1)
	sent := out.sent[0]
	require.Equal(t, d.Origin, out.to[0])
	require.Equal(t, string(d.Message.Payload), string(sent.Payload))
	for key, want := range map[string]string{
		envelope.KeyRedriveID: driver.FormatID(id), envelope.KeyRedriveCount: "1", envelope.KeyMessageID: "message-1",
		"tenant":                  "acme",
		envelope.KeyOriginalDelay: "10000", envelope.KeyCorrelationID: "c-1",
	} {
		require.Equal(t, want, sent.Metadata[key], key)
	}
	control, err := envelope.ReadControl(sent)
	require.NoError(t, err)
	require.Zero(t, control.RetryCount, "its retries start over")
	require.NotContains(t, sent.Metadata, envelope.KeyDeadLetterReason)
	require.NotContains(t, sent.Metadata, envelope.KeyRedriveRun)

	// A second click.
	_, err = m.Redrive(t.Context(), id, dlq.By{Actor: "bob"})
	require.ErrorIs(t, err, dlq.ErrConflict)
	require.ErrorContains(t, err, "by ana")
	require.Len(t, out.sent, 1)
}

// The death of a redrive that becomes known after an operator has discarded its entry is the consumer's in the audit
// log, and the discard remains the entry's last change.
func TestManager_LateDeath(t *testing.T) {
	t.Parallel()
	store, out := newStore(t), &outbox{}
	m := operate(t, store, out)
	id := stored(t, store, death(1))
	_, err := m.Redrive(t.Context(), id, ana)
	require.NoError(t, err)
	_, err = m.Release(t.Context(), id, ana)
	require.NoError(t, err)
	closed, err := m.Discard(t.Context(), id, ana)
	require.NoError(t, err)
	late := death(1)
	late.Message = out.sent[0]
	require.Equal(t, id, stored(t, store, late))
	e, err := m.Get(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, []any{dlq.Discarded, 1, "ana"}, []any{e.Status, e.DeathRedrive, e.ChangedBy})
	require.Equal(t, closed.ChangedAt, e.ChangedAt)
	records, err := m.Audit(t.Context(), id)
	require.NoError(t, err)
	last := records[len(records)-1]
	require.Equal(t, []any{driver.ActionDie, "consumer billing"}, []any{last.Action, last.Actor})
}

// A structured message is redriven with its body's counter at 0 and every other byte unchanged.
func TestManager_RedriveStructured(t *testing.T) {
	t.Parallel()
	store, out := newStore(t), &outbox{}
	m := operate(t, store, out)
	d := death(1)
	d.Message = message.NewMessage("u", []byte(
		`{"message_id":"m-1","timestamp":"2026-02-28T22:53:42+00:00","version":"1.0","source":"shop",`+
			`"queue":"orders","data":{"n": `+
			`9007199254740993},"metadata":{},"error":{"message":"x","code":"500","trace":""},"retry_count":4}`))
	id := stored(t, store, d)
	_, err := m.Redrive(t.Context(), id, ana)
	require.NoError(t, err)
	require.Contains(t, string(out.sent[0].Payload), `"retry_count":0`)
	require.Contains(t, string(out.sent[0].Payload), `{"n": 9007199254740993}`)
	e, err := m.Get(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, "m-1", e.EventID)
	require.Equal(t, string(d.Message.Payload), string(e.Body.Payload), "the store keeps what died")
}

// Two operators, many clicks, two processes: the message is sent once.
func TestManager_RedriveOnce(t *testing.T) {
	t.Parallel()
	store, out := newStore(t), &outbox{}
	id := stored(t, store, death(1))
	var wg sync.WaitGroup
	errs := make([]error, 16)
	for i := range errs {
		wg.Go(func() {
			_, errs[i] = operate(t, store, out).Redrive(t.Context(), id, dlq.By{Actor: fmt.Sprintf("operator %d", i)})
		})
	}
	wg.Wait()
	require.Len(t, out.sent, 1)
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
			continue
		}
		require.ErrorIs(t, err, dlq.ErrConflict)
	}
	require.Equal(t, 1, won)
}

// An entry that cannot be published is PENDING again, with the reason in the audit log.
func TestManager_PublishFails(t *testing.T) {
	t.Parallel()
	store, out := newStore(t), &outbox{fail: errors.New("broker is down")}
	m := operate(t, store, out)
	id := stored(t, store, death(1))
	_, err := m.Redrive(t.Context(), id, ana)
	require.ErrorIs(t, err, out.fail)
	e, err := m.Get(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, dlq.Pending, e.Status)
	require.Zero(t, e.RedriveCount)
	records, err := m.Audit(t.Context(), id)
	require.NoError(t, err)
	require.Len(t, records, 2)
	require.Equal(t, driver.ActionRelease, records[1].Action)
	require.Contains(t, records[1].Note, "broker is down")
	out.fail = nil
	_, err = m.Redrive(t.Context(), id, ana)
	require.NoError(t, err)
}

// Nor does it change whether an entry waits for a rule or for a person, whatever its budget would say.
func TestManager_PublishFailsAsBefore(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		redrives int
		before   []driver.Action
		want     dlq.Status
	}{
		"restored": {dlq.DefaultRedriveBudget, []driver.Action{driver.ActionRestore}, dlq.Pending},
		"parked":   {0, []driver.Action{driver.ActionPark}, dlq.Parked},
		"parked, after a claim by a clock ahead": {
			0, []driver.Action{driver.ActionRedrive, driver.ActionRelease, driver.ActionPark}, dlq.Parked,
		},
		"parked, before a claim by a clock ahead": {
			0, []driver.Action{driver.ActionPark, driver.ActionRedrive, driver.ActionRelease}, dlq.Pending,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := newStore(t)
			e := dlq.NewEntry(death(1))
			if e.RedriveCount = test.redrives; test.redrives > 0 {
				e.Status = dlq.Parked
			}
			receipts, err := store.Put(t.Context(), e)
			require.NoError(t, err)
			id := receipts[0].ID
			for _, action := range test.before {
				results, err := store.Change(t.Context(), driver.Change{
					Action: action, IDs: []int64{id}, Actor: "ana", At: time.Now().Add(time.Hour), Lease: time.Hour,
				})
				require.NoError(t, err)
				require.NoError(t, results[0].Err)
			}
			m := operate(t, store, &outbox{fail: errors.New("broker is down")})
			_, err = m.Redrive(t.Context(), id, ana)
			require.ErrorIs(t, err, dlq.ErrPublish)
			got, err := m.Get(t.Context(), id)
			require.NoError(t, err)
			require.Equal(t, test.want, got.Status)
			require.Equal(t, test.redrives, got.RedriveCount)
		})
	}
}

// The caller disconnects while the message is published: the message that the broker gets counts as sent. If the entry
// were PENDING, it would be sent a second time.
func TestManager_CallerDisconnects(t *testing.T) {
	t.Parallel()
	store := newStore(t)
	ctx, cancel := context.WithCancel(t.Context())
	m := operate(t, store, dlq.RedriverFunc(
		func(ctx context.Context, _ envelope.Origin, _ *message.Message, _ time.Duration) error {
			cancel()
			_, bounded := ctx.Deadline()
			require.True(t, bounded, "a broker that hangs is not waited for forever")
			return ctx.Err() // otherwise the broker confirms it
		}))
	id := stored(t, store, death(1))
	sent, err := m.Redrive(ctx, id, ana)
	require.NoError(t, err)
	require.Equal(t, dlq.Retrying, sent.Status)
	require.Equal(t, int64(1), count(t, store, dlq.Filter{Statuses: []dlq.Status{dlq.Retrying}}))
}

// The process dies between claim and publish: after the lease the entry can be redriven, by anyone, and not before.
func TestManager_CrashBetweenClaimAndPublish(t *testing.T) {
	t.Parallel()
	store, out := newStore(t), &outbox{}
	id := stored(t, store, death(1))
	const lease = 60 * time.Millisecond
	claimed := time.Now()
	_, err := store.Change(t.Context(), driver.Change{
		Action: driver.ActionRedrive, IDs: []int64{id}, Actor: "who died", At: claimed, Lease: lease,
	})
	require.NoError(t, err)
	m := operate(t, store, out)
	eventually(t, "the lease runs out", func() bool {
		_, err := m.Redrive(t.Context(), id, ana)
		if err != nil {
			require.ErrorIs(t, err, dlq.ErrConflict)
		}
		return err == nil
	})
	require.GreaterOrEqual(t, time.Since(claimed), lease)
	require.Len(t, out.sent, 1)
	require.Equal(t, "2", out.sent[0].Metadata[envelope.KeyRedriveCount])
}

// An outcome that is faster than the record of the publish is kept.
func TestManager_OutcomeBeforeTheRecord(t *testing.T) {
	t.Parallel()
	store := newStore(t)
	l, _ := newLetters(t, &faultyStore{Store: store}, t.TempDir())
	m := l.Manager(dlq.RedriverFunc(func(ctx context.Context, _ envelope.Origin, sent *message.Message,
		_ time.Duration,
	) error {
		return l.Redriven(ctx, envelope.RedrivenBy(sent, envelope.Origin{}, time.Now()))
	}))
	id := stored(t, store, death(1))
	_, err := m.Redrive(t.Context(), id, ana)
	require.NoError(t, err)
	e, err := m.Get(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, dlq.Resolved, e.Status)
	require.Equal(t, "redrive", e.ResolvedBy)
}

func TestManager_ResolveDiscardRestore(t *testing.T) {
	t.Parallel()
	store := newStore(t)
	m := operate(t, store, nil)
	id := stored(t, store, death(1))
	e, err := m.Resolve(t.Context(), id, ana)
	require.NoError(t, err)
	require.Equal(t, []any{dlq.Resolved, "ana"}, []any{e.Status, e.ResolvedBy})
	_, err = m.Discard(t.Context(), id, dlq.By{Actor: "bob"})
	require.ErrorContains(t, err, "cannot discard: it has been RESOLVED")
	require.ErrorContains(t, err, "by ana")
	_, err = m.Restore(t.Context(), id, dlq.By{Actor: "bob", Version: 1})
	require.ErrorIs(t, err, dlq.ErrConflict)
	e, err = m.Restore(t.Context(), id, dlq.By{Actor: "bob", Version: e.Version})
	require.NoError(t, err)
	require.Equal(t, dlq.Pending, e.Status)
	e, err = m.Discard(t.Context(), id, ana)
	require.NoError(t, err)
	require.Equal(t, dlq.Discarded, e.Status)

	_, err = m.Redrive(t.Context(), id, ana)
	require.ErrorIs(t, err, dlq.ErrInvalid, "it has nothing to publish with")
	_, err = m.Resolve(t.Context(), id, dlq.By{})
	require.ErrorIs(t, err, dlq.ErrInvalid, "no name")
	_, err = m.Get(t.Context(), 4711)
	require.ErrorIs(t, err, dlq.ErrNotFound)
	records, err := m.Audit(t.Context(), id)
	require.NoError(t, err)
	require.Len(t, records, 3)
	require.Equal(t, "the bank is back", records[0].Note)
}

// More than fits into one transaction.
func TestManager_Purge(t *testing.T) {
	t.Parallel()
	store := newStore(t)
	m := operate(t, store, nil)
	for n := range 25 {
		_, err := m.Resolve(t.Context(), stored(t, store, death(n)), ana)
		require.NoError(t, err)
	}
	n, err := m.Purge(t.Context(), dlq.Purge{ClosedBefore: time.Now().Add(time.Minute), Limit: 10, Actor: "cron"})
	require.NoError(t, err)
	require.Equal(t, 25, n)
	require.Zero(t, count(t, store, dlq.Filter{}))
	_, err = m.Purge(t.Context(), dlq.Purge{Actor: "cron"})
	require.ErrorIs(t, err, dlq.ErrInvalid)
}

func TestNewManager_BadConfig(t *testing.T) {
	t.Parallel()
	_, err := dlq.NewManager(dlq.ManagerConfig{PublishTimeout: -1})
	require.ErrorIs(t, err, dlq.ErrInvalid)
	require.ErrorContains(t, err, "store")
	require.ErrorContains(t, err, "publish timeout")
}
