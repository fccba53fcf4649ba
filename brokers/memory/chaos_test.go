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
			var mu sync.Mutex
			decide := func(m *message.Message) string {
				mu.Lock()
				defer mu.Unlock()
				switch r := random.IntN(10); {
				case r < 5:
					acked[string(m.Payload)] = true
					return "ack"
				case r < 7:
					return "nack"
				case r < 9:
					return "reschedule"
				default:
					return "leave"
				}
			}
			handle := func(m *message.Message) {
				switch decide(m) {
				case "ack":
					m.Ack()
				case "nack":
					m.Nack()
				case "reschedule":
					origin, _ := envelope.OriginFrom(m.Context())
					if err := b.Reschedule(context.Background(), *origin, m.Copy(), time.Second); err != nil {
						t.Error(err)
					}
					m.Ack()
				}
			}

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
