package gochannel_test

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wgochannel "github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/brokertest"
	"github.com/redrive-go/redrive/brokers/watermill/gochannel"
)

var quiet = slog.New(slog.DiscardHandler)

// The conformance suite and Watermill's own run in virtual time.
func TestConformance(t *testing.T) {
	brokertest.Run(t, brokertest.Harness{
		Virtual: true,
		Volume:  300,
		Backend: func(t *testing.T) brokertest.Backend {
			t.Helper()
			name := gochannel.Scheme + "://" + watermill.NewShortUUID()
			keeper, err := brokers.OpenConfig(t.Context(), brokers.Config{URL: name, Logger: quiet})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, keeper.Close()) })
			return brokertest.Backend{Open: func(cfg brokers.Config) (brokers.Broker, error) {
				cfg.URL = name
				return brokers.OpenConfig(t.Context(), cfg)
			}}
		},
		// The keeper makes the topics persistent.
		Watermill: &tests.Features{ConsumerGroups: true, Persistent: true, ForceShort: true},
		Except: map[string]string{
			"Publish_ToAMissingTopicThatMustExistIsRefused": "a Watermill Publisher does not report whether a topic exists",
		},
	})
}

// Brokers with the same name share topics; those without a name do not.
func TestName_IsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for url, want := range map[string]bool{"gochannel://shop": true, "gochannel://": false} {
			one, err := brokers.Open(t.Context(), url)
			require.NoError(t, err)
			two, err := brokers.Open(t.Context(), url)
			require.NoError(t, err)
			messages, err := two.Subscriber().Subscribe(t.Context(), "orders")
			require.NoError(t, err)
			require.NoError(t, one.Publisher().Publish("orders", message.NewMessage("1", nil)))
			select {
			case m := <-messages:
				require.True(t, want)
				m.Ack()
			case <-time.After(time.Hour):
				require.False(t, want)
			}
			require.NoError(t, one.Close())
			require.NoError(t, two.Close())
		}
		again, err := brokers.Open(t.Context(), "gochannel://shop")
		require.NoError(t, err)
		messages, err := again.Subscriber().Subscribe(t.Context(), "orders")
		require.NoError(t, err)
		select {
		case <-messages:
			require.Fail(t, "nothing is left once the last broker was closed")
		case <-time.After(time.Hour):
		}
		require.NoError(t, again.Close())
		_, err = brokers.Open(t.Context(), "gochannel://shop/orders")
		require.ErrorContains(t, err, "no path")
	})
}

// A GoChannel of the caller can be shared with plain Watermill code in both directions.
func TestPubSub_OfTheCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pubSub := wgochannel.NewGoChannel(wgochannel.Config{OutputChannelBuffer: 10}, watermill.NopLogger{})
		b, err := gochannel.New(gochannel.Config{PubSub: pubSub, Broker: brokers.Config{Logger: quiet}})
		require.NoError(t, err)
		ours, err := b.Subscriber().Subscribe(t.Context(), "orders")
		require.NoError(t, err)
		theirs, err := pubSub.Subscribe(t.Context(), "paid")
		require.NoError(t, err)
		sent := message.NewMessage("1", []byte("x"))
		sent.Metadata["customer"] = "7"
		require.NoError(t, pubSub.Publish("orders", sent))
		m := <-ours
		require.True(t, sent.Equals(m))
		m.Ack()
		require.NoError(t, b.Publisher().Publish("paid", sent))
		m = <-theirs
		require.Equal(t, "7", m.Metadata["customer"])
		m.Ack()
		require.NoError(t, b.Close())
		require.NoError(t, pubSub.Close())
	})
}
