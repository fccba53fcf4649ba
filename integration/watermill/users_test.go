package watermill_test

import (
	"strings"
	"testing"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/watermill/amqp"
	"github.com/redrive-go/redrive/brokers/watermill/sql"
	"github.com/redrive-go/redrive/integration/services"
)

// reversing is a user's marshaler, of watermill-amqp's interface type: it stores bodies backwards.
type reversing struct{ wamqp.DefaultMarshaler }

func (r reversing) Marshal(m *message.Message) (amqp091.Publishing, error) {
	p, err := r.DefaultMarshaler.Marshal(m)
	p.Body = reversed(m.Payload)
	return p, err
}

func (r reversing) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	d.Body = reversed(d.Body)
	return r.DefaultMarshaler.Unmarshal(d)
}

func reversed(b []byte) []byte {
	var out strings.Builder
	for i := range b {
		out.WriteByte(b[len(b)-1-i])
	}
	return []byte(out.String())
}

// The broker uses a user's marshaler and is compatible with another service that has the same one. The test for
// watermill-kafka is in brokers/watermill/kafka.
func TestUsers_Marshaler(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	b, err := amqp.New(t.Context(), amqp.Config{
		Broker: brokers.Config{URL: "watermill+" + url, Group: "billing"}, Delays: newDelays(t)(), Marshaler: reversing{},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	_, sub := onAMQP(url).plain(t, "shipping") // with the default marshaler
	t.Cleanup(func() { require.NoError(t, sub.Close()) })
	theirs, ours := subscribe(t, sub, "orders"), subscribe(t, b.Subscriber(), "orders")
	require.NoError(t, b.Publisher().Publish("orders", message.NewMessage("1", []byte("order"))))
	for want, messages := range map[string]<-chan *message.Message{"order": ours, "redro": theirs} {
		m := receive(t, messages)
		require.Equal(t, want, string(m.Payload))
		require.Equal(t, "1", m.UUID)
		m.Ack()
	}
}

// The broker uses the tables of a user's schema and offsets adapters, of watermill-sql's interface types.
func TestUsers_SchemaAndOffsets(t *testing.T) {
	t.Parallel()
	url := databases["PostgreSQL"](t)
	b, err := sql.New(t.Context(), sql.Config{
		Broker: brokers.Config{URL: with("watermill+"+url, "x-poll=20ms"), Group: "billing"}, Delays: newDelays(t)(),
		Schema: wsql.DefaultPostgreSQLSchema{GenerateMessagesTableName: func(topic string) string {
			return `"shop_` + topic + `"`
		}},
		Offsets: wsql.DefaultPostgreSQLOffsetsAdapter{
			GenerateMessagesOffsetsTableName: func(topic string) string { return `"shop_offsets_` + topic + `"` },
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	messages := subscribe(t, b.Subscriber(), "orders")
	sent := sample("1")
	require.NoError(t, b.Publisher().Publish("orders", sent))
	m := receive(t, messages)
	require.Equal(t, sent.UUID, m.UUID)
	m.Ack()
	var stored int
	require.NoError(t, openDB(t, url).QueryRowContext(t.Context(), `SELECT count(*) FROM "shop_orders"`).Scan(&stored))
	require.Equal(t, 1, stored)
}
