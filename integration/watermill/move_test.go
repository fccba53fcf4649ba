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

// service is one process of a consumer, with what all of them have handled.
type service struct {
	broker brokers.Broker
	router *message.Router
	ended  chan struct{}
}

// serve starts a process of the service on the broker of a URL. Every third message fails at its first attempt, and waits.
func serve(t *testing.T, url, topic string, handled *ledger, dead *atomic.Int32) *service {
	t.Helper()
	b, err := brokers.Open(t.Context(), url)
	require.NoError(t, err)
	pipeline, err := middleware.New(middleware.Config{
		Rescheduler: b,
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
	s := &service{broker: b, router: router, ended: make(chan struct{})}
	go func() {
		defer close(s.ended)
		_ = router.Run(context.WithoutCancel(t.Context()))
	}()
	<-router.Running()
	return s
}

func countDead(n *atomic.Int32) middleware.DeadLetterFunc {
	return func(context.Context, *envelope.DeadLetter) error { n.Add(1); return nil }
}

func (s *service) stop(t *testing.T) {
	t.Helper()
	require.NoError(t, s.router.Close())
	<-s.ended
	require.NoError(t, s.broker.Close())
}

// docs/brokers/watermill.md: a service moves to the native driver by one word of its URL, rolling, with messages and retries
// that wait, and back, and loses none.
func TestMove_OneWordOfTheURLAndBack(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		url    func(t *testing.T) string
		adds   string // to the URL of the native driver
		adapts string // to that of the adapter
		to     string // the consumer on the native driver
		group  bool   // both are members of one group, whose partitions only one of them has
	}{
		// The native driver's queues have other arguments, and so other names.
		"RabbitMQ": {
			url:  func(t *testing.T) string { t.Helper(); return services.SharedRabbitMQ(t).VHost(t) },
			adds: "group=billing&queue={topic}.{group}.v2", adapts: "group=billing", to: "TOPIC.billing.v2",
		},
		// Both are members of one group, and share partitions in the way that both know.
		"Kafka": {
			url:  func(t *testing.T) string { t.Helper(); return services.SharedKafka(t).URL() },
			adds: "group=billing&assignor=range&partitioner=fnv&partitions=3", adapts: "group=billing&partitions=3", to: "billing", group: true,
		},
		"PostgreSQL": {
			url:  func(t *testing.T) string { t.Helper(); return services.SharedPostgres(t).Database(t) },
			adds: "x-group=billing", adapts: "x-group=billing&x-poll=20ms", to: "billing",
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

			old := serve(t, adapter, m.topic, m.handled, &m.dead)
			m.publish(t, old.broker, 30)
			next := serve(t, native, m.topic, m.handled, &m.dead) // rolling: both run
			m.publish(t, old.broker, 10)
			m.publish(t, next.broker, 10)
			old.stop(t)
			end := m.move(t, adapter, native, consumer)
			m.publish(t, next.broker, 10)
			if c.group {
				await.None(t, func() int { return waiting(t, delays) }, "messages in Delays")
				end() // with the partitions that it has, whose retries come after that
				m.complete(t)
			} else {
				m.complete(t)
				end()
			}

			m.publish(t, next.broker, 30)
			if c.group { // what waits in the topics of the native driver's retries, only it reads
				m.complete(t)
				next.stop(t)
				source := open(t, native)
				m.publish(t, source, 20) // these wait on the topic
				back := serve(t, adapter, m.topic, m.handled, &m.dead)
				m.publish(t, back.broker, 10)
				m.complete(t)
				back.stop(t)
				require.Zero(t, m.dead.Load(), "nothing healthy is dead")
				return
			}
			back := serve(t, adapter, m.topic, m.handled, &m.dead)
			m.publish(t, next.broker, 10)
			m.publish(t, back.broker, 10)
			next.stop(t)
			end = m.move(t, native, adapter, "billing")
			m.publish(t, back.broker, 10)
			m.complete(t)
			end()
			back.stop(t)
			require.Zero(t, m.dead.Load(), "nothing healthy is dead")
		})
	}
}

// waiting counts what the broker of a URL keeps.
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

// mover publishes and moves one topic, and keeps the books.
type mover struct {
	topic   string
	sent    int
	handled *ledger
	dead    atomic.Int32
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

// complete waits until every message that was published has been handled.
func (m *mover) complete(t *testing.T) {
	t.Helper()
	await.Count(t, m.sent, m.handled.distinct, "messages handled of all that were published")
	require.Equal(t, m.sent, m.handled.distinct())
}
