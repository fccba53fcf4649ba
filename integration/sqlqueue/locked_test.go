package sqlqueue_test

import (
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/internal/sqldb"
)

// An operator's transaction keeps the row of one message locked while that message and its neighbours are handled and
// acked, and the leases of slow ones are renewed: the neighbours are handled once and deleted, and their leases are
// renewed many times.
func TestLockedRow_DelaysOnlyItself(t *testing.T) {
	t.Parallel()
	onEach(t, lockedRowDelaysOnlyItself)
}

func lockedRowDelaysOnlyItself(t *testing.T, url string) {
	t.Helper()
	const n = 16
	queue, db := openQueue(t, with(url, longLease+"&x-poll=20ms")), openDB(t, url)
	var mu sync.Mutex
	runs, quick, slow := map[string]int{}, make(chan struct{}), make(chan struct{})
	messages, err := queue.Subscriber(concurrently(n)).Subscribe(t.Context(), "orders")
	require.NoError(t, err)
	batch := make([]*message.Message, n)
	for i := range batch {
		batch[i] = message.NewMessage(strconv.Itoa(i), []byte("x"))
	}
	require.NoError(t, queue.Publisher().Publish("orders", batch...))
	var handlers sync.WaitGroup
	begun := make(chan struct{}, 10*n)
	handlers.Go(func() {
		for m := range messages {
			mu.Lock()
			runs[m.UUID]++
			mu.Unlock()
			begun <- struct{}{}
			handlers.Go(func() {
				if m.UUID >= "5" { // two halves, and the locked one in the first
					<-slow
				} else {
					<-quick
				}
				m.Ack()
			})
		}
	})
	for range n {
		<-begun
	}
	unlock := lockRow(t, db, "0")
	t.Cleanup(unlock)

	close(quick)
	left := func() int {
		return count(t, db, "SELECT count(*) FROM redrive_queue_messages")
	}
	slows := 5 // 5 to 9; "10" ... "15" sort before "5"
	await.True(t, func() bool { return left() == slows+1 }, "the neighbours are acked")
	dialect, _, _ := strings.Cut(url, ":")
	now := "SELECT " + sqldb.Dialect(dialect).Now() // by which leases end
	renewed := count(t, db, now) + int(twoLongLeases.Microseconds())
	await.True(t, func() bool { return count(t, db, now) > renewed }, "the leases of the slow ones are renewed")
	close(slow)
	await.True(t, func() bool { return left() == 1 }, "the slow neighbours are acked")
	unlock()
	await.True(t, func() bool { return left() == 0 }, "no message is left")
	require.NoError(t, queue.Close())
	handlers.Wait()
	delete(runs, "0") // its own lease could not be renewed
	for uuid, n := range runs {
		require.Equal(t, 1, n, uuid)
	}
	require.Len(t, runs, n-1)
}

// A worker passes rows that another session has locked, and leases no more of those behind than it has room for.
func TestLockedRows_ArePassed(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, url string) {
		t.Helper()
		const n, locked = 100, 20
		producer, db := openQueue(t, url), openDB(t, url)
		require.NoError(t, producer.Subscriber().(message.SubscribeInitializer).SubscribeInitialize("jobs"))
		list := batch(n)
		require.NoError(t, producer.Publisher().Publish("jobs", list...))
		// On PostgreSQL, claims look for locks only of rows that have a lease.
		_, err := db.ExecContext(t.Context(), "UPDATE redrive_queue_messages SET lease = 0")
		require.NoError(t, err)
		var unlock []func()
		for _, m := range list[:locked] {
			unlock = append(unlock, lockRow(t, db, m.UUID))
			t.Cleanup(unlock[len(unlock)-1])
		}
		messages, err := openQueue(t, with(url, "x-prefetch=0")).Subscriber(concurrently(1)).Subscribe(t.Context(), "jobs")
		require.NoError(t, err)
		for i := range n {
			if i == n-locked {
				for _, release := range unlock {
					release()
				}
			}
			m := receive(t, messages)
			await.True(t, func() bool { // the last ack may not be stored yet
				return count(t, db, "SELECT count(*) FROM redrive_queue_messages WHERE lease > 0") <= 1
			})
			m.Ack()
		}
	})
}
