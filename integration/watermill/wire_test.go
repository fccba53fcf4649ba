package watermill_test

import (
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	wkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/integration/services"
)

// adapter is one of Watermill's own as in a plain service, and the URL of our broker on it.
type adapter struct {
	url   string // with group=billing
	plain func(t *testing.T, group string) (message.Publisher, message.Subscriber)
}

// adapters are the three adapters, the SQL one on each database, on servers that all tests share.
var adapters = map[string]func(t *testing.T) adapter{
	"RabbitMQ": func(t *testing.T) adapter {
		t.Helper()
		return onAMQP(services.SharedRabbitMQ(t).VHost(t))
	},
	"Kafka": func(t *testing.T) adapter {
		t.Helper()
		return onKafka(services.SharedKafka(t).Brokers)
	},
	"PostgreSQL": func(t *testing.T) adapter { t.Helper(); return onSQL(t, databases["PostgreSQL"](t)) },
	"MariaDB":    func(t *testing.T) adapter { t.Helper(); return onSQL(t, databases["MariaDB"](t)) },
	"MySQL":      func(t *testing.T) adapter { t.Helper(); return onSQL(t, databases["MySQL"](t)) },
}

func onAMQP(url string) adapter {
	return adapter{
		url: with("watermill+"+url, "group=billing"),
		plain: func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
			t.Helper()
			cfg := wamqp.NewDurablePubSubConfig(url, func(topic string) string { return topic + "." + group })
			pub, err := wamqp.NewPublisher(cfg, watermill.NopLogger{})
			require.NoError(t, err)
			sub, err := wamqp.NewSubscriber(cfg, watermill.NopLogger{})
			require.NoError(t, err)
			return pub, sub
		},
	}
}

func onKafka(addresses []string) adapter {
	return adapter{
		url: "watermill+kafka://" + strings.Join(addresses, ",") + "?partitions=1&group=billing",
		plain: func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
			t.Helper()
			pub, err := wkafka.NewPublisher(wkafka.PublisherConfig{Brokers: addresses, Marshaler: wkafka.DefaultMarshaler{}},
				watermill.NopLogger{})
			require.NoError(t, err)
			cfg := wkafka.DefaultSaramaSubscriberConfig()
			cfg.Consumer.Offsets.Initial = sarama.OffsetOldest
			sub, err := wkafka.NewSubscriber(wkafka.SubscriberConfig{
				Brokers: addresses, Unmarshaler: wkafka.DefaultMarshaler{}, OverwriteSaramaConfig: cfg, ConsumerGroup: group,
				InitializeTopicDetails: &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: 1},
			}, watermill.NopLogger{})
			require.NoError(t, err)
			return pub, sub
		},
	}
}

func onSQL(t *testing.T, url string) adapter {
	t.Helper()
	db := openDB(t, url)
	var (
		schema  wsql.SchemaAdapter  = wsql.DefaultPostgreSQLSchema{}
		offsets wsql.OffsetsAdapter = wsql.DefaultPostgreSQLOffsetsAdapter{}
	)
	if strings.HasPrefix(url, "mysql") {
		schema, offsets = wsql.DefaultMySQLSchema{}, wsql.DefaultMySQLOffsetsAdapter{}
	}
	return adapter{
		url: with("watermill+"+url, "x-group=billing&x-poll=20ms"),
		plain: func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
			t.Helper()
			pub, err := wsql.NewPublisher(db, wsql.PublisherConfig{SchemaAdapter: schema, AutoInitializeSchema: true},
				watermill.NopLogger{})
			require.NoError(t, err)
			sub, err := wsql.NewSubscriber(db, wsql.SubscriberConfig{
				ConsumerGroup: group, SchemaAdapter: schema, OffsetsAdapter: offsets, InitializeSchema: true,
			}, watermill.NopLogger{})
			require.NoError(t, err)
			return pub, sub
		},
	}
}

// openDB opens the database of a URL from package services, as an application would.
func openDB(t testing.TB, url string) *sql.DB {
	t.Helper()
	driver, dsn := "pgx", url
	if strings.HasPrefix(url, "mysql:") {
		var err error
		driver = "mysql"
		dsn, err = services.MySQLDSN(url)
		require.NoError(t, err)
	}
	db, err := sql.Open(driver, dsn)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

func onEach(t *testing.T, test func(t *testing.T, a adapter)) {
	t.Helper()
	for name, make := range adapters {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, make(t))
		})
	}
}

func sample(id string) *message.Message {
	m := message.NewMessage(id, []byte(`{"order": "`+id+`"}`))
	m.Metadata["customer"] = "7 é"
	return m
}

// A plain Watermill service and one on our broker share a topic: each reads the other's messages, in tables, queues and
// topics that the plain one has created.
func TestWire_BothDirections(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, a adapter) {
		t.Helper()
		pub, sub := a.plain(t, "shipping")
		defer func() { require.NoError(t, errors.Join(pub.Close(), sub.Close())) }()
		topic := "orders" + strings.ToLower(watermill.NewShortUUID()[:8])
		require.NoError(t, sub.(message.SubscribeInitializer).SubscribeInitialize(topic), "the plain service creates it")
		theirs := subscribe(t, sub, topic)
		b := open(t, a.url)
		ours := subscribe(t, b.Subscriber(), topic)

		for sender, p := range map[string]message.Publisher{"plain": pub, "ours": b.Publisher()} {
			sent := sample(sender)
			require.NoError(t, p.Publish(topic, sent))
			for reader, messages := range map[string]<-chan *message.Message{"plain": theirs, "ours": ours} {
				m := receive(t, messages)
				require.Equal(t, sent.UUID, m.UUID, "%s reads %s", reader, sender)
				require.JSONEq(t, string(sent.Payload), string(m.Payload)) // MySQL normalizes JSON
				require.Equal(t, sent.Metadata["customer"], m.Metadata["customer"])
				m.Ack()
			}
		}
	})
}

// The members of one group move to our broker and back, and each continues at the position of the other.
func TestWire_OneGroupMovesAndBack(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, a adapter) {
		t.Helper()
		topic := "orders" + strings.ToLower(watermill.NewShortUUID()[:8])
		pub, sub := a.plain(t, "billing")
		require.NoError(t, sub.(message.SubscribeInitializer).SubscribeInitialize(topic))
		var sent, got []string
		publish := func(n int) {
			for range n {
				m := sample(fmt.Sprintf("m-%d", len(sent)))
				sent = append(sent, m.UUID)
				require.NoError(t, pub.Publish(topic, m))
			}
		}
		// read receives messages until it has n new ones, because an ack right before a plain service closes may be lost.
		read := func(messages <-chan *message.Message, n int) {
			for len(got) < n {
				m := receive(t, messages)
				if !slices.Contains(got, m.UUID) {
					got = append(got, m.UUID)
				}
				m.Ack()
			}
		}
		publish(6)
		read(subscribe(t, sub, topic), 3)
		require.NoError(t, sub.Close())

		b, err := brokers.Open(t.Context(), a.url)
		require.NoError(t, err)
		read(subscribe(t, b.Subscriber(), topic), 5)
		publish(2)
		require.NoError(t, b.Close())

		_, sub = a.plain(t, "billing")
		messages := subscribe(t, sub, topic)
		m := receive(t, messages)
		require.Equal(t, "m-5", m.UUID, "messages acked right before Close are not redelivered")
		got = append(got, m.UUID)
		m.Ack()
		read(messages, 8)
		require.Equal(t, sent, got)
		require.NoError(t, errors.Join(pub.Close(), sub.Close()))
	})
}
