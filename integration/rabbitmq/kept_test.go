package rabbitmq_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
	"github.com/redrive-go/redrive/middleware"
)

// If an alarm lasts longer than all attempts to publish, delayed messages that must wait further are held and
// handled when they are due, and none is dead-lettered.
func TestAlarm_DelayedMessagesAreHeld(t *testing.T) {
	t.Parallel()
	const n = 15
	r := borrowSecond(t, true)
	url := r.VHost(t)
	b := openBroker(t, url, naming(brokers.Laravel()), func(c *brokers.Config) { c.PublishTimeout = time.Second })
	p := dialPlain(t, url)
	s := serve(t, b, "orders", middleware.Laravel(1), succeeds)
	const delay = 11 * time.Second // 6.4 s in a queue, and then in as many more as necessary
	due := map[string]time.Time{}
	var batch []*message.Message
	for i := range n {
		m := message.NewMessage(strconv.Itoa(i), nil)
		envelope.SetDelay(m, delay)
		due[m.UUID] = time.Now().Add(delay)
		batch = append(batch, m)
	}
	publish(t, url, batch...)
	raiseAlarm(t, r)
	awaitBlocked(t, b)
	seen := map[string]bool{}
	for len(seen) < n {
		next := s.next()
		if at, ours := due[next.message.UUID]; ours {
			require.False(t, next.at.Before(at.Truncate(time.Millisecond)), "early")
			seen[next.message.UUID] = true
		}
	}
	require.ErrorIs(t, b.Publisher().Publish("orders", newMessage("x")), rabbitmq.ErrBlocked, "the alarm has not ended")
	await.True(t, func() bool { return p.depth("orders") == 0 })
	require.Zero(t, p.depth("orders_dlq"))
}

// raiseAlarm sets off a broker's memory alarm until the test ends.
func raiseAlarm(t *testing.T, r *services.Rabbit) {
	t.Helper()
	watermark := func(ctx context.Context, limit string) {
		_, err := r.Ctl(ctx, "set_vm_memory_high_watermark", "absolute", limit)
		require.NoError(t, err)
	}
	t.Cleanup(func() { watermark(context.Background(), "1GB") })
	watermark(t.Context(), "1MB")
}
