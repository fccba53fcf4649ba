package watermill_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/brokers/driver/drivertest"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/brokers/portable"
	"github.com/redrive-go/redrive/brokers/watermill"
	"github.com/redrive-go/redrive/envelope"
)

// place is a broker in memory, which the test closes.
func place(t *testing.T) *memory.Broker {
	t.Helper()
	b, err := memory.New(brokers.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

// adapterOf makes a broker of a Pub/Sub.
func adapterOf(t *testing.T, url, server string, delays brokers.Broker) brokers.Broker {
	t.Helper()
	pubSub := place(t)
	b, err := watermill.New(watermill.Config{
		Publisher: pubSub.Publisher(), Subscriber: pubSub.Subscriber(), Delays: delays, Server: server,
		Broker: brokers.Config{URL: url},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

// native is a broker of another driver.
func native(t *testing.T, scheme string, traits driver.Traits) brokers.Broker {
	t.Helper()
	traits.Name = "native"
	cfg, err := brokers.Config{URL: scheme + "://host"}.Resolve(nil)
	require.NoError(t, err)
	b, err := portable.New(portable.Config{Config: cfg, Transport: drivertest.NewServer(drivertest.Config{
		Traits: traits, Capabilities: brokers.Capabilities{Scheme: scheme},
	}).Connect()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

// Reschedule is refused where no consumer like the one that failed reads what it stores, and only there.
func TestReschedule_OfMessagesFromOtherBrokers(t *testing.T) {
	delays := place(t)
	connected, err := delays.Connect(nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, connected.Close()) })
	kafka := adapterOf(t, "watermill+kafka://one", "server", delays)
	postgres := adapterOf(t, "watermill+postgres://host/db", "server", delays)
	byQueue := driver.Traits{ConsumerIsQueue: true}

	for name, c := range map[string]struct {
		from, to brokers.Broker
		refused  bool
	}{
		"the same server, opened again":  {adapterOf(t, "watermill+kafka://two", "server", delays), kafka, false},
		"Delays, opened again":           {adapterOf(t, "watermill+kafka://one", "server", connected), kafka, false},
		"Delays in a wrapper":            {adapterOf(t, "watermill+kafka://one", "server", wrapped{delays}), kafka, false},
		"another spelling":               {adapterOf(t, "watermill+postgresql://host/db", "server", delays), postgres, false},
		"another server":                 {adapterOf(t, "watermill+kafka://one", "other", delays), kafka, true},
		"other Delays":                   {adapterOf(t, "watermill+kafka://one", "server", place(t)), kafka, true},
		"no Delays":                      {adapterOf(t, "watermill+kafka://one", "", nil), kafka, true},
		"another kind":                   {postgres, kafka, true},
		"a native member of the group":   {native(t, "kafka", driver.Traits{}), kafka, false},
		"a native member, other spelled": {native(t, "postgresql", driver.Traits{}), postgres, false},
		"a native consumer by its queue": {native(t, "kafka", byQueue), kafka, true},
		"a native member of another":     {native(t, "nats", driver.Traits{}), kafka, true},
		"an adapter, to a native broker": {kafka, native(t, "kafka", driver.Traits{}), true},
	} {
		t.Run(name, func(t *testing.T) {
			messages, err := c.from.Subscriber().Subscribe(t.Context(), "orders")
			require.NoError(t, err)
			require.NoError(t, c.from.Publisher().Publish("orders", message.NewMessage(name, nil)))
			m := <-messages
			require.Equal(t, name, m.UUID)
			defer m.Ack()
			origin, ok := envelope.OriginFrom(m.Context())
			require.True(t, ok)
			err = c.to.Reschedule(m.Context(), *origin, m.Copy(), time.Second)
			if !c.refused {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, brokers.ErrUnroutable)
			require.ErrorContains(t, err, "does not read what is rescheduled here: set Rescheduler to")
		})
	}
}

// wrapped hides what it wraps.
type wrapped struct{ brokers.Broker }
