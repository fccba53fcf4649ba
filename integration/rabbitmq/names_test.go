package rabbitmq_test

import (
	"log/slog"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
	"github.com/redrive-go/redrive/middleware"
)

// Names with dots may meet: two processes read one queue for two topics, and each gets a part of the other's messages.
// Neither can see the other, but a message of the other topic is reported.
func TestNames_OfTwoTopicsMeet(t *testing.T) {
	t.Parallel()
	server := services.SharedRabbitMQ(t)
	for name, c := range map[string]struct{ topic, group, otherTopic, otherGroup string }{
		"dots":          {"orders", "eu.mail", "orders.eu", "mail"},
		"without group": {"orders", "eu", "orders.eu", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, log := server.VHost(t), &logs{}
			open := func(name string) *rabbitmq.Broker {
				return openBroker(t, url, group(name),
					func(c *brokers.Config) { c.Logger = slog.New(slog.NewTextHandler(log, nil)) })
			}
			b, other := open(c.group), open(c.otherGroup)
			require.NoError(t, other.Apply(t.Context(), other.Plan(c.otherTopic))) // its process is down
			s := serve(t, b, c.topic, middleware.Config{MaxAttempts: 1}, succeeds)
			p := dialPlain(t, url)
			queue := b.Plan(c.topic).Queues[0].Name
			p.send("", queue, amqp.Publishing{MessageId: "redriven"})
			p.send("redrive", c.topic, amqp.Publishing{MessageId: "ours"})
			require.Equal(t, "redriven", s.next().message.UUID)
			require.Equal(t, "ours", s.next().message.UUID)
			require.False(t, log.contains("other_topic="))

			require.NoError(t, other.Publisher().Publish(c.otherTopic, message.NewMessage("theirs", nil)))
			require.Equal(t, "theirs", s.next().message.UUID)
			await.True(t, func() bool { return log.contains("other_topic=" + c.otherTopic) })
		})
	}
}

// What an operator binds to the queue on purpose, and what is published to it directly, are its messages too.
func TestNames_BindingsOfAnOperator(t *testing.T) {
	t.Parallel()
	url, log := services.SharedRabbitMQ(t).VHost(t), &logs{}
	b := openBroker(t, url, group("mail"),
		func(c *brokers.Config) { c.Logger = slog.New(slog.NewTextHandler(log, nil)) })
	s := serve(t, b, "orders", middleware.Config{MaxAttempts: 1}, succeeds)
	p := dialPlain(t, url)
	for _, key := range []string{"order", "orders.legacy", "invoices"} {
		require.NoError(t, p.ch.QueueBind("orders.mail", key, "redrive", false, nil))
		p.send("redrive", key, amqp.Publishing{MessageId: key})
		require.Equal(t, key, s.next().message.UUID)
	}
	require.False(t, log.contains("other_topic="))
}
