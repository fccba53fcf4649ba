package rabbitmq_test

import (
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/brokertest"
	"github.com/redrive-go/redrive/brokers/memory"
	wamqp "github.com/redrive-go/redrive/brokers/watermill/amqp"
	"github.com/redrive-go/redrive/integration/services"
)

// The conformance suite runs on an unmodified watermill-amqp.
func TestConformance_WatermillAMQP(t *testing.T) {
	server := services.SharedRabbitMQ(t)
	brokertest.Run(t, brokertest.Harness{
		Backend: func(t *testing.T) brokertest.Backend {
			t.Helper()
			url := server.VHost(t)
			delays := sync.OnceValue(func() brokers.Broker {
				b, err := memory.New(brokers.Config{})
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, b.Close()) })
				return b
			})
			open := func(url string, cfg brokers.Config) (brokers.Broker, error) {
				cfg.URL = "watermill+" + url
				return wamqp.New(t.Context(), wamqp.Config{Broker: cfg, Delays: delays()})
			}
			return brokertest.Backend{
				Open:      func(cfg brokers.Config) (brokers.Broker, error) { return open(url, cfg) },
				OpenOther: func(cfg brokers.Config) (brokers.Broker, error) { return open(server.VHost(t), cfg) },
				Read: func(t *testing.T, queue string, n int) []*message.Message {
					t.Helper()
					return readPlain(t, url, queue, n)
				},
			}
		},
		Factor:    0.05,
		Wait:      patience,
		Late:      4 * time.Second,
		Volume:    300,
		Watermill: &tests.Features{ConsumerGroups: true, Persistent: true, ForceShort: true},
		Except: map[string]string{
			"Publish_ToAMissingTopicThatMustExistIsRefused": "a Watermill Publisher does not report whether a topic exists",
			"Publish_WithoutAConsumerStoresOrRefuses": "watermill-amqp's fanout exchange drops what is published before " +
				"a group has a queue",
		},
	})
}
