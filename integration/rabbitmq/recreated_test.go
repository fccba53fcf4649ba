package rabbitmq_test

import (
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
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

// logs collects what a broker logs.
type logs struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logs) contains(text string) bool { return l.count(text) > 0 }

func (l *logs) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}

// An operator recreates a queue, and its dead letter queue, with other arguments while the service runs. Its consumer
// used to end for good. Now it
// reads the queue that exists, and logs what differs. A service that starts then refuses, as before. When the operator
// deletes the queue again, the consumer declares it as planned. Consumers of other queues notice nothing.
func TestOperator_RecreatesAQueueWithOtherArguments(t *testing.T) {
	t.Parallel()
	for name, server := range map[string]func(testing.TB) *services.Rabbit{
		"3": services.SharedRabbitMQ, "4": services.SharedRabbitMQ4,
	} {
		t.Run("RabbitMQ "+name, func(t *testing.T) {
			t.Parallel()
			url, classic := server(t).VHost(t), amqp.Table{"x-queue-type": "classic"}
			log := &logs{}
			b := openBroker(t, url, naming(brokers.Laravel()), params("grid", "false"), func(c *brokers.Config) {
				c.Logger = slog.New(slog.NewTextHandler(log, nil))
			})
			s := serve(t, b, "orders", middleware.Laravel(2), succeeds)
			other := serve(t, b, "invoices", middleware.Laravel(2), succeeds)
			p := dialPlain(t, url)
			await.True(t, func() bool { // the consumer may declare its queues first
				for _, queue := range []string{"orders_dlq", "orders"} {
					_, err := p.ch.QueueDelete(queue, false, false, false)
					require.NoError(t, err)
					if _, err = p.ch.QueueDeclare(queue, true, false, false, false, classic); err != nil {
						p = dialPlain(t, url)
						return false
					}
				}
				return true
			})
			p.send("", "invoices", amqp.Publishing{MessageId: "other"})
			require.Equal(t, "other", other.next().message.UUID)
			p.send("", "orders", amqp.Publishing{MessageId: "after"})
			require.Equal(t, "after", s.nextWithin(2*patience).message.UUID)
			await.True(t, func() bool { return log.contains("not as it would be declared") && log.contains("exists with x-") })

			late := openBroker(t, url, naming(brokers.Laravel()), params("grid", "false"))
			_, err := late.Subscriber().Subscribe(t.Context(), "orders")
			require.ErrorContains(t, err, "exists with x-")

			for _, queue := range []string{"orders_dlq", "orders"} {
				_, err = p.ch.QueueDelete(queue, false, false, false)
				require.NoError(t, err)
			}
			await.True(t, func() bool {
				return late.Publisher().Publish("orders", message.NewMessage("mended", nil)) == nil
			}, "it is declared again")
			require.Equal(t, "mended", s.nextWithin(2*patience).message.UUID)
			require.NoError(t, late.Apply(t.Context(), late.Plan("orders")), "as planned")
		})
	}
}

// An operator recreates a queue with a low delivery limit. RabbitMQ 3 does not notify its consumer, which finds out
// when its connection is lost: the next loss but one would be the end of the messages, so they are published again.
func TestOperator_RecreatesAQueueWithALowLimit(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	proxy := services.NewProxy(t, url)
	b := openBroker(t, proxy.URL(t, url), naming(brokers.Laravel()), params("grid", "false", "prefetch", "10"))
	gate := make(chan struct{})
	s := serve(t, b, "orders", middleware.Laravel(1), func(*message.Message) error { <-gate; return nil })
	p, limit := dialPlain(t, url), amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int32(2)}
	await.True(t, func() bool { // the consumer may declare its queues first
		_, err := p.ch.QueueDelete("orders", false, false, false)
		require.NoError(t, err)
		if _, err = p.ch.QueueDeclare("orders", true, false, false, false, limit); err != nil {
			p = dialPlain(t, url)
		}
		return err == nil
	})
	for _, id := range []string{"1", "2"} {
		p.send("", "orders", amqp.Publishing{MessageId: id})
	}
	first := s.nextWithin(2 * patience) // the other one is prefetched
	require.NoError(t, proxy.Cut())
	await.True(t, func() bool { return p.consumers("orders") == 0 })
	require.NoError(t, proxy.Heal())
	await.True(t, func() bool { return p.consumers("orders") == 1 })
	close(gate)
	next := s.next()
	for next.message.UUID == first.message.UUID { // its ack was lost with the connection
		next = s.next()
	}
	require.Zero(t, next.origin.DeliveryCount, "RabbitMQ counts from the beginning again")
}

// A script recreates a consumer's retry queue as a plain one, which does not lead back from a retry, alone or together
// with the consumer's own queue. The consumer stops reading, because a retry would be lost. It reads on when the retry
// queue is as planned, with the other one as it is.
func TestOperator_RecreatesTheRetryQueue(t *testing.T) {
	t.Parallel()
	const queue, retries, delay = "orders.billing", "orders.billing_retry.200", 200 * time.Millisecond
	for name, c := range map[string]struct {
		recreated []string
		delays    []time.Duration
		grid      string
	}{
		"and the consumer's": {[]string{retries, queue}, []time.Duration{delay}, "false"},
		"alone":              {[]string{retries}, []time.Duration{delay}, "false"},
		"of the grid":        {[]string{retries}, nil, "true"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := services.SharedRabbitMQ(t).VHost(t)
			log := &logs{}
			b := openBroker(t, url, delays(c.delays...), params("grid", c.grid), group("billing"),
				func(c *brokers.Config) { c.Logger = slog.New(slog.NewTextHandler(log, nil)) })
			s := serve(t, b, "orders", middleware.Config{
				MaxAttempts: 2, Backoff: middleware.Constant(delay),
			}, fails)
			p := dialPlain(t, url)
			p.send("", queue, amqp.Publishing{MessageId: "before"}) // its retry declares the queue
			for range 2 {
				s.next()
			}
			await.True(t, func() bool { // the consumer may declare its queues first
				for _, name := range c.recreated {
					_, err := p.ch.QueueDelete(name, false, false, false)
					require.NoError(t, err)
					if _, err = p.ch.QueueDeclare(name, true, false, false, false, nil); err != nil {
						p = dialPlain(t, url)
						return false
					}
				}
				return true
			})
			await.True(t, func() bool {
				return log.contains("cannot consume") && log.contains(`queue \"`+retries+`\" exists with x-`)
			})
			p.send("", queue, amqp.Publishing{MessageId: "order"})
			await.Count(t, 1, func() int { return p.depth(queue) }, "it waits")

			_, err := p.ch.QueueDelete(retries, false, false, false)
			require.NoError(t, err)
			for attempt := range 2 {
				require.Equal(t, attempt+1, s.nextWithin(2*patience).attempt.Number)
			}
		})
	}
}

// A retry queue that is recreated with another type, by a service that is configured differently, leads back, and the
// consumer reads on, also if its own queue is deleted then: it used to stop until the retry queue was as planned.
func TestOperator_RecreatesTheRetryQueueWithAnotherType(t *testing.T) {
	t.Parallel()
	const queue, retries, delay = "orders.billing", "orders.billing_retry.200", 200 * time.Millisecond
	for name, delayed := range map[string][]time.Duration{"of the grid": nil, "named": {delay}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := services.SharedRabbitMQ(t).VHost(t)
			log := &logs{}
			b := openBroker(t, url, params("grid", "true"), delays(delayed...), group("billing"), func(c *brokers.Config) {
				c.Logger = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
			})
			s := serve(t, b, "orders", middleware.Config{MaxAttempts: 2, Backoff: middleware.Constant(delay)}, fails)
			p := dialPlain(t, url)
			exchange := func() {
				await.True(t, func() bool { return b.Publisher().Publish("orders", newMessage("order")) == nil })
				for attempt := range 2 {
					require.Equal(t, attempt+1, s.nextWithin(2*patience).attempt.Number)
				}
			}
			exchange() // declares the queue
			back := amqp.Table{
				"x-queue-type": "classic", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue,
			}
			_, err := p.ch.QueueDelete(retries, false, false, false)
			require.NoError(t, err)
			_, err = p.ch.QueueDeclare(retries, true, false, false, false, back)
			require.NoError(t, err)
			await.True(t, func() bool { return log.contains("leads back") }, "it is compared")
			exchange()

			_, err = p.ch.QueueDelete(queue, false, false, false)
			require.NoError(t, err)
			await.True(t, func() bool {
				_, err := dialPlain(t, url).ch.QueueDeclarePassive(queue, true, false, false, false, nil)
				return err == nil
			}, "it is declared again")
			exchange()
			require.False(t, log.contains("cannot consume"))
		})
	}
}

// A service whose consumer's queue differs at its start refuses it, and declares nothing else.
func TestOperator_ADifferentQueueAtTheStart(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	p := dialPlain(t, url)
	_, err := p.ch.QueueDeclare("orders.billing", true, false, false, false, nil)
	require.NoError(t, err)
	b := openBroker(t, url, group("billing"))
	_, err = b.Subscriber().Subscribe(t.Context(), "orders")
	require.ErrorContains(t, err, "exists with x-")
	_, err = dialPlain(t, url).ch.QueueDeclarePassive("orders.billing_dlq", true, false, false, false, nil)
	require.ErrorContains(t, err, "NOT_FOUND")
}

// An operator recreates a consumer's queue or its dead letter queue with arguments by which RabbitMQ drops messages, or
// sets a policy that does so. Only the first difference used to be named, and for dead letters and policies none. Each
// is named once, with its value and what to do.
func TestOperator_RecreatesAQueueThatLosesMessages(t *testing.T) {
	t.Parallel()
	harmful := amqp.Table{
		"x-expires": int64(3_600_000), "x-max-length": int64(1_000_000), "x-max-length-bytes": int64(1 << 40),
		"x-message-ttl": int64(3_600_001),
	}
	for name, server := range map[string]func(testing.TB) *services.Rabbit{
		"3": services.SharedRabbitMQ, "4": services.SharedRabbitMQ4,
	} {
		for _, kind := range []string{"quorum", "classic"} {
			t.Run(kind+" on RabbitMQ "+name, func(t *testing.T) {
				t.Parallel()
				rabbit := server(t)
				url, log := rabbit.VHost(t), &logs{}
				b := openBroker(t, url, naming(brokers.Laravel()),
					params("grid", "false", "management", rabbit.Management().Address()),
					func(c *brokers.Config) { c.Logger = slog.New(slog.NewTextHandler(log, nil)) })
				serve(t, b, "orders", middleware.Laravel(2), succeeds)
				p := dialPlain(t, url)
				recreated := maps.Clone(harmful)
				recreated["x-queue-type"] = kind
				for _, queue := range []string{"orders_dlq", "orders"} {
					await.True(t, func() bool { // the consumer may declare its queue first
						_, err := p.ch.QueueDelete(queue, false, false, false)
						require.NoError(t, err)
						if _, err = p.ch.QueueDeclare(queue, true, false, false, false, recreated); err != nil {
							p = dialPlain(t, url)
						}
						return err == nil
					})
					for argument, value := range harmful {
						text := fmt.Sprintf(`queue \"%s\": it was declared with %s=%d, which can lose messages`, queue, argument, value)
						await.True(t, func() bool { return log.contains(text) }, "%s", text)
					}
				}
				policy := map[string]any{"max-length": 5}
				require.NoError(t, rabbit.Management().SetPolicy(t.Context(), vhostOf(t, url), "few", "^orders_dlq$", policy))
				await.True(t, func() bool { return log.contains(`queue \"orders_dlq\": policy \"few\" sets max-length=5`) })
				for argument := range harmful {
					text := fmt.Sprintf(`queue \"orders\": it was declared with %s=`, argument)
					require.Equal(t, 1, log.count(text), "%s is named once", argument)
				}
			})
		}
	}
}

// A retry queue that is recreated with a shorter time to live leads back too early. The rest of the delay used to be
// skipped.
func TestOperator_RecreatesTheRetryQueueWithAShorterTimeToLive(t *testing.T) {
	t.Parallel()
	const delay = 1600 * time.Millisecond
	for name, c := range map[string]struct {
		naming brokers.NameScheme
		delays []time.Duration
		grid   string
		queue  string
		back   string // the exchange that leads back
		change string // by whom, or the declaration
	}{
		"named":            {brokers.DefaultNames(), []time.Duration{delay}, "false", "orders_retry.1600", "", "all"},
		"of the grid":      {brokers.DefaultNames(), nil, "true", "orders_retry.1600", "", "all"},
		"single":           {brokers.Laravel(), nil, "false", "orders_retry", "", "all"},
		"a cycle":          {brokers.TTLCycle("bus"), []time.Duration{delay}, "false", "orders.deadletter", "bus", "all"},
		"adopted":          {brokers.DefaultNames(), []time.Duration{delay}, "false", "orders_retry.1600", "", "adopt"},
		"nothing declared": {brokers.DefaultNames(), []time.Duration{delay}, "false", "orders_retry.1600", "", "none"},
		"by a policy":      {brokers.DefaultNames(), []time.Duration{delay}, "false", "orders_retry.1600", "", "policy"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rabbit := services.SharedRabbitMQ(t)
			url := rabbit.VHost(t)
			settings := []func(*brokers.Config){
				naming(c.naming), delays(c.delays...), params("grid", c.grid, "management", rabbit.Management().Address()),
			}
			b := openBroker(t, url, settings...)
			if c.change == "adopt" || c.change == "none" {
				require.NoError(t, b.Apply(t.Context(), b.Plan("orders")))
				b = openBroker(t, url, append(settings, params("declare", c.change))...)
			}
			s := serve(t, b, "orders", middleware.Config{MaxAttempts: 2, Backoff: middleware.Constant(delay)}, fails)
			require.NoError(t, b.Publisher().Publish("orders", newMessage("before")))
			s.schedule(0, delay) // declares the queue
			p := dialPlain(t, url)
			if c.change == "policy" {
				short := map[string]any{"message-ttl": 200}
				require.NoError(t, rabbit.Management().SetPolicy(t.Context(), vhostOf(t, url), "short", "^orders_retry", short))
			} else {
				_, err := p.ch.QueueDelete(c.queue, false, false, false)
				require.NoError(t, err)
				args := retryArgs(200)
				args["x-dead-letter-exchange"] = c.back
				_, err = p.ch.QueueDeclare(c.queue, true, false, false, false, args)
				require.NoError(t, err)
				if c.back != "" {
					require.NoError(t, p.ch.QueueBind(c.queue, "orders", c.back+".deadletter", false, nil))
				}
			}
			// Until it is noticed, retries are early, or on a busy machine late. Then they carry the rest of their delay.
			await.True(t, func() (noticed bool) {
				require.NoError(t, b.Publisher().Publish("orders", newMessage("noticed")))
				began := s.next().at
				// A second look could keep the message in the queue.
				for looked := false; !looked && len(s.runs) == 0 && time.Since(began) < patience; {
					waiting, found, err := p.ch.Get(c.queue, false)
					require.NoError(t, err)
					if looked = found; found {
						rest, _ := waiting.Headers["x-delay-rest"].(int64)
						noticed = rest > 0
						require.NoError(t, waiting.Nack(false, true))
					}
				}
				s.next()
				return noticed
			})
			require.NoError(t, b.Publisher().Publish("orders", newMessage("after")))
			s.schedule(0, delay)
		})
	}
}
