package rabbitmq_test

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
	"github.com/redrive-go/redrive/internal/logbuffer"
	"github.com/redrive-go/redrive/middleware"
)

// The network drops all packets but closes no connection. Heartbeats detect that, both connections are reopened, and
// the message in flight is redelivered.
func TestNetwork_DropsEverything(t *testing.T) {
	t.Parallel()
	direct := services.SharedRabbitMQ(t).VHost(t)
	proxy := services.NewProxy(t, direct)
	b := openBroker(t, proxy.URL(t, direct), naming(brokers.Laravel()), params("grid", "false"),
		func(c *brokers.Config) { c.PublishTimeout = 2 * time.Second })
	frozen := make(chan struct{})
	s := serve(t, b, "orders", middleware.Laravel(1), func(m *message.Message) error {
		if m.UUID == "in flight" {
			<-frozen // its ack is lost
		}
		return nil
	})
	publish(t, direct, message.NewMessage("in flight", nil))
	s.next()
	require.NoError(t, proxy.Freeze())
	close(frozen)
	began := time.Now()
	err := b.Publisher().Publish("orders", message.NewMessage("swallowed", nil))
	require.Error(t, err)
	require.Less(t, time.Since(began), patience, "Publish respects its timeout")

	await.True(t, func() bool { return b.Stats().Connections == 0 }, "heartbeats detect the fault")
	require.NoError(t, proxy.Heal())
	again := s.next()
	require.Equal(t, "in flight", again.message.UUID)
	require.True(t, again.origin.Redelivered)
	await.True(t, func() bool { return b.Publisher().Publish("orders", message.NewMessage("after", nil)) == nil })
	for s.next().message.UUID != "after" {
	}
}

// If the broker stores a message and its confirm is lost, the caller learns within its timeout that the result is
// unknown, and the next publication works.
func TestNetwork_ConfirmsAreLost(t *testing.T) {
	t.Parallel()
	direct := services.SharedRabbitMQ(t).VHost(t)
	proxy := services.NewProxy(t, direct)
	b := openBroker(t, proxy.URL(t, direct), naming(brokers.Laravel()), params("grid", "false"),
		func(c *brokers.Config) { c.PublishTimeout = time.Second })
	p := dialPlain(t, direct)
	_, err := p.ch.QueueDeclare("orders", true, false, false, false, nil)
	require.NoError(t, err)
	await.True(t, func() bool { return b.Publisher().Publish("orders", newMessage("before")) == nil })
	_, err = p.ch.QueuePurge("orders", false)
	require.NoError(t, err)

	require.NoError(t, proxy.LoseAnswers())
	began := time.Now()
	err = b.Publisher().Publish("orders", newMessage("unknown result"))
	require.ErrorIs(t, err, rabbitmq.ErrUnconfirmed)
	require.ErrorContains(t, err, `"orders"`)
	require.Less(t, time.Since(began), patience)
	await.Count(t, 1, func() int { return p.depth("orders") }, "it was stored, although it was not confirmed")

	require.NoError(t, proxy.Heal())
	await.True(t, func() bool { return b.Publisher().Publish("orders", newMessage("after")) == nil })
}

// An error text of 200 KB is dead-lettered, and so is the stack of a panic, on the same connections as before, although
// a header of that size would close them.
func TestErrorText_Of200KB(t *testing.T) {
	t.Parallel()
	r := services.SharedRabbitMQ(t)
	rawURL := r.VHost(t)
	vhost := vhostOf(t, rawURL)
	b := openBroker(t, rawURL, naming(brokers.Laravel()), params("grid", "false"), delays(50*time.Millisecond))
	text := strings.Repeat("the database says no\n\x00\xff", 200<<10/23)
	s := serve(t, b, "orders", middleware.Config{
		MaxAttempts: 3, Backoff: middleware.Constant(50 * time.Millisecond),
	}, func(m *message.Message) error {
		if m.UUID == "panics" {
			panic(text)
		}
		return fmt.Errorf("insert: %w", errors.New(text))
	})
	names := func() (names []string) {
		for _, c := range connections(t, r, vhost) {
			names = append(names, c.Name)
		}
		return names
	}
	await.True(t, func() bool { return len(names()) == 3 })
	before := names()

	require.NoError(t, b.Publisher().Publish("orders", message.NewMessage("fails", []byte("1")),
		message.NewMessage("panics", []byte("2"))))
	for range 6 {
		s.next()
	}
	p := dialPlain(t, rawURL)
	for range 2 {
		d := p.next("orders_dlq")
		size := 0
		for key, value := range d.Headers {
			size += len(key) + len(fmt.Sprint(value))
		}
		require.Less(t, size, 20<<10, "the size of the added headers is bounded")
		require.Contains(t, d.Headers["x-error-message"], "the database says no")
		require.Contains(t, []string{"exhausted", "panic"}, d.Headers["x-dead-letter-reason"])
	}
	require.Subset(t, names(), before, "no connection was lost")
}

// connection is one in the management API.
type connection struct {
	Name     string
	Channels int
}

// connections lists those to a virtual host.
func connections(t *testing.T, r *services.Rabbit, vhost string) (list []connection) {
	t.Helper()
	require.NoError(t, r.Management().Do(t.Context(), http.MethodGet, nil, &list, "vhosts", vhost, "connections"))
	return list
}

func vhostOf(t *testing.T, rawURL string) string {
	t.Helper()
	u, err := url.Parse(rawURL)
	require.NoError(t, err)
	return strings.TrimPrefix(u.Path, "/")
}

// The gauges equal the broker's own numbers, after 3,000 concurrent publications and with 20 subscriptions.
func TestStats_EqualThoseOfTheBroker(t *testing.T) {
	t.Parallel()
	r := services.SharedRabbitMQ(t)
	rawURL := r.VHost(t)
	b := openBroker(t, rawURL, naming(brokers.Laravel()), params("grid", "false"))
	for i := range 20 {
		_, err := b.Subscriber(brokers.WithConcurrency(8)).Subscribe(t.Context(), fmt.Sprintf("topic-%d", i))
		require.NoError(t, err)
	}
	pub := b.Publisher()
	spread(3000, 3000, func(i int) {
		if err := pub.Publish("topic-0", newMessage("x")); err != nil {
			t.Error(err)
		}
	})
	require.Equal(t, 3, b.Stats().Connections)
	require.LessOrEqual(t, b.Stats().Channels, 4+20)
	await.True(t, func() bool {
		stats := b.Stats() // now, because there is one more channel while the broker checks its queues
		open, channels := connections(t, r, vhostOf(t, rawURL)), 0
		for _, c := range open {
			channels += c.Channels
		}
		return len(open) == stats.Connections && channels == stats.Channels
	})
}

// Processes or connections end repeatedly before anything can be acked or published. RabbitMQ counts that for every
// message in flight, but none may be dead-lettered because of it.
func TestNetwork_ALostConnectionDeadLettersNothing(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	b := openBroker(t, url, naming(brokers.Laravel()), params("grid", "false"))
	require.NoError(t, b.Apply(t.Context(), b.Plan("orders")))
	require.NoError(t, b.Publisher().Publish("orders", message.NewMessage("m", []byte("x"))))
	for range 30 {
		conn, err := amqp.Dial(url)
		require.NoError(t, err)
		ch, err := conn.Channel()
		require.NoError(t, err)
		await.True(t, func() bool {
			d, ok, err := ch.Get("orders", false)
			require.NoError(t, err)
			return ok && d.MessageId == "m"
		}, "it is no longer in its queue")
		require.NoError(t, conn.Close())
	}
	s := serve(t, b, "orders", middleware.Laravel(1), func(*message.Message) error { return nil })
	require.Equal(t, "m", s.next().message.UUID)
	require.Zero(t, dialPlain(t, url).depth("orders_dlq"))
}

// The delivery limit of a queue that others have declared counts, whatever ours would be: RabbitMQ would give the
// message up after another lost connection, so it is published again. One that a policy sets used to count for nothing.
func TestNetwork_DeliveryLimitOfAnExistingQueue(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		declare string
		policy  bool
	}{
		"adopt":           {declare: "adopt"},
		"none":            {declare: "none"},
		"read":            {declare: "read"},
		"adopt, a policy": {declare: "adopt", policy: true},
		"read, a policy":  {declare: "read", policy: true},
		"all, a policy":   {declare: "all", policy: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rabbit := services.SharedRabbitMQ(t)
			url := rabbit.VHost(t)
			p, crashing := dialPlain(t, url), dialPlain(t, url)
			orders := amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int32(2)} // which then loses it
			if c.policy {
				delete(orders, "x-delivery-limit")
				limit := map[string]any{"delivery-limit": 2}
				require.NoError(t, rabbit.Management().SetPolicy(t.Context(), vhostOf(t, url), "limit", "^orders$", limit))
			}
			existing := map[string]amqp.Table{
				"orders":       orders,
				"orders_retry": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders"},
				"orders_dlq":   nil,
			}
			if c.declare == "all" {
				existing = nil
				ours := openBroker(t, url, naming(brokers.Laravel()))
				require.NoError(t, ours.Apply(t.Context(), ours.Plan("orders")))
			}
			for queue, args := range existing {
				_, err := p.ch.QueueDeclare(queue, true, false, false, false, args)
				require.NoError(t, err)
			}
			await.True(t, func() bool { // the management API learns of it later
				var shown struct{ Policy string }
				err := rabbit.Management().Do(t.Context(), http.MethodGet, nil, &shown, "queues", vhostOf(t, url), "orders")
				return err == nil && (shown.Policy == "limit") == c.policy
			})
			p.send("", "orders", amqp.Publishing{MessageId: "m"})
			await.True(t, func() bool {
				_, ok, err := crashing.ch.Get("orders", false)
				return err == nil && ok
			})
			require.NoError(t, crashing.ch.Close())
			b := openBroker(t, url, naming(brokers.Laravel()),
				params("declare", c.declare, "management", rabbit.Management().Address()))
			s := serve(t, b, "orders", middleware.Laravel(1), succeeds)
			require.Zero(t, s.next().origin.DeliveryCount, "RabbitMQ counts from the beginning again")
		})
	}
}

// The management API is needed only for the policies of existing queues: a consumer starts without it, also a second
// time, and if it accepts connections and does not answer. This is logged once.
func TestNetwork_ExistingQueueWithoutTheManagementAPI(t *testing.T) {
	t.Parallel()
	silent := httptest.NewUnstartedServer(nil).Listener
	t.Cleanup(func() { require.NoError(t, silent.Close()) })
	for name, address := range map[string]string{
		"refuses": fmt.Sprintf("127.0.0.1:%d", services.FreePorts(t, 1)[0]), "silent": silent.Addr().String(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := services.SharedRabbitMQ(t).VHost(t)
			p := dialPlain(t, url)
			_, err := p.ch.QueueDeclare("orders", true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
			require.NoError(t, err)
			log := &logs{}
			b := openBroker(t, url, naming(brokers.Laravel()), group("mail"),
				params("declare", "adopt", "management", "http://"+address),
				func(c *brokers.Config) { c.Logger = slog.New(slog.NewTextHandler(log, nil)) })
			s := serve(t, b, "orders", middleware.Laravel(1), succeeds)
			p.send("", "orders", amqp.Publishing{MessageId: "m"})
			require.Equal(t, "m", s.next().message.UUID)
			s.stop()
			// The wait queue that it has declared exists now, with other arguments than the planned ones as far as we see.
			again := serve(t, b, "orders", middleware.Laravel(1), succeeds)
			p.send("", "orders", amqp.Publishing{MessageId: "n"})
			require.Equal(t, "n", again.next().message.UUID)
			require.Zero(t, log.count("not as it would be declared"))
			require.Equal(t, 1, log.count("delivery limits and times to live that policies set"))
		})
	}
}

// The arguments of a queue are looked at by a declaration, which RabbitMQ refuses and logs if the user may not declare:
// once, and not in each session.
func TestNetwork_RefusedLooksAreNotRepeated(t *testing.T) {
	t.Parallel()
	for _, declare := range []string{"none", "adopt"} {
		t.Run(declare, func(t *testing.T) {
			t.Parallel()
			rabbit := borrowSecond(t, true) // its log is short
			url := rabbit.VHost(t)
			p := dialPlain(t, url)
			retries := amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders"}
			for queue, args := range map[string]amqp.Table{"orders": nil, "orders_retry": retries, "orders_dlq": nil} {
				_, err := p.ch.QueueDeclare(queue, true, false, false, false, args)
				require.NoError(t, err)
			}
			proxy := services.NewProxy(t, url)
			user := restricted(t, rabbit, url, map[string]string{"configure": "^$"})
			b := openBroker(t, proxy.URL(t, user), naming(brokers.Laravel()), params("declare", declare))
			s := serve(t, b, "orders", middleware.Laravel(1), succeeds)
			for range 2 {
				require.NoError(t, proxy.Cut())
				await.True(t, func() bool { return p.consumers("orders") == 0 })
				require.NoError(t, proxy.Heal())
				await.True(t, func() bool { return p.consumers("orders") == 1 })
			}
			p.send("", "orders", amqp.Publishing{MessageId: "m"})
			require.Equal(t, "m", s.next().message.UUID)
			refused := fmt.Sprintf("access to queue 'orders' in vhost '%s' refused", vhostOf(t, url))
			require.LessOrEqual(t, strings.Count(rabbit.Log(), refused), 1)
		})
	}
}

// A broken connection does not mean that the process is dead: a handler during which more connections break than the
// crash limit and RabbitMQ's own delivery limit allow can finish, the copies of its message are then acked, and those
// behind it are handled.
func TestNetwork_LostConnectionsAreNotCrashes(t *testing.T) {
	t.Parallel()
	const crashLimit, deliveryLimit, cuts = 3, 12, 16
	url := services.SharedRabbitMQ(t).VHost(t)
	proxy := services.NewProxy(t, url)
	b := openBroker(t, proxy.URL(t, url), naming(brokers.Laravel()),
		params("grid", "false", "prefetch", "10", "crash-limit", strconv.Itoa(crashLimit), "delivery-limit",
			strconv.Itoa(deliveryLimit)))
	p := dialPlain(t, url)
	gate := make(chan struct{})
	s := serve(t, b, "orders", middleware.Laravel(1), func(m *message.Message) error {
		<-gate
		return nil
	})
	const n = 20
	batch := make([]*message.Message, n)
	for i := range batch {
		batch[i] = message.NewMessage(strconv.Itoa(i), nil)
	}
	require.NoError(t, b.Publisher().Publish("orders", batch...))
	seen := map[string]bool{s.next().message.UUID: true}
	for range cuts {
		require.NoError(t, proxy.Cut())
		await.True(t, func() bool { return p.consumers("orders") == 0 })
		require.NoError(t, proxy.Heal())
		await.True(t, func() bool { return p.consumers("orders") == 1 })
		for range 3 { // how long the network is up
			require.NoError(t, b.Publisher().Publish("orders", newMessage("x")))
		}
	}
	close(gate)
	for len(seen) < n+3*cuts {
		seen[s.next().message.UUID] = true
	}
	await.True(t, func() bool { return p.depth("orders") == 0 })
	require.Zero(t, p.depth("orders_dlq"))
}

// An ack that fails because the connection ended while the handler ran is counted and logged, and the message is acked
// without its handler when it is redelivered.
func TestConsume_AcksThatFailAreCounted(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	proxy := services.NewProxy(t, url)
	log := &logbuffer.Buffer{}
	b := openBroker(t, proxy.URL(t, url), naming(brokers.Laravel()), params("grid", "false", "prefetch", "3"),
		func(c *brokers.Config) {
			c.Concurrency = 3
			c.Logger = slog.New(slog.NewTextHandler(log, nil))
		})
	p := dialPlain(t, url)
	gate := make(chan struct{})
	s := serve(t, b, "orders", middleware.Laravel(1), func(*message.Message) error {
		<-gate
		return nil
	})
	require.NoError(t, b.Publisher().Publish("orders", newMessage("1"), newMessage("2"), newMessage("3")))
	for range 3 {
		s.next()
	}
	require.NoError(t, proxy.Cut())
	await.True(t, func() bool { return b.Stats() == rabbitmq.Stats{} }, "the end of the connections is detected")
	close(gate)
	await.True(t, func() bool { return b.Stats().AcksFailed == 3 })
	require.NoError(t, proxy.Heal())
	await.True(t, func() bool { return b.Replays() == 3 })
	s.stop()
	require.NoError(t, b.Close())
	require.Empty(t, s.runs)
	require.Zero(t, p.depth("orders"))
	require.EqualValues(t, 3, b.Stats().AcksFailed, "the other acks arrived")
	require.Contains(t, log.String(), "redelivered")
	require.Contains(t, log.String(), "queue=orders")
}
