package engine_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/brokertest"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/brokers/driver/drivertest"
	"github.com/redrive-go/redrive/brokers/internal/engine"
	"github.com/redrive-go/redrive/brokers/memory"
)

// params are those of the drivers that the faulty broker simulates.
func params() []brokers.Param {
	return []brokers.Param{
		driver.NackPause(),
		{Name: "prefetch", Type: brokers.Int, Default: "1"},
		{Name: "crash-limit", Type: brokers.Int, Default: "5"},
	}
}

// shapes are the kinds of brokers that the engine treats differently.
var shapes = map[string]drivertest.Config{
	"delays natively and delays nacked messages": {
		Traits:       driver.Traits{Local: true, NackPause: true, StablePosition: true},
		Capabilities: brokers.Capabilities{Groups: true, DelayTolerance: 10 * time.Millisecond},
	},
	"delays in steps, requeues nacks at once, counts deliveries": {
		Traits: driver.Traits{Prompt: true, Early: true},
		Capabilities: brokers.Capabilities{
			Groups: true, DeliveryCount: true, DelayTolerance: 100 * time.Millisecond, MaxMessageBytes: 1 << 20,
		},
		Steps: driver.NewSteps(20*time.Millisecond, 50*time.Millisecond, 100*time.Millisecond, 400*time.Millisecond,
			2*time.Second, 10*time.Second, time.Minute, time.Hour),
		Limit: 1<<20 + driver.Headroom,
	},
	"publishes in batches": {
		Traits: driver.Traits{
			Prompt: true, NackPause: true, StablePosition: true, PublishBatch: 100, SettleBatch: 50,
			SettleLinger: 5 * time.Millisecond,
		},
		Capabilities: brokers.Capabilities{
			Groups: true, Durable: true, DeliveryCount: true,
			DelayTolerance: 10 * time.Millisecond,
		},
	},
	"delays in another broker": {
		Traits:       driver.Traits{Name: "cannot delay", Prompt: true},
		Capabilities: brokers.Capabilities{Groups: true, DelayTolerance: 10 * time.Millisecond, MaxDelay: -1},
	},
	"ignores contexts, so its calls run in goroutines": {
		Traits:       driver.Traits{StablePosition: true, Ordered: true},
		Capabilities: brokers.Capabilities{Groups: true, DelayTolerance: 10 * time.Millisecond},
	},
}

func TestConformance(t *testing.T) {
	for name, shape := range shapes {
		t.Run(name, func(t *testing.T) {
			for prefetch, text := range map[string]string{"1": "prefetch 1", "10": "prefetch 10"} {
				t.Run(text, func(t *testing.T) {
					brokertest.Run(t, brokertest.Harness{
						Backend: func(t *testing.T) brokertest.Backend {
							t.Helper()
							return backend(t, shape, prefetch)
						},
						Virtual: true,
						Volume:  300,
					})
				})
			}
		})
	}
}

func backend(t *testing.T, shape drivertest.Config, prefetch string) brokertest.Backend {
	t.Helper()
	var mu sync.Mutex
	server := drivertest.NewServer(shape)
	var delays *memory.Broker
	if shape.Traits.Name == "cannot delay" {
		var err error
		delays, err = memory.New(brokers.Config{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, delays.Close()) })
	}
	return brokertest.Backend{
		Open: func(cfg brokers.Config) (brokers.Broker, error) {
			mu.Lock()
			defer mu.Unlock()
			cfg.URL = "faulty://"
			cfg.Params = brokers.Params{"prefetch": prefetch}
			resolved, err := cfg.Resolve(params())
			if err != nil {
				return nil, err
			}
			made := engine.Config{Config: resolved, Params: params(), Transport: server.Connect()}
			if delays != nil {
				made.Delays = delays
			}
			return engine.New(made)
		},
		Foreign: func(t *testing.T, topic string, m *message.Message) error {
			t.Helper()
			o := driver.Outgoing{Message: m, To: &driver.Destination{Topic: topic}}
			return errors.Join(server.Connect().Publish(t.Context(), []driver.Outgoing{o})...)
		},
		Read: func(t *testing.T, queue string, n int) []*message.Message {
			t.Helper()
			var found []*message.Message
			for range 100 {
				if found = append(found, server.Take(queue, n-len(found))...); len(found) == n {
					break
				}
				<-time.After(time.Minute) // virtual
			}
			<-time.After(time.Minute) // virtual
			require.Empty(t, server.Dead(queue), "more than %d messages in %s", n, queue)
			return found
		},
	}
}
