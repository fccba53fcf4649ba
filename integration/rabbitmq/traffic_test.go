package rabbitmq_test

import (
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
	"github.com/redrive-go/redrive/middleware"
)

// The broker is killed twice while messages are published, fail, wait and are retried: every message that Publish
// confirmed is handled, and a caller whose publication failed gets an error.
func TestKill_UnderTraffic(t *testing.T) {
	t.Parallel()
	const kills, between, delay = 2, 1500, 200 * time.Millisecond
	r := services.RabbitMQ(t, services.RabbitConfig{DeadLetterConfirmTimeout: 2 * time.Second})
	b := openBroker(t, r.URL, delays(delay), params("grid", "false", "prefetch", "50"), func(c *brokers.Config) {
		c.Concurrency = 16
		c.PublishTimeout = 3 * time.Second // shorter than the outage
	})
	handled := newLedger()
	serve(t, b, "orders", middleware.Config{
		MaxAttempts: 10, Backoff: middleware.Constant(delay),
	}, func(m *message.Message) error {
		i, err := strconv.Atoi(m.UUID)
		if err != nil {
			return middleware.Permanent(err)
		}
		if a, _ := middleware.AttemptFrom(m.Context()); i%5 == 0 && a.Number < 3 {
			return errDown
		}
		handled.note(m.UUID)
		time.Sleep(2 * time.Millisecond) // real time: the work, so that the traffic lasts
		return nil
	})
	require.NoError(t, r.Settle(t.Context()))

	stop := make(chan struct{})
	var producers sync.WaitGroup
	var mu sync.Mutex
	var confirmed []string
	next, failures := 0, 0
	for range 4 {
		producers.Go(func() {
			pub := b.Publisher()
			for {
				select {
				case <-stop:
					return
				default:
				}
				mu.Lock()
				id := strconv.Itoa(next)
				next++
				mu.Unlock()
				err := pub.Publish("orders", message.NewMessage(id, []byte("x")))
				mu.Lock()
				if err == nil {
					confirmed = append(confirmed, id)
				} else {
					failures++
				}
				mu.Unlock()
			}
		})
	}
	for range kills {
		have, _ := handled.count()
		handled.wait(t, have+between)
		require.NoError(t, r.Kill())
		require.NoError(t, r.Start(t.Context()))
	}
	have, _ := handled.count()
	handled.wait(t, have+between)
	close(stop)
	producers.Wait()

	missing := func() (ids []string) {
		handled.mu.Lock()
		defer handled.mu.Unlock()
		for _, id := range confirmed {
			if handled.entries[id] == 0 {
				ids = append(ids, id)
			}
		}
		return ids
	}
	await.None(t, func() int { return len(missing()) }, "confirmed messages are not handled")
	_, again := handled.count()
	t.Logf("%d confirmed, %d publishes failed, %d kills: 0 lost, %d handled again", len(confirmed), failures, kills, again)
	require.Positive(t, failures, "no publication failed in an outage, so this test proves nothing")
	require.Less(t, again, len(confirmed)/2)
}
