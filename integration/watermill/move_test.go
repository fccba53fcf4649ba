package watermill_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	_ "github.com/redrive-go/redrive/brokers/kafka"
	_ "github.com/redrive-go/redrive/brokers/rabbitmq"
	_ "github.com/redrive-go/redrive/brokers/sqlqueue"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
	"github.com/redrive-go/redrive/middleware"
)

// service is one process of a consumer.
type service struct {
	broker  brokers.Broker
	retries brokers.Broker // where retries wait: broker or another one
	router  *message.Router
	ended   <-chan error
}

// serve starts a process of the service on the broker of a URL. Every tenth message fails its first attempt, and waits.
func (m *mover) serve(t *testing.T, url string) *service {
	t.Helper()
	return m.serveVia(t, url, url)
}

// serveVia is serve with a given Rescheduler.
func (m *mover) serveVia(t *testing.T, url, retries string) *service {
	t.Helper()
	b, err := brokers.Open(t.Context(), url, patient)
	require.NoError(t, err)
	s := &service{broker: b, retries: b}
	if retries != url {
		s.retries, err = brokers.Open(t.Context(), retries, patient)
		require.NoError(t, err)
	}
	topic, handled, dead := m.topic, m.handled, &m.dead
	pipeline, err := middleware.New(middleware.Config{
		Rescheduler: s.retries,
		DeadLetters: middleware.Sinks{countDead(dead), b},
		MaxAttempts: 10, Backoff: middleware.Constant(2 * time.Second),
	})
	require.NoError(t, err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	router.AddMiddleware(pipeline.Middleware)
	router.AddConsumerHandler("billing", topic, b.Subscriber(), func(m *message.Message) error {
		attempt, _ := middleware.AttemptFrom(m.Context())
		if strings.HasSuffix(m.UUID, "0") && attempt.Number == 1 {
			return errors.New("the payment service is down")
		}
		handled.note(m.UUID)
		return nil
	})
	s.router = router
	s.ended = await.Run(context.WithoutCancel(t.Context()), t, router)
	return s
}

func countDead(n *atomic.Int32) middleware.DeadLetterFunc {
	return func(context.Context, *envelope.DeadLetter) error { n.Add(1); return nil }
}

func (s *service) stop(t *testing.T) {
	t.Helper()
	require.NoError(t, errors.Join(s.router.Close(), <-s.ended))
	require.NoError(t, s.broker.Close())
	if s.retries != s.broker {
		require.NoError(t, s.retries.Close())
	}
}

// As docs/brokers/watermill.md describes, a service can move to the native driver and back by changing one word of its
// URL, in a rolling deployment, while messages and retries wait, and loses none.
func TestMove_ByOneWordOfTheURLAndBack(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		url    func(t *testing.T) string
		adds   string // to the URL of the native driver
		adapts string // to that of the adapter
		to     string // the consumer on the native driver
		group  bool   // both join one group, and only one of them gets the partitions
	}{
		// The native driver's queues have other arguments, and thus other names.
		"RabbitMQ": {
			url:  func(t *testing.T) string { t.Helper(); return services.SharedRabbitMQ(t).VHost(t) },
			adds: "group=billing&queue={topic}.{group}.v2", adapts: "group=billing", to: "TOPIC.billing.v2",
		},
		// Both are members of one group, and share partitions by a strategy that both support.
		"Kafka": {
			url:  func(t *testing.T) string { t.Helper(); return services.SharedKafka(t).URL() },
			adds: "group=billing&assignor=range&partitioner=fnv&partitions=3", adapts: "group=billing&partitions=3",
			to: "billing", group: true,
		},
		"PostgreSQL": {
			url: onDatabase("PostgreSQL"), adds: "x-group=billing", adapts: "x-group=billing&x-poll=20ms",
			to: "billing",
		},
		"MySQL": {
			url: onDatabase("MySQL"), adds: "x-group=billing", adapts: "x-group=billing&x-poll=20ms",
			to: "billing",
		},
		"MariaDB": {
			url: onDatabase("MariaDB"), adds: "x-group=billing", adapts: "x-group=billing&x-poll=20ms",
			to: "billing",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := c.url(t)
			env, delays := "REDRIVE_TEST_DELAYS_"+strings.ToUpper(name), "sqlite://"+filepath.Join(t.TempDir(), "delays.db")
			setenv(t, env, delays)
			adapter := with(with("watermill+"+url, c.adapts), "x-delays-env="+env)
			native := with(url, c.adds)
			m := &mover{
				topic: "orders" + strings.ToLower(watermill.NewShortUUID()[:8]), handled: &ledger{seen: map[string]int{}},
			}
			consumer := strings.ReplaceAll(c.to, "TOPIC", m.topic)

			unmoved := m.unmoved(t, adapter)
			old := m.serve(t, adapter)
			m.publish(t, old.broker, 30)
			next := m.serve(t, native) // rolling deployment: both run
			m.publish(t, old.broker, 10)
			m.publish(t, next.broker, 10)
			old.stop(t)
			end := m.move(t, adapter, native, consumer)
			m.publish(t, next.broker, 10)
			if c.group { // Move has partitions, whose retries are read once it has ended
				await.None(t, func() int { return waiting(t, delays) }, "messages in Delays")
				for end(); waiting(t, delays) > 0; end() { // its messages in flight have returned
					end = m.move(t, adapter, native, consumer)
					await.None(t, func() int { return waiting(t, delays) }, "messages in Delays")
				}
				m.complete(t)
				m.publish(t, next.broker, 30)
				m.backByRescheduler(t, next, native, adapter, delays)
				await.Count(t, m.sent, unmoved.distinct, "the topic stays, so publishers may move at any time")
				return
			}
			m.complete(t)
			end()

			m.publish(t, next.broker, 30)
			back := m.serve(t, adapter)
			m.publish(t, next.broker, 10)
			m.publish(t, back.broker, 10)
			next.stop(t)
			end = m.move(t, native, adapter, "billing")
			m.publish(t, back.broker, 10)
			m.complete(t)
			end()
			back.stop(t)
			require.Zero(t, m.dead.Load(), "no healthy message is dead-lettered")
			await.Count(t, 60, unmoved.distinct, "those that were published by the adapter")
			require.Equal(t, 60, unmoved.distinct(), "publishers move last: natively published ones are elsewhere")
		})
	}
}

func onDatabase(name string) func(t *testing.T) string {
	return func(t *testing.T) string { t.Helper(); return databases[name](t) }
}

// backByRescheduler goes back if only members on the native driver read its retries: first, new retries wait in the
// adapter's Delays until the native driver has none, and then the members are replaced. The topic is consumed
// throughout.
func (m *mover) backByRescheduler(t *testing.T, next *service, native, adapter, delays string) {
	t.Helper()
	through := m.serveVia(t, native, adapter)
	m.publish(t, next.broker, 10)
	m.publish(t, through.broker, 10)
	next.stop(t)
	m.publish(t, through.broker, 10)
	await.True(t, func() bool { return m.handled.distinct()+waiting(t, delays) == m.sent }, "messages wait only in Delays")
	back := m.serve(t, adapter)
	m.publish(t, through.broker, 10)
	m.publish(t, back.broker, 10)
	through.stop(t)
	m.publish(t, back.broker, 10)
	m.complete(t)
	back.stop(t)
	require.Zero(t, m.dead.Load(), "no healthy message is dead-lettered")
}

// waiting counts the messages waiting in the broker of a URL.
func waiting(t *testing.T, url string) (n int) {
	t.Helper()
	b, err := brokers.Open(t.Context(), url)
	require.NoError(t, err)
	depths, err := b.(brokers.DepthReporter).Depths(t.Context())
	require.NoError(t, errors.Join(err, b.Close()))
	for _, d := range depths {
		n += int(d.Messages)
	}
	return n
}

// mover publishes to one topic, moves it, and records the messages.
type mover struct {
	topic   string
	sent    int
	handled *ledger
	dead    atomic.Int32
}

// unmoved is another group on the adapter, which stays there, and the messages that it gets.
func (m *mover) unmoved(t *testing.T, adapter string) *ledger {
	t.Helper()
	got := &ledger{seen: map[string]int{}}
	messages := subscribe(t, open(t, adapter).Subscriber(brokers.WithGroup("mail")), m.topic)
	go func() {
		for one := range messages {
			got.note(one.UUID)
			one.Ack()
		}
	}()
	return got
}

func (m *mover) publish(t *testing.T, b brokers.Broker, n int) {
	t.Helper()
	for range n {
		m.sent++
		id := fmt.Sprintf("m-%d", m.sent)
		await.True(t, func() bool { return b.Publisher().Publish(m.topic, sample(id)) == nil })
	}
}

// move runs brokers.Move until end.
func (m *mover) move(t *testing.T, from, to, consumer string) (end func()) {
	t.Helper()
	source, target := open(t, from), open(t, to)
	ctx, cancel := context.WithCancel(t.Context())
	var moving sync.WaitGroup
	moving.Go(func() {
		err := brokers.Move(ctx, brokers.MoveConfig{From: source, To: target, Topic: m.topic, Consumer: consumer})
		if err != nil {
			t.Errorf("move: %v", err)
		}
	})
	return func() {
		cancel()
		moving.Wait()
	}
}

// complete waits until every published message has been handled.
func (m *mover) complete(t *testing.T) {
	t.Helper()
	await.Count(t, m.sent, m.handled.distinct, "messages handled of all that were published")
	require.Equal(t, m.sent, m.handled.distinct())
}
