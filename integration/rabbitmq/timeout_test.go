package rabbitmq_test

import (
	"context"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/internal/logbuffer"
	"github.com/redrive-go/redrive/middleware"
)

// The broker closes the channel of a consumer that holds a message for too long, and again when the message was
// redelivered and waits for its handler. No second handler is started while the first one still runs, whose late result
// counts; its ack does not ack the other message that has its delivery tag now; and the other messages are handled.
func TestConsumerTimeout(t *testing.T) {
	t.Parallel()
	r := borrowSecond(t, true)
	url := r.VHost(t)
	// Channels read both settings when they are opened. RabbitMQ checks for late consumers once a minute, this one every
	// second.
	settings := func(ctx context.Context, timeout, tick string) {
		_, err := r.Ctl(ctx, "eval", "application:set_env(rabbit, consumer_timeout, "+timeout+
			"), application:set_env(rabbit, channel_tick_interval, "+tick+").")
		require.NoError(t, err)
	}
	settings(t.Context(), "2000", "1000")
	t.Cleanup(func() { settings(context.Background(), "1800000", "60000") })
	log := &logbuffer.Buffer{}
	b := openBroker(t, url, naming(brokers.Laravel()), params("grid", "false", "prefetch", "4"),
		func(c *brokers.Config) { c.Logger = slog.New(slog.NewTextHandler(log, nil)) })
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
	const closings = 3
	for n := range closings {
		if n == closings-1 { // the next channel gets messages that no channel holds, whatever delays this process
			settings(t.Context(), "1800000", "60000")
		}
		// The moment without a consumer would be missed on a busy machine.
		closed := func() bool { return strings.Count(log.String(), "the session of a subscription has ended") > n }
		await.True(t, closed, "the channel was closed")
		await.True(t, func() bool { return p.consumers("orders") == 1 })
	}
	require.Empty(t, s.runs, "the handler runs once")

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
	await.True(t, func() bool { return p.depth("orders") == 0 })
	require.Zero(t, p.depth("orders_dlq"))
}
