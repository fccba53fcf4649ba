package rabbitmq_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/middleware"
)

// awaitBlocked publishes until the broker reports that an alarm blocks publishing. On a slow machine, earlier publishes
// may fail for other reasons.
func awaitBlocked(t *testing.T, b brokers.Broker) {
	t.Helper()
	await.True(t, func() bool {
		return errors.Is(b.Publisher().Publish("orders", newMessage("during the alarm")), rabbitmq.ErrBlocked)
	}, "the alarm does not stop publishing")
}

// A broker that is short of memory stops reading from connections that publish. Publishing then fails within its
// timeout and names the reason, consuming continues to the last ack, and everything recovers when the alarm clears.
func TestMemoryAlarm(t *testing.T) {
	t.Parallel()
	const n = 500
	r := borrowSecond(t, true)
	url := r.VHost(t)
	b := openBroker(t, url, naming(brokers.Laravel()), params("grid", "false", "prefetch", "10"),
		delays(50*time.Millisecond),
		func(c *brokers.Config) { c.PublishTimeout = time.Second })
	plain := dialPlain(t, url)
	gate := make(chan struct{})
	s := serve(t, b, "orders", middleware.Config{
		MaxAttempts: 3, Backoff: middleware.Constant(50 * time.Millisecond),
	}, func(m *message.Message) error {
		<-gate
		if a, ok := middleware.AttemptFrom(m.Context()); ok && m.UUID == strconv.Itoa(n-1) && a.Number == 1 {
			return errDown // its retry cannot be published until the alarm ends
		}
		return nil
	})
	batch := make([]*message.Message, n)
	for i := range batch {
		batch[i] = message.NewMessage(strconv.Itoa(i), []byte("x"))
	}
	publish(t, url, batch...)

	watermark := func(ctx context.Context, limit string) {
		_, err := r.Ctl(ctx, "set_vm_memory_high_watermark", "absolute", limit)
		require.NoError(t, err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			watermark(context.Background(), "1GB")
		}
	})
	watermark(t.Context(), "1MB")
	awaitBlocked(t, b)
	began := time.Now()
	err := b.Publisher().Publish("orders", newMessage("during the alarm"))
	require.ErrorIs(t, err, rabbitmq.ErrBlocked)
	require.Less(t, time.Since(began), patience)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	require.ErrorIs(t, b.Ping(ctx), rabbitmq.ErrBlocked)
	cancel()

	close(gate)
	ids := map[string]bool{}
	for len(ids) < n {
		ids[s.next().message.UUID] = true
	}
	await.True(t, func() bool { return plain.depth("orders") == 0 }, "acks arrive during the alarm")

	watermark(t.Context(), "1GB")
	await.True(t, func() bool { return b.Publisher().Publish("orders", message.NewMessage("after", nil)) == nil })
	retried := false
	for after := false; !after || !retried; {
		next := s.next()
		after = after || next.message.UUID == "after"
		retried = retried || next.message.UUID == strconv.Itoa(n-1) && next.attempt.Number == 2
	}
	require.Zero(t, plain.depth("orders_dlq"))
}

// During an alarm of the disk, messages that may have killed their process run, one after the other, although they
// cannot be published again. A service that starts then has published already when its last consumer subscribes: that
// used to wait for the end of the alarm, on the connection that RabbitMQ did not read.
func TestDiskAlarm(t *testing.T) {
	t.Parallel()
	const n = 5
	r := borrowSecond(t, true)
	url := r.VHost(t)
	limit := func(ctx context.Context, bytes string) {
		_, err := r.Ctl(ctx, "set_disk_free_limit", bytes)
		require.NoError(t, err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			limit(context.Background(), "50MB")
		}
	})
	open := func() brokers.Broker {
		return openBroker(t, url, naming(brokers.Laravel()), params("grid", "false", "prefetch", "10"),
			func(c *brokers.Config) { c.PublishTimeout, c.Concurrency = time.Second, 4 })
	}
	before := open()
	for _, topic := range []string{"orders", "invoices"} {
		serve(t, before, topic, middleware.Laravel(1), succeeds).stop()
	}
	plain := dialPlain(t, url)
	for i := range n {
		publish(t, url, message.NewMessage(strconv.Itoa(i), []byte("x")))
	}
	for range 2 { // processes end with all of them in flight
		crashing := dialPlain(t, url)
		await.Count(t, n, func() int { return plain.depth("orders") })
		for range n {
			_, ok, err := crashing.ch.Get("orders", false)
			require.NoError(t, err)
			require.True(t, ok)
		}
		require.NoError(t, crashing.ch.Close())
	}
	limit(t.Context(), "90000GB")
	b := open()
	s := serve(t, b, "orders", middleware.Laravel(1), succeeds)
	awaitBlocked(t, b)
	other := serve(t, b, "invoices", middleware.Laravel(1), succeeds)
	ids := map[string]bool{}
	for len(ids) < n {
		ids[s.next().message.UUID] = true
	}
	await.True(t, func() bool { return plain.depth("orders") == 0 }, "acks arrive during the alarm")

	limit(t.Context(), "50MB")
	await.True(t, func() bool { return b.Publisher().Publish("invoices", message.NewMessage("after", nil)) == nil })
	require.Equal(t, "after", other.next().message.UUID)
	require.Zero(t, plain.depth("orders_dlq"))
}
