package sqlqueue_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/pubsub/tests"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/brokertest"
)

// TestConformance runs the suite for brokers, and Watermill's own, on every server.
func TestConformance(t *testing.T) {
	for name, database := range servers {
		t.Run(name, func(t *testing.T) {
			url := database(t)
			brokertest.Run(t, brokertest.Harness{
				Backend: func(t *testing.T) brokertest.Backend {
					t.Helper()
					return brokertest.Backend{Open: func(cfg brokers.Config) (brokers.Broker, error) {
						cfg.URL = with(url, "x-max-connections=4")
						return brokers.OpenConfig(t.Context(), cfg)
					}}
				},
				Factor: 0.02,
				Late:   4 * time.Second, // the cases run side by side; TestDelay_IsExact holds the accuracy
				Watermill: &tests.Features{
					ConsumerGroups:                      true,
					GuaranteedOrder:                     true,
					GuaranteedOrderWithSingleSubscriber: true,
					Persistent:                          true,
					ForceShort:                          true,
				},
			})
		})
	}
}
