package sqlqueue_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/await"
)

// The delays of a queue with time to spare, of what another process publishes: never early, and exact to 100 ms. A busy
// machine may be late in a round; a queue that polls too seldom is late in every one. TestPolling_IsExactTo100ms of the
// package shows it in virtual time.
func TestDelay_IsExact(t *testing.T) { //nolint:tparallel // the other tests wait for it
	onEach(t, func(t *testing.T, url string) {
		t.Helper()
		b, producer := openQueue(t, url), openQueue(t, url)
		received, err := b.Subscriber().Subscribe(t.Context(), "exact")
		require.NoError(t, err)
		const messages = 5
		var late time.Duration
		round := 0
		for began := time.Now(); time.Since(began) < await.Patience; round++ {
			late = 0
			// the delay begins between the call of Publish and its return
			due, stored := map[string]time.Time{}, map[string]time.Time{}
			for i := range messages {
				id := fmt.Sprintf("%d-%d", round, i)
				delay := time.Duration(200+150*i) * time.Millisecond
				m := message.NewMessage(id, []byte(id))
				envelope.SetDelay(m, delay)
				due[id] = time.Now().Add(delay)
				require.NoError(t, producer.Publisher().Publish("exact", m))
				stored[id] = time.Now().Add(delay)
			}
			for range messages {
				m := <-received
				require.GreaterOrEqual(t, time.Since(due[m.UUID]), -time.Millisecond, "early")
				late = max(late, time.Since(stored[m.UUID]))
				m.Ack()
			}
			if late <= 100*time.Millisecond {
				return
			}
		}
		t.Fatalf("late by %s in the last of %d rounds", late, round)
	})
}
