package sqlqueue

import (
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
)

// A subscription that closes with unsettled rows leaves their shared leases to expire: they must not be ended, because
// handlers may still be running, nor be remembered for the rest of the process.
func TestLeases_ForgottenWithTheirStream(t *testing.T) {
	t.Parallel()
	l := &leases{held: map[int64]*delivery{}, batches: map[int64]int{}}
	closing, other := &stream{}, &stream{}
	var rows []*delivery
	for id, s := range []*stream{closing, closing, other} {
		batch := int64(7)
		if s == other {
			batch = 8
		}
		rows = append(rows, &delivery{row: claimed{id: int64(id), batch: batch}, stream: s})
	}
	require.Len(t, l.take(rows), 3)

	l.forget(closing)
	require.Equal(t, map[int64]int{8: 1}, l.batches)
	require.Len(t, l.held, 1)
	l.drop(rows[0]) // its handler's transaction acks it late
	require.Equal(t, map[int64]int{8: 1}, l.batches)
	require.Empty(t, l.ending([]leased{{id: 0, batch: 7}}), "the other row of the lease may still be in its handler")
}

// Leases that end without an ack, because their last row was acked in a transaction, rescheduled or nacked, wait for
// the next ack to end them. A worker that never acks otherwise remembers only a bounded number; the rest expires.
func TestLeases_OverAreBounded(t *testing.T) {
	t.Parallel()
	l := &leases{held: map[int64]*delivery{}, batches: map[int64]int{}}
	for id := range int64(3 * maxRows) {
		d := &delivery{row: claimed{id: id + 1, batch: id + 1}}
		l.take([]*delivery{d})
		l.drop(d)
	}
	over := l.ending(nil)
	require.Len(t, over, maxRows)
	require.Contains(t, over, int64(3*maxRows))
	l.ended(over)
	require.Empty(t, l.ending(nil))
}

// A stream whose queue is gone hands out nothing, as driver.Watcher promises, even if it has leased rows left: Close
// returns those.
func TestStream_HandsOutNothingOnceItsQueueIsGone(t *testing.T) {
	t.Parallel()
	s := &stream{reader: newReader(consumerQueue{}, time.Second)}
	s.buffer = []*delivery{{stream: s}}
	close(s.gone)
	_, err := s.Next(t.Context())
	require.ErrorIs(t, err, brokers.ErrUnroutable)
	require.Len(t, s.buffer, 1)
}

// A row that the database does not let go at once, as MariaDB may for a moment after the claim, is released a moment
// later: it used to be delayed until its lease ended.
func TestStream_CloseReleasesALockedRow(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "queue.db")
	synctest.Test(t, func(t *testing.T) {
		opened, err := brokers.Open(t.Context(), "sqlite://"+path)
		require.NoError(t, err)
		defer func() { require.NoError(t, opened.Close()) }()
		b := opened.(*Broker)
		q := driver.Queue{Topic: "jobs", Group: "billing", Concurrency: 1, Params: b.t.cfg.Params}
		require.NoError(t, b.t.store.ensureQueue(t.Context(), q.Topic, q.Group))
		received, err := b.t.Receive(t.Context(), q)
		require.NoError(t, err)
		require.NoError(t, b.Publisher().Publish("jobs", message.NewMessage("1", nil)))
		s := received.(*stream)
		for len(s.buffer) == 0 {
			require.NoError(t, s.fetch(t.Context()))
		}
		exec := func(query string) {
			_, err := b.t.db.ExecContext(t.Context(), query)
			require.NoError(t, err)
		}
		exec(`CREATE TRIGGER locked BEFORE UPDATE ON redrive_queue_messages BEGIN SELECT RAISE(ABORT, 'locked'); END`)
		time.AfterFunc(time.Second, func() { exec("DROP TRIGGER locked") }) // virtual
		require.NoError(t, s.Close(t.Context()))
		due, err := b.t.store.firstDue(t.Context(), s.id, s.id)
		require.NoError(t, err)
		require.LessOrEqual(t, due[s.id], time.Duration(0), "the row waits for the end of its lease")
	})
}
