package memory_test

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/envelope"
)

// Subscribers start, stop and are cut off while messages are acked, nacked, rescheduled and ignored. In the end every
// message is acked, and the queue is empty.
func TestNothingIsLost_WhenSubscribersComeAndGo(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			b := newBroker(t, brokers.Config{DrainTimeout: 50 * time.Millisecond})

			const n = 200
			acked := map[string]bool{}
			handle := chaotic(t, b, random, acked)
			for i := range n {
				require.NoError(t, b.Publisher().Publish("orders", message.NewMessage(strconv.Itoa(i), []byte(strconv.Itoa(i)))))
			}
			for round := 0; ; round++ {
				sub := b.Subscriber(brokers.WithConcurrency(1 + round%5))
				in, err := sub.Subscribe(t.Context(), "orders")
				require.NoError(t, err)
				var handlers sync.WaitGroup
				handlers.Go(func() {
					for m := range in {
						handlers.Go(func() { handle(m) })
					}
				})
				time.Sleep(time.Duration(round%7) * time.Second)
				synctest.Wait()
				require.NoError(t, sub.Close())
				handlers.Wait()
				if b.Depth("orders", "") == (memory.Depth{}) {
					break
				}
				require.Less(t, round, 10_000, "%+v", b.Depth("orders", ""))
			}
			require.Len(t, acked, n)
		})
	}
}

// chaotic returns a handler that acks, nacks, reschedules and ignores messages at random.
func chaotic(t *testing.T, b *memory.Broker, random *rand.Rand, acked map[string]bool) func(*message.Message) {
	t.Helper()
	var mu sync.Mutex
	return func(m *message.Message) {
		mu.Lock()
		choice := random.IntN(10)
		if choice < 5 {
			acked[string(m.Payload)] = true
		}
		mu.Unlock()
		switch {
		case choice < 5:
			m.Ack()
		case choice < 7:
			m.Nack()
		case choice < 9:
			origin, _ := envelope.OriginFrom(m.Context())
			if err := b.Reschedule(context.Background(), *origin, m.Copy(), time.Second); err != nil {
				t.Error(err)
			}
			m.Ack()
		}
	}
}
