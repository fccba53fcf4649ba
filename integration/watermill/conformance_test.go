package watermill_test

import (
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/brokertest"
	_ "github.com/redrive-go/redrive/brokers/sqlqueue"
	"github.com/redrive-go/redrive/brokers/watermill/kafka"
	"github.com/redrive-go/redrive/brokers/watermill/sql"
	"github.com/redrive-go/redrive/integration/services"
)

var features = tests.Features{
	ConsumerGroups: true, GuaranteedOrder: true, GuaranteedOrderWithSingleSubscriber: true, Persistent: true,
	ForceShort: true,
}

// The conformance suite, including Watermill's, runs on our broker over the unmodified watermill-kafka.
func TestConformance_Kafka(t *testing.T) {
	url := "watermill+" + services.SharedKafka(t).URL() + "?partitions=1"
	// sarama's metrics start one goroutine that never ends, even after everything is closed, and a new server takes
	// seconds to create its internal topics for the first group.
	b := open(t, with(url, "group=first"))
	subscribe(t, b.Subscriber(), "first")
	require.NoError(t, b.Close())
	brokertest.Run(t, brokertest.Harness{
		Backend: func(t *testing.T) brokertest.Backend {
			t.Helper()
			delays := newDelays(t)
			return brokertest.Backend{Open: func(cfg brokers.Config) (brokers.Broker, error) {
				cfg.URL = url
				return kafka.New(t.Context(), kafka.Config{Broker: cfg, Delays: delays()})
			}}
		},
		Factor: 0.05, Late: time.Minute, Wait: 2 * time.Minute, Volume: 300, Watermill: &features, TopicsApart: true,
		Except: map[string]string{
			"Publish_ToAMissingTopicThatMustExistIsRefused": "a Watermill Publisher does not report whether a topic exists",
		},
	})
}

// The conformance suite, including Watermill's, runs on our broker over the unmodified watermill-sql.
func TestConformance_SQL(t *testing.T) {
	for name, database := range databases {
		t.Run(name, func(t *testing.T) {
			native := database(t)
			url := "watermill+" + native
			brokertest.Run(t, brokertest.Harness{
				Backend: func(t *testing.T) brokertest.Backend {
					t.Helper()
					// Delayed messages wait in the native queue of the same database.
					delays := sync.OnceValue(func() brokers.Broker { return open(t, with(native, "x-max-connections=3")) })
					other := sync.OnceValue(func() string { return "watermill+" + database(t) })
					open := func(url string, cfg brokers.Config) (brokers.Broker, error) {
						cfg.URL = with(url, "x-max-connections=2&x-poll=20ms")
						return sql.New(t.Context(), sql.Config{Broker: cfg, Delays: delays()})
					}
					return brokertest.Backend{
						Open:      func(cfg brokers.Config) (brokers.Broker, error) { return open(url, cfg) },
						OpenOther: func(cfg brokers.Config) (brokers.Broker, error) { return open(other(), cfg) },
					}
				},
				// The limits are larger than elsewhere, because every open transaction of the server delays deliveries, including
				// transactions of other cases.
				Factor: 0.15, Late: time.Minute, Wait: 2 * time.Minute, Volume: 300, Watermill: &features,
				Except: map[string]string{
					"Publish_ToAMissingTopicThatMustExistIsRefused": "a Watermill Publisher does not report whether a topic exists",
				},
			})
		})
	}
}
