package watermill_test

import (
	"context"
	"database/sql"
	"errors"
	"maps"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
	"github.com/redrive-go/redrive/internal/sqldb"
)

// ledger records the handled messages.
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

// read records and acks every message.
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

// persist publishes messages one by one, and repeats each until it is accepted.
func persist(t *testing.T, p message.Publisher, topic string, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		id := strconv.Itoa(i)
		await.True(t, func() bool { return p.Publish(topic, sample(id)) == nil }, "message %s cannot be published", id)
	}
}

// faulty is a server behind a proxy, and tests break both.
type faulty struct {
	url     string
	network *services.Proxy
	server  interface { // nil for a shared server
		Kill() error
		Start(ctx context.Context) error
	}
}

// behind returns a proxy for a URL.
func behind(t *testing.T, url string) (string, *services.Proxy) {
	t.Helper()
	p := services.NewProxy(t, url)
	return p.URL(t, url), p
}

// Connections are cut while messages are processed, the network drops everything for a while, and the server is killed
// and restarted: subscription and publisher recover, and every accepted message is handled.
func TestNetwork_CutsAndKillsLoseNothing(t *testing.T) {
	t.Parallel()
	cases := map[string]func(t *testing.T) faulty{
		"Kafka": func(t *testing.T) faulty {
			t.Helper()
			k := services.Kafka(t, services.KafkaConfig{Proxied: true})
			return faulty{with(onKafka(k.ProxiedBrokers).url, "session-timeout=6s"), k.Proxy, k}
		},
		"PostgreSQL": func(t *testing.T) faulty {
			t.Helper()
			server := services.Postgres(t, services.PostgresConfig{Durable: true})
			url, p := behind(t, server.Database(t))
			return faulty{with("watermill+"+url, "x-group=billing&x-poll=20ms"), p, server}
		},
		"MariaDB": func(t *testing.T) faulty {
			t.Helper()
			url, p := behind(t, databases["MariaDB"](t))
			return faulty{url: with("watermill+"+url, "x-group=billing&x-poll=20ms"), network: p}
		},
	}
	maps.Copy(cases, undetected)
	for name, connect := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			connect(t).losesNothing(t)
		})
	}
}

func (f faulty) losesNothing(t *testing.T) {
	t.Helper()
	topic := "orders" + strings.ToLower(watermill.NewShortUUID()[:8])
	b := open(t, f.url)
	l := read(subscribe(t, b.Subscriber(), topic))
	faults := []func() error{f.network.Flap, func() error {
		err := f.network.Cut()
		await.True(t, func() bool { return b.Ping(t.Context()) != nil }, "the broker detects the fault")
		return errors.Join(err, f.network.Heal())
	}}
	if f.server != nil {
		faults = append(faults, func() error { return errors.Join(f.server.Kill(), f.server.Start(t.Context())) })
	}
	const each = 25
	for round, fault := range faults {
		persist(t, b.Publisher(), topic, round*each, round*each+each/2)
		require.NoError(t, fault())
		persist(t, b.Publisher(), topic, round*each+each/2, (round+1)*each)
		await.Count(t, (round+1)*each, l.distinct, "messages handled after the fault")
	}
}

// A topic that an operator deletes is recreated, and messages published from then on are delivered.
func TestDeleted_TopicsAreRecreated(t *testing.T) {
	t.Parallel()
	drop := func(statement string) func(t *testing.T, url, topic string) {
		return func(t *testing.T, url, topic string) {
			t.Helper()
			db := openDB(t, url)
			for _, table := range []string{"watermill_" + topic, "watermill_offsets_" + topic} {
				// repeated where the server ends it because of the consumers' locks
				require.NoError(t, sqldb.PostgreSQL.Retry(t.Context(), db, nil, sqldb.MySQL.Conflict, func(tx *sql.Tx) error {
					_, err := tx.ExecContext(t.Context(), strings.ReplaceAll(statement, "?", table))
					return err
				}))
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
		"MySQL": {
			url:    func(t *testing.T) string { t.Helper(); return databases["MySQL"](t) },
			delete: drop("DROP TABLE `?`"),
		},
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
			// The consumer of the old topic may still be leaving, and messages published meanwhile may be lost with that topic.
			n := 1
			await.True(t, func() bool {
				persist(t, b.Publisher(), topic, n, n+1)
				n++
				return l.distinct() > 1
			}, "messages are delivered again")
		})
	}
}

// A broker that cannot be opened, because its Delays cannot, leaves no connection to RabbitMQ behind.
func TestOpen_FailureLeavesNoConnection(t *testing.T) {
	t.Parallel()
	server := services.SharedRabbitMQ(t)
	url := server.VHost(t)
	parsed, err := amqp091.ParseURI(url)
	require.NoError(t, err)
	connections := func() int {
		list, err := server.Ctl(t.Context(), "list_connections", "vhost")
		require.NoError(t, err)
		return strings.Count(list, parsed.Vhost)
	}
	open(t, "watermill+"+url)
	await.Count(t, 1, connections)

	setenv(t, "UNKNOWN_DELAYS_URL", "nosuch://localhost")
	_, err = brokers.Open(t.Context(), with("watermill+"+url, "delays-env=UNKNOWN_DELAYS_URL"))
	require.ErrorIs(t, err, brokers.ErrUnknownScheme)
	await.None(t, func() int { return connections() - 1 }, "connections besides that of the first broker")
}

func deleteTopic(addresses []string, topic string) error {
	cfg := sarama.NewConfig()
	cfg.Admin.Timeout = cfg.Net.ReadTimeout // the default is 3 s, which may be too short on a busy disk
	admin, err := sarama.NewClusterAdmin(addresses, cfg)
	if err != nil {
		return err
	}
	return errors.Join(admin.DeleteTopic(topic), admin.Close())
}
