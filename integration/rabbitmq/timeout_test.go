package rabbitmq_test

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/middleware"
)

// The broker closes the channel of a consumer that holds a message for too long. The message comes again, also while the
// handler still runs; the late ack of the first run, whose delivery tag means another message by now, acks nothing; and
// the messages beside it are handled.
func TestConsumerTimeout(t *testing.T) {
	t.Parallel()
	r := borrowSecond(t, true)
	url := r.VHost(t)
	// Channels read both when they open. RabbitMQ looks for late consumers once a minute, these look every second.
	settings := func(ctx context.Context, timeout, tick string) {
		_, err := r.Ctl(ctx, "eval", "application:set_env(rabbit, consumer_timeout, "+timeout+"), application:set_env(rabbit, channel_tick_interval, "+tick+").")
		require.NoError(t, err)
	}
	settings(t.Context(), "2000", "1000")
	t.Cleanup(func() { settings(context.Background(), "1800000", "60000") })
	b := openBroker(t, url, naming(brokers.Laravel()), params("grid", "false", "prefetch", "4"))
	p := dialPlain(t, url)

	release, finished := make(chan struct{}), make(chan struct{})
	var held atomic.Bool
	s := serve(t, b, "orders", middleware.Laravel(1), func(m *message.Message) error {
		if m.UUID == "slow" && held.CompareAndSwap(false, true) {
			<-release
			close(finished)
		}
		return nil
	}, brokers.WithConcurrency(2))
	require.NoError(t, b.Publisher().Publish("orders", message.NewMessage("slow", nil)))
	require.Equal(t, "slow", s.next().message.UUID)
	again := s.next()
	require.Equal(t, "slow", again.message.UUID)
	require.True(t, again.origin.Redelivered)
	require.Equal(t, 1, again.attempt.Number, "no attempt has failed")

	close(release)
	<-finished
	for i := range 50 {
		require.NoError(t, b.Publisher().Publish("orders", message.NewMessage(strconv.Itoa(i), nil)))
	}
	seen := map[string]int{}
	for len(seen) < 50 {
		seen[s.next().message.UUID]++
	}
	for id, times := range seen {
		require.Equal(t, 1, times, "message %s", id)
	}
	require.Eventually(t, func() bool { return p.depth("orders") == 0 }, patience, 10*time.Millisecond)
	require.Zero(t, p.depth("orders_dlq"))
}
