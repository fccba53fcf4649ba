package kafka_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/pubsub/tests"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/brokertest"
)

func TestConformance(t *testing.T) {
	brokertest.Run(t, brokertest.Harness{
		Backend: func(t *testing.T) brokertest.Backend {
			t.Helper()
			c := cluster(t)
			return brokertest.Backend{Open: func(cfg brokers.Config) (brokers.Broker, error) {
				cfg.URL = "kafka://" + strings.Join(c.ListenAddrs(), ",")
				return brokers.OpenConfig(context.Background(), cfg)
			}}
		},
		Factor: 0.03,
		Quiet:  200 * time.Millisecond,
		Late:   8 * time.Second, // many at once, beside other packages; precision is tested in virtual time
		Watermill: &tests.Features{
			ConsumerGroups:                      true,
			GuaranteedOrder:                     true,
			GuaranteedOrderWithSingleSubscriber: true,
			Persistent:                          true,
			ForceShort:                          true,
		},
	})
}
