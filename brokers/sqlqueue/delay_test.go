package sqlqueue_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
)

// The delays of a queue with time to spare: never early, and exact to 100 ms. A busy machine may be late in a round; a
// queue that polls too seldom is late in every one.
func TestDelay_IsExact(t *testing.T) {
	b, err := brokers.Open(t.Context(), fileURL(t, ""))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	received, err := b.Subscriber().Subscribe(t.Context(), "exact")
	require.NoError(t, err)
	const patience, messages = 2 * time.Minute, 5
	var late time.Duration
	round := 0
	for began := time.Now(); time.Since(began) < patience; round++ {
		late = 0
		due := map[string]time.Time{}
		for i := range messages {
			id := fmt.Sprintf("%d-%d", round, i)
			delay := time.Duration(200+150*i) * time.Millisecond
			m := message.NewMessage(id, []byte(id))
			envelope.SetDelay(m, delay)
			due[id] = time.Now().Add(delay)
			require.NoError(t, b.Publisher().Publish("exact", m))
		}
		for range messages {
			m := <-received
			lateness := time.Since(due[m.UUID])
			require.GreaterOrEqual(t, lateness, -time.Millisecond, "early")
			late = max(late, lateness)
			m.Ack()
		}
		if late <= 100*time.Millisecond {
			return
		}
	}
	t.Fatalf("late by %s in the last of %d rounds", late, round)
}
