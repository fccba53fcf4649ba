package watermill_test

import (
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
)

// ledger notes what was handled.
type ledger struct {
	mu   sync.Mutex
	seen map[string]int
}

func (l *ledger) note(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen[id]++
}

func (l *ledger) distinct() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.seen)
}

// read acks everything that comes.
func read(messages <-chan *message.Message) *ledger {
	l := &ledger{seen: map[string]int{}}
	go func() {
		for m := range messages {
			l.note(m.UUID)
			m.Ack()
		}
	}()
	return l
}

// persist publishes messages one by one, each until it is taken.
func persist(t *testing.T, p message.Publisher, topic string, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		id := strconv.Itoa(i)
		await.True(t, func() bool { return p.Publish(topic, sample(id)) == nil }, "message %s cannot be published", id)
	}
}

// Connections are cut while messages flow, and the network swallows everything for a while: the subscription heals, the
// publisher too, and every message that was taken is handled.
func TestNetwork_CutsLoseNothing(t *testing.T) {
	t.Parallel()
	const rounds, each = 4, 25
	proxied := func(t *testing.T, url string) (string, *services.Proxy) {
		t.Helper()
		p := services.NewProxy(t, url)
		return p.URL(t, url), p
	}
	for name, connect := range map[string]func(t *testing.T) (string, *services.Proxy){
		"RabbitMQ": func(t *testing.T) (string, *services.Proxy) {
			t.Helper()
			if raceEnabled {
				t.Skip("watermill-amqp v2.1.3 reads its connection without a lock while it connects again: make plain runs this case")
			}
			url, p := proxied(t, services.SharedRabbitMQ(t).VHost(t))
			return onAMQP(url).url, p
		},
		"Kafka": func(t *testing.T) (string, *services.Proxy) {
			t.Helper()
			k := services.Kafka(t, services.KafkaConfig{Proxied: true})
			return onKafka(k.ProxiedBrokers).url, k.Proxy
		},
		"PostgreSQL": func(t *testing.T) (string, *services.Proxy) {
			t.Helper()
			url, p := proxied(t, databases["PostgreSQL"](t))
			return with("watermill+"+url, "x-group=billing&x-poll=20ms"), p
		},
		"MariaDB": func(t *testing.T) (string, *services.Proxy) {
			t.Helper()
			url, p := proxied(t, databases["MariaDB"](t))
			return with("watermill+"+url, "x-group=billing&x-poll=20ms"), p
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, proxy := connect(t)
			topic := "orders" + strings.ToLower(watermill.NewShortUUID()[:8])
			b := open(t, url)
			l := read(subscribe(t, b.Subscriber(), topic))
			pub := b.Publisher()
			for round := range rounds {
				persist(t, pub, topic, round*each, round*each+each/2)
				switch round % 2 {
				case 0:
					require.NoError(t, proxy.Flap())
				case 1:
					require.NoError(t, proxy.Cut())
					await.True(t, func() bool { return b.Ping(t.Context()) != nil }, "the broker notices")
					require.NoError(t, proxy.Heal())
				}
				persist(t, pub, topic, round*each+each/2, (round+1)*each)
				await.Count(t, (round+1)*each, l.distinct, "messages handled after the fault")
			}
		})
	}
}

// What an operator deletes is made again, and what is published from then on is delivered.
func TestDeleted_TopicsAreMadeAgain(t *testing.T) {
	t.Parallel()
	drop := func(statement string) func(t *testing.T, url, topic string) {
		return func(t *testing.T, url, topic string) {
			t.Helper()
			db := openDB(t, url)
			for _, table := range []string{"watermill_" + topic, "watermill_offsets_" + topic} {
				_, err := db.ExecContext(t.Context(), strings.ReplaceAll(statement, "?", table))
				require.NoError(t, err)
			}
		}
	}
	for name, c := range map[string]struct {
		url    func(t *testing.T) string
		delete func(t *testing.T, url, topic string)
	}{
		"Kafka": {
			url: func(t *testing.T) string { t.Helper(); return services.SharedKafka(t).URL() },
			delete: func(t *testing.T, _, topic string) {
				t.Helper()
				require.NoError(t, deleteTopic(services.SharedKafka(t).Brokers, topic))
			},
		},
		"PostgreSQL": {
			url: func(t *testing.T) string { t.Helper(); return databases["PostgreSQL"](t) }, delete: drop(`DROP TABLE "?"`),
		},
		"MySQL": {url: func(t *testing.T) string { t.Helper(); return databases["MySQL"](t) }, delete: drop("DROP TABLE `?`")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := c.url(t)
			topic := "orders" + strings.ToLower(watermill.NewShortUUID()[:8])
			b := open(t, with("watermill+"+url, "x-group=billing"))
			l := read(subscribe(t, b.Subscriber(), topic))
			persist(t, b.Publisher(), topic, 0, 1)
			await.Count(t, 1, l.distinct)
			c.delete(t, url, topic)
			// The consumer of the old one may still be leaving it: what is published meanwhile may go with it.
			n := 1
			await.True(t, func() bool {
				persist(t, b.Publisher(), topic, n, n+1)
				n++
				return l.distinct() > 1
			}, "messages arrive again")
		})
	}
}

func deleteTopic(addresses []string, topic string) error {
	admin, err := sarama.NewClusterAdmin(addresses, sarama.NewConfig())
	if err != nil {
		return err
	}
	return errors.Join(admin.DeleteTopic(topic), admin.Close())
}
