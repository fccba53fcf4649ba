package rabbitmq_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
	"github.com/redrive-go/redrive/middleware"
)

func succeeds(*message.Message) error { return nil }

// Publishers publish to a missing exchange as fast as they can. RabbitMQ closes their channel each time, but retries
// and dead letters are not delayed.
func TestPublish_AMissingExchangeDelaysNoRetry(t *testing.T) {
	t.Parallel()
	const n = 300
	const delay = 20 * time.Millisecond
	url := services.SharedRabbitMQ(t).VHost(t)
	p := dialPlain(t, url)
	settings := []func(*brokers.Config){
		delays(delay), params("grid", "false", "prefetch", "50"),
		func(c *brokers.Config) { c.Concurrency = 8 },
	}
	maker := openBroker(t, url, settings...)
	require.NoError(t, maker.Apply(t.Context(), maker.Plan("orders")))
	b := openBroker(t, url, append(settings, params("declare", "none"))...)
	require.NoError(t, p.ch.ExchangeDelete("redrive", false, false))

	stop := make(chan struct{})
	var loop sync.WaitGroup
	var refused atomic.Int64
	for range 4 {
		loop.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := b.Publisher().Publish("orders", newMessage("x")); errors.Is(err, brokers.ErrUnroutable) {
					refused.Add(1)
				}
			}
		})
	}
	t.Cleanup(sync.OnceFunc(func() { close(stop); loop.Wait() }))
	await.Count(t, 11, func() int { return int(refused.Load()) })
	s := serve(t, b, "orders", middleware.Config{
		MaxAttempts: 2, Backoff: middleware.Constant(delay),
	}, fails)
	for i := range n {
		p.send("", "orders", amqp.Publishing{MessageId: strconv.Itoa(i)})
	}
	for range 2 * n {
		s.next()
	}
	await.Count(t, n, func() int { return p.depth("orders_dlq") })
}

// Everything that an operator deletes while the service runs is declared again when it is next needed, and until then
// Ping reports it as missing.
func TestOperator_DeletesWhileTheServiceRuns(t *testing.T) {
	t.Parallel()
	const delay = 100 * time.Millisecond
	for name, tc := range map[string]struct {
		remove func(p *plain) error
		pings  string // what Ping reports; "" if AMQP cannot detect it
		handle func(*message.Message) error
		queue  string // the queue of the message, if no handler gets it
	}{
		"the exchange": {
			func(p *plain) error { return p.ch.ExchangeDelete("redrive", false, false) },
			`exchange "redrive" is missing`, succeeds, "",
		},
		"the binding": {
			func(p *plain) error { return p.ch.QueueUnbind("orders", "orders", "redrive", nil) },
			"", succeeds, "",
		},
		"the retry queue":             {deletes("orders_retry.100"), "", failsOnce(), ""},
		"the retry queue of the grid": {deletes("orders_retry.50"), "", failsOnce(), ""},
		"the dead letter queue": {
			deletes("orders_dlq"), "",
			func(*message.Message) error { return middleware.Permanent(errDown) }, "orders_dlq",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := services.SharedRabbitMQ(t).VHost(t)
			p := dialPlain(t, url)
			b := openBroker(t, url, delays(delay))
			producer := openBroker(t, url, delays(delay))
			backoff := middleware.Constant(delay)
			if name == "the retry queue of the grid" {
				backoff = middleware.Constant(50 * time.Millisecond)
			}
			s := serve(t, b, "orders", middleware.Config{MaxAttempts: 2, Backoff: backoff}, tc.handle)
			require.NoError(t, b.Ping(t.Context()))
			require.NoError(t, tc.remove(p))
			if tc.pings != "" {
				require.ErrorContains(t, b.Ping(t.Context()), tc.pings)
			}
			for _, publisher := range []brokers.Broker{b, producer} {
				// A publisher in another process waits until the consumer's process has recreated its queue.
				await.True(t, func() bool { return publisher.Publisher().Publish("orders", newMessage("x")) == nil })
				s.next()
				if tc.queue != "" {
					await.True(t, func() bool { return queues(t, url)[tc.queue].Messages == 1 })
					_, err := p.ch.QueuePurge(tc.queue, false)
					require.NoError(t, err)
				}
			}
			await.True(t, func() bool { return b.Ping(t.Context()) == nil })
		})
	}
}

func deletes(queue string) func(*plain) error {
	return func(p *plain) error {
		_, err := p.ch.QueueDelete(queue, false, false, false)
		return err
	}
}

// failsOnce returns a handler that fails the first attempt of each message.
func failsOnce() func(*message.Message) error {
	return func(m *message.Message) error {
		if a, ok := middleware.AttemptFrom(m.Context()); ok && a.Number == 1 {
			return errDown
		}
		return nil
	}
}

// A consumer without named delays needs two queues; those of the grid are declared when they are needed.
func TestSubscribe_DeclaresOnlyNecessaryQueues(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	b := openBroker(t, url)
	s := serve(t, b, "orders", middleware.Config{
		MaxAttempts: 2, Backoff: middleware.Constant(200 * time.Millisecond),
	}, failsOnce())
	require.Len(t, queues(t, url), 2, "%v", queues(t, url))
	findings, err := b.Check(t.Context(), b.Plan("orders"))
	require.NoError(t, err)
	require.Empty(t, findings, "a queue that may be declared later is not missing")
	require.NoError(t, b.Publisher().Publish("orders", newMessage("x")))
	s.schedule(0, 200*time.Millisecond)
	require.Len(t, queues(t, url), 3)
	require.Contains(t, queues(t, url), "orders_retry.200")
	depths, err := b.Depths(t.Context())
	require.NoError(t, err)
	require.Contains(t, depths, brokers.Depth{Topic: "orders", Kind: brokers.DepthRetry})
}

// RabbitMQ accepts headers that a Go client for AMQP cannot decode, such as a table nested 40 deep or one with 9,000
// entries. Such a message is dead-lettered with its payload and the bytes of its headers, and ends no connection; all
// others are handled once.
func TestConsume_HeadersThatCannotBeDecoded(t *testing.T) {
	t.Parallel()
	deep := amqp.Table{}
	for range 40 {
		deep = amqp.Table{"n": deep}
	}
	many := amqp.Table{}
	for i := range 9000 {
		many[strconv.Itoa(i)] = nil
	}
	for name, headers := range map[string]amqp.Table{"nested 40 deep": deep, "9,000 entries": many} {
		for _, kind := range []string{"quorum", "classic"} {
			t.Run(name+" in a "+kind+" queue", func(t *testing.T) {
				t.Parallel()
				const n = 200
				r := services.SharedRabbitMQ(t)
				url := r.VHost(t)
				p := dialPlain(t, url)
				b := openBroker(t, url, naming(brokers.Laravel()), params("grid", "false", "prefetch", "50", "queue-type", kind))
				s := serve(t, b, "orders", middleware.Laravel(2), succeeds, brokers.WithConcurrency(16))
				for i := range n {
					if i == n/2 {
						p.send("", "orders", amqp.Publishing{
							MessageId: "odd", ContentType: "text/plain", Body: []byte("payload"),
							Headers: headers,
						})
					}
					p.send("", "orders", amqp.Publishing{MessageId: strconv.Itoa(i)})
				}
				before := b.Stats().Connections
				seen := map[string]int{}
				for len(seen) < n {
					seen[s.next().message.UUID]++
				}
				for id, times := range seen {
					require.Equal(t, 1, times, id)
				}
				dead := p.next("orders_dlq")
				require.Equal(t, "odd", dead.MessageId)
				require.Equal(t, "payload", string(dead.Body))
				require.Equal(t, "text/plain", dead.ContentType)
				require.Equal(t, "malformed", dead.Headers["x-dead-letter-reason"])
				require.NotEmpty(t, dead.Headers["x-undecoded-headers"])
				await.None(t, func() int { return p.depth("orders") })
				require.Empty(t, s.runs)
				require.Equal(t, before, b.Stats().Connections)
				require.Zero(t, b.Stats().AcksFailed, "no connection was lost")
			})
		}
	}
}

// While the broker reads nothing from publishers, Publish and Close respect their timeouts, however much there is to
// write.
func TestAlarm_PublishAndCloseRespectTheirTimeouts(t *testing.T) {
	t.Parallel()
	const timeout = 3 * time.Second
	r := borrowSecond(t, true)
	url := r.VHost(t)
	b := openBroker(t, url, naming(brokers.Laravel()), params("grid", "false"),
		func(c *brokers.Config) { c.PublishTimeout = timeout })
	p := dialPlain(t, url)
	_, err := p.ch.QueueDeclare("orders", true, false, false, false, nil)
	require.NoError(t, err)
	await.True(t, func() bool { return b.Publisher().Publish("orders", newMessage("before")) == nil })
	watermark := func(ctx context.Context, limit string) {
		_, err := r.Ctl(ctx, "set_vm_memory_high_watermark", "absolute", limit)
		require.NoError(t, err)
	}
	t.Cleanup(func() { watermark(context.Background(), "1GB") })
	watermark(t.Context(), "1MB")
	// Another broker detects the alarm, because a broker that knows of it no longer fills its sockets.
	awaitBlocked(t, openBroker(t, url, naming(brokers.Laravel()), params("grid", "false"),
		func(c *brokers.Config) { c.PublishTimeout = timeout }))
	payload := make([]byte, 1<<20)
	var group sync.WaitGroup
	for range 32 { // more than the socket buffers can take
		group.Go(func() {
			began := time.Now()
			err := b.Publisher().Publish("orders", message.NewMessage("m", payload))
			if took := time.Since(began); err == nil || took > patience {
				t.Errorf("publish: %v after %s", err, took)
			}
		})
	}
	group.Wait()
	began := time.Now()
	require.NoError(t, b.Close())
	require.Less(t, time.Since(began), patience)
}

// A queue is deleted and recreated at once, as by a script that changes its arguments. RabbitMQ 3.10 attributes a
// channel that consumed from the old queue to the new one, and drops the messages that the new queue sends to it.
func TestOperator_RecreatesAQueue(t *testing.T) {
	t.Parallel()
	for name, server := range map[string]func(testing.TB) *services.Rabbit{
		"3": services.SharedRabbitMQ, "4": services.SharedRabbitMQ4,
	} {
		for _, kind := range []string{"quorum", "classic"} {
			t.Run(kind+" on RabbitMQ "+name, func(t *testing.T) {
				t.Parallel()
				url := server(t).VHost(t)
				b := openBroker(t, url, naming(brokers.Laravel()), params("grid", "false", "queue-type", kind))
				s := serve(t, b, "orders", middleware.Laravel(2), succeeds)
				p := dialPlain(t, url)
				p.send("", "orders", amqp.Publishing{MessageId: "before"})
				require.Equal(t, "before", s.next().message.UUID)
				_, err := p.ch.QueueDelete("orders", false, false, false)
				require.NoError(t, err)
				require.NoError(t, b.Apply(t.Context(), b.Plan("orders")))
				p.send("", "orders", amqp.Publishing{MessageId: "after"})
				require.Equal(t, "after", s.nextWithin(2*patience).message.UUID)
			})
		}
	}
}
