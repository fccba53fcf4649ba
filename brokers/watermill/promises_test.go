package watermill_test

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/brokers/watermill"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

// able is a Pub/Sub that can do everything that Watermill's can.
func able(delays brokers.Broker) watermill.Config {
	return watermill.Config{
		Publisher: nowhere{}, Delays: delays, Server: "test",
		NewSubscriber: func(string) (message.Subscriber, error) { return newRude(), nil },
		Durable:       true, Ordered: true, MaxMessageBytes: 1 << 20, MaxHeaderBytes: 64 << 10, MaxConcurrency: 64,
	}
}

// durable stands for a SQL queue, because memory is not durable.
type durable struct{ brokers.Broker }

func (d durable) Capabilities() brokers.Capabilities {
	caps := d.Broker.Capabilities()
	caps.Durable, caps.MaxDelay = true, 24*time.Hour
	return caps
}

// Each field of Needs is a promise that a Pub/Sub may be unable to keep: if so, it is refused at start with a remedy,
// and otherwise it is accepted. Some fields can be met by no adapter.
func TestPromises_AreRefusedAtStart(t *testing.T) {
	for need, c := range map[string]struct {
		needs   brokers.Needs
		refusal string
		never   bool
	}{
		"Durable": {brokers.Needs{Durable: true}, "open a broker that keeps them", false},
		"Ordered": {brokers.Needs{Ordered: true}, "use concurrency 1", false},
		"Groups":  {brokers.Needs{Groups: true}, "give each service its own topic", false},
		"Delays":  {brokers.Needs{Delays: []time.Duration{time.Hour}}, "it cannot delay messages", false},
		"MessageBytes": {
			brokers.Needs{MessageBytes: 1 << 10}, "its largest message has 512 bytes, not 1024: raise the limit", false,
		},
		"Concurrency":  {brokers.Needs{Concurrency: 8}, "it runs at most 1 handlers at once, not 8: lower", false},
		"Patterns":     {brokers.Needs{Patterns: true}, "subscribe to each event by its name", true},
		"Transactions": {brokers.Needs{Transactions: true}, "open the queue of your database", true},
		"CrashLimit":   {brokers.Needs{CrashLimit: true}, "use quorum queues on RabbitMQ or a SQL queue", true},
	} {
		t.Run(need, func(t *testing.T) {
			dull, err := watermill.New(watermill.Config{
				Publisher: nowhere{}, Subscriber: newRude(), MaxMessageBytes: 512, MaxConcurrency: 1,
				Broker: brokers.Config{Logger: quiet, Concurrency: 2},
			})
			require.NoError(t, err)
			err = brokers.Require(dull, c.needs)
			require.ErrorIs(t, err, brokers.ErrUnsupported)
			require.ErrorContains(t, err, c.refusal)

			memory, err := memory.New(brokers.Config{Logger: quiet})
			require.NoError(t, err)
			cfg := able(durable{memory})
			cfg.Broker = brokers.Config{Logger: quiet}
			bright, err := watermill.New(cfg)
			require.NoError(t, err)
			err = brokers.Require(bright, c.needs)
			if c.never {
				require.ErrorContains(t, err, c.refusal)
			} else {
				require.NoError(t, err)
			}
			require.NoError(t, errors.Join(dull.Close(), bright.Close(), memory.Close()))
		})
	}
	require.Equal(t, 9, reflect.TypeFor[brokers.Needs]().NumField(), "a new field of Needs needs a row above")
}

// Without brokers.Require, a promise that a configuration or a call needs is refused when it is first needed, before
// any message.
func TestPromises_AreRefusedWhereTheyAreNeeded(t *testing.T) {
	delays, err := memory.New(brokers.Config{Logger: quiet})
	require.NoError(t, err)
	dull := openRude(t, newRude())
	short, err := watermill.New(watermill.Config{
		Publisher: nowhere{}, Subscriber: newRude(), Delays: durable{delays}, Server: "test",
		MaxMessageBytes: 512, MaxHeaderBytes: 64,
		Broker: brokers.Config{Logger: quiet},
	})
	require.NoError(t, err)
	subscribe := func(b brokers.Broker, topic string, opts ...brokers.SubscriberOption) error {
		_, err := b.Subscriber(opts...).Subscribe(t.Context(), topic)
		return err
	}
	pipeline := func(b brokers.Broker, backoff middleware.Backoff) error {
		_, err := middleware.New(middleware.Config{Rescheduler: b, DeadLetters: b, Backoff: backoff})
		return err
	}
	delayed := message.NewMessage("1", nil)
	envelope.SetDelay(delayed, time.Minute)
	long := message.NewMessage("1", nil)
	long.Metadata["long"] = string(make([]byte, 65))
	const byName = "subscribe to each topic by its name"
	for name, c := range map[string]struct {
		err, is error
		refusal string
	}{
		"a retry": {pipeline(dull, nil), brokers.ErrUnsupported, "configure Delays"},
		"a retry in two days": {
			pipeline(short, middleware.Constant(48*time.Hour)), brokers.ErrUnsupported,
			"the longest is 24h",
		},
		"a first delivery": {dull.Publisher().Publish("orders", delayed), brokers.ErrUnsupported, "cannot delay as configured"},
		"a group": {
			subscribe(dull, "orders", brokers.WithGroup("billing")), brokers.ErrUnsupported,
			"NewSubscriber",
		},
		"a pattern":   {subscribe(dull, "orders.*"), brokers.ErrUnsupported, byName},
		"patterns":    {subscribe(dull, "orders", brokers.WithPatterns("a.*")), brokers.ErrUnsupported, byName},
		"a parameter": {subscribe(dull, "orders", brokers.WithParam("crash-limit", "5")), nil, "nack-pause"},
		"a large message": {
			short.Publisher().Publish("orders", message.NewMessage("1", make([]byte, 600))), brokers.ErrTooLarge, "512",
		},
		"large headers": {short.Publisher().Publish("orders", long), brokers.ErrTooLarge, "64"},
	} {
		require.Error(t, c.err, name)
		require.ErrorContains(t, c.err, c.refusal, name)
		if c.is != nil {
			require.ErrorIs(t, c.err, c.is, name)
		}
	}
	require.NoError(t, errors.Join(dull.Close(), short.Close(), delays.Close()))
	require.ErrorIs(t, dull.Ping(t.Context()), brokers.ErrClosed)
}
