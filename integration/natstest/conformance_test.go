package natstest

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/brokertest"
	_ "github.com/redrive-go/redrive/brokers/nats"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/natsserver"
)

// The conformance suite includes Watermill's own.
func TestConformance(t *testing.T) {
	url := natsserver.Start(t).URL()
	brokertest.Run(t, brokertest.Harness{
		Backend: func(t *testing.T) brokertest.Backend {
			t.Helper()
			open := func(cfg brokers.Config, url string) (brokers.Broker, error) {
				cfg.URL = url
				cfg.Params = brokers.Params{"ack-wait": "3s"}
				return brokers.OpenConfig(t.Context(), cfg)
			}
			return brokertest.Backend{
				Open: func(cfg brokers.Config) (brokers.Broker, error) { return open(cfg, url) },
				OpenOther: func(cfg brokers.Config) (brokers.Broker, error) {
					return open(cfg, natsserver.Start(t).URL())
				},
				Foreign: func(t *testing.T, topic string, m *message.Message) error {
					t.Helper()
					foreign := &nats.Msg{Subject: topic, Header: nats.Header{"_watermill_message_uuid": {m.UUID}}, Data: m.Payload}
					for key, value := range m.Metadata {
						foreign.Header[key] = []string{value}
					}
					_, err := plain(t, url).PublishMsg(t.Context(), foreign)
					return err
				},
				Erase: func(t *testing.T, topic string, _ brokers.Names) {
					t.Helper()
					require.NoError(t, plain(t, url).DeleteStream(t.Context(), topic))
				},
			}
		},
		Factor: 0.05,
		Wait:   await.Patience,
		Late:   4 * time.Second, // dozens of cases on the same two cores
		Volume: 500,
		Watermill: &tests.Features{
			ConsumerGroups:                      true,
			GuaranteedOrder:                     true,
			GuaranteedOrderWithSingleSubscriber: true,
			Persistent:                          true,
			ForceShort:                          true,
		},
	})
}
