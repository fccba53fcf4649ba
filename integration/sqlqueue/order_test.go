package sqlqueue_test

import (
	"strconv"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
)

// A claim that comes to the end of its queue must not hold what comes behind it in the index, the first message of the
// next queue: the claims of that one would skip it, and its messages would come out of order.
func TestOrder_BesideABusyQueue(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, url string) {
		t.Helper()
		queue := openQueue(t, with(url, "x-poll=2ms"))
		busy, err := queue.Subscriber().Subscribe(t.Context(), "busy") // its rows stand before the others in the index
		require.NoError(t, err)
		ordered, err := queue.Subscriber().Subscribe(t.Context(), "ordered")
		require.NoError(t, err)
		done := make(chan struct{})
		var others sync.WaitGroup
		defer others.Wait()
		defer close(done)
		others.Go(func() {
			for {
				select {
				case m := <-busy:
					m.Ack()
				case <-done:
					return
				}
			}
		})
		others.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if err := queue.Publisher().Publish("busy", message.NewMessage("noise", payload)); err != nil {
					return
				}
			}
		})

		const n = 400
		others.Go(func() {
			for i := range n {
				if err := queue.Publisher().Publish("ordered", message.NewMessage(strconv.Itoa(i), payload)); err != nil {
					return
				}
			}
		})
		var sent, came []string // compared at the end: where the others came tells why
		for i := range n {
			m := receive(t, ordered)
			sent, came = append(sent, strconv.Itoa(i)), append(came, m.UUID)
			m.Ack()
		}
		require.Equal(t, sent, came)
	})
}
