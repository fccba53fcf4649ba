package rabbitmq_test

import (
	"maps"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/brokertest"
	_ "github.com/redrive-go/redrive/brokers/rabbitmq"
	"github.com/redrive-go/redrive/integration/services"
)

// The conformance suite, including Watermill's, runs on quorum queues and on classic queues.
func TestConformance(t *testing.T) { conforms(t, services.SharedRabbitMQ(t), nil) }

func TestConformance_ClassicQueues(t *testing.T) {
	conforms(t, services.SharedRabbitMQ(t), brokers.Params{"queue-type": "classic", "retry-queue-type": "classic"})
}

func conforms(t *testing.T, server *services.Rabbit, params brokers.Params) {
	t.Helper()
	brokertest.Run(t, brokertest.Harness{
		Backend: func(t *testing.T) brokertest.Backend {
			t.Helper()
			url := server.VHost(t)
			open := func(cfg brokers.Config, url string) (brokers.Broker, error) {
				cfg.URL = url
				cfg.Params = maps.Clone(params)
				return brokers.OpenConfig(t.Context(), cfg)
			}
			return brokertest.Backend{
				Open:      func(cfg brokers.Config) (brokers.Broker, error) { return open(cfg, url) },
				OpenOther: func(cfg brokers.Config) (brokers.Broker, error) { return open(cfg, server.VHost(t)) },
				Foreign: func(t *testing.T, topic string, m *message.Message) error {
					t.Helper()
					msg := amqp.Publishing{MessageId: m.UUID, Body: m.Payload, Headers: amqp.Table{}}
					for key, value := range m.Metadata {
						msg.Headers[key] = value
					}
					dialPlain(t, url).send("redrive", topic, msg)
					return nil
				},
				Erase: func(t *testing.T, _ string, n brokers.Names) {
					t.Helper()
					_, err := dialPlain(t, url).ch.QueueDelete(n.Queue, false, false, false)
					require.NoError(t, err)
				},
				Read: func(t *testing.T, queue string, n int) []*message.Message {
					t.Helper()
					return readPlain(t, url, queue, n)
				},
			}
		},
		Factor: 0.05,
		Wait:   patience,
		Late:   4 * time.Second, // dozens of cases declare queues on the same two cores
		Watermill: &tests.Features{
			ConsumerGroups:                      true,
			GuaranteedOrder:                     true,
			GuaranteedOrderWithSingleSubscriber: true,
			Persistent:                          true,
			ForceShort:                          true,
		},
	})
}
