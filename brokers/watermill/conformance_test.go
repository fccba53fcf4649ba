package watermill_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/brokertest"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/brokers/watermill"
)

// server is a Pub/Sub with groups and without delays: the memory broker, of which only the publisher and the subscriber
// are used.
type server struct {
	mu     sync.Mutex
	pubSub *memory.Broker
	other  *memory.Broker
	delays *memory.Broker
}

func (s *server) open(t *testing.T, server string, cfg brokers.Config) (brokers.Broker, error) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pubSub == nil {
		var err error
		s.pubSub, err = memory.New(brokers.Config{Naming: cfg.Naming})
		require.NoError(t, err)
		s.other, err = memory.New(brokers.Config{Naming: cfg.Naming})
		require.NoError(t, err)
		s.delays, err = memory.New(brokers.Config{})
		require.NoError(t, err)
		t.Cleanup(func() {
			require.NoError(t, errors.Join(s.pubSub.Close(), s.other.Close()))
			require.NoError(t, s.delays.Close())
		})
	}
	pubSub := s.pubSub
	if server == "other" {
		pubSub = s.other
	}
	cfg.URL = ""
	return watermill.New(watermill.Config{
		Publisher: pubSub.Publisher(),
		NewSubscriber: func(group string) (message.Subscriber, error) {
			return pubSub.Subscriber(brokers.WithGroup(group)), nil
		},
		Delays: s.delays, Server: server, Competing: true, Ordered: true, Broker: cfg,
	})
}

func TestConformance(t *testing.T) {
	brokertest.Run(t, brokertest.Harness{
		Virtual: true,
		Volume:  300,
		Backend: func(t *testing.T) brokertest.Backend {
			t.Helper()
			s := &server{}
			return brokertest.Backend{
				Open:      func(cfg brokers.Config) (brokers.Broker, error) { return s.open(t, "one", cfg) },
				OpenOther: func(cfg brokers.Config) (brokers.Broker, error) { return s.open(t, "other", cfg) },
			}
		},
		Except: map[string]string{
			"Publish_ToAMissingTopicThatMustExistIsRefused": "a Watermill Publisher does not report whether a topic exists",
		},
	})
}
