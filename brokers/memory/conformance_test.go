package memory_test

import (
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/brokertest"
	"github.com/redrive-go/redrive/brokers/memory"
)

// backend connects all brokers of a case to the queues of the first one.
func backend(t *testing.T) brokertest.Backend {
	t.Helper()
	return backendWith(t, nil)
}

func backendWith(t *testing.T, params brokers.Params) brokertest.Backend {
	t.Helper()
	var (
		mu    sync.Mutex
		first *memory.Broker
	)
	other := func(cfg brokers.Config) (brokers.Broker, error) { return memory.New(cfg) }
	return brokertest.Backend{OpenOther: other, Open: func(cfg brokers.Config) (brokers.Broker, error) {
		cfg.Params = params
		mu.Lock()
		defer mu.Unlock()
		if first == nil {
			b, err := memory.New(cfg)
			if err != nil {
				return nil, err
			}
			first = b
			t.Cleanup(func() { require.NoError(t, b.Close()) })
		}
		return first.Connect(func(c *brokers.Config) { *c = cfg; c.URL = "mem://" })
	}}
}

func TestConformance(t *testing.T) {
	brokertest.Run(t, brokertest.Harness{
		Backend: backend,
		Virtual: true,
		Volume:  2000,
		Watermill: &tests.Features{
			ConsumerGroups:                      true,
			GuaranteedOrder:                     true,
			GuaranteedOrderWithSingleSubscriber: true,
			Persistent:                          true,
			ForceShort:                          true,
		},
	})
}

// The same suite in real time, with ten seconds scaled to 20 ms, as it runs on servers.
func TestConformance_InRealTime(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	brokertest.Run(t, brokertest.Harness{
		Backend: func(t *testing.T) brokertest.Backend {
			t.Helper()
			return backendWith(t, brokers.Params{"max-message": "1MiB"})
		},
		Factor: 0.002,
		Quiet:  60 * time.Millisecond,
		Volume: 200,
	})
}
