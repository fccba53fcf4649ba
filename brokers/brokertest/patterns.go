package brokertest

import (
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/middleware"
)

// bus opens a broker with the service bus names, or skips the case if the broker has no patterns.
func (w *world) bus(change ...func(*brokers.Config)) brokers.Broker {
	w.Helper()
	cfg := brokers.Config{Group: defaultGroup, Naming: brokers.ServiceBus(w.prefix), Logger: w.logger()}
	for _, c := range change {
		c(&cfg)
	}
	b, err := w.backend.Open(cfg)
	if errors.Is(err, brokers.ErrUnsupported) {
		w.Skip(err)
	}
	require.NoError(w, err)
	w.Cleanup(func() { require.NoError(w, b.Close()) })
	if !b.Capabilities().Patterns {
		w.Skip("the broker has no patterns")
	}
	return b
}

// Publishing an event that no service has subscribed to is not an error on a bus, unless the program requests one.
func eventWithoutASubscriber(w *world) {
	require.NoError(w, w.bus().Publisher().Publish("order.lost", newMessage("event")))
	strict := w.bus(func(c *brokers.Config) { c.RefuseUnrouted = true })
	require.ErrorIs(w, strict.Publisher().Publish("order.lost", newMessage("event")), brokers.ErrUnroutable)
	w.reads(strict, "order.#")
	require.NoError(w, strict.Publisher().Publish("order.lost", newMessage("event")))
}

// There is one bus, with one queue per service, and each service has its own patterns and failed queue.
func patternsSelectEvents(w *world) {
	scheme := brokers.ServiceBus(w.prefix)
	probe := w.bus(group("probe"))

	policy := middleware.Config{MaxAttempts: 2, Backoff: middleware.None()}
	fails := func(run) error { return errFails }
	handles := func(run) error { return nil }
	invoices := w.consume(w.open(group("invoice-service"), naming(scheme)), "invoice.*", policy, fails)
	users := w.consume(w.open(group("user-service"), naming(scheme)), "user.#", policy, handles)
	created := w.consume(w.open(group("audit-service"), naming(scheme)), "*.created", policy, handles)

	for _, event := range []string{"invoice.created", "user.address.changed", "user.created", "invoice.line.added"} {
		m := newMessage(event)
		require.NoError(w, probe.Publisher().Publish(event, m), "including the last one, which no service reads")
	}

	payloadsOf := func(runs []run) (events []string) {
		for _, r := range runs {
			events = append(events, string(r.Message.Payload))
		}
		return events
	}
	require.Equal(w, []string{"invoice.created", "invoice.created"}, payloadsOf(invoices.waitRuns(2)))
	require.ElementsMatch(w, []string{"user.address.changed", "user.created"}, payloadsOf(users.waitRuns(2)))
	require.ElementsMatch(w, []string{"invoice.created", "user.created"}, payloadsOf(created.waitRuns(2)))
	created.quiet()
	require.Len(w, users.seen(), 2)
	require.Len(w, invoices.seen(), 2, "the retry returned to the service that failed")

	dead := w.read(probe, scheme.For("invoice.*", "invoice-service").Dead, 1)
	require.Equal(w, w.prefix+".invoice-service.failed", scheme.For("invoice.*", "invoice-service").Dead)
	require.Equal(w, "invoice.created", string(dead[0].Payload))
}

// The ping of the bus reaches a service that has subscribed only to other events, but not its handler.
func systemEventsReachEveryService(w *world) {
	b := w.bus(group("invoice-service"))
	pings := make(chan string, 1)
	policy := middleware.ServiceBus(3)
	policy.SystemEvents = map[string]message.NoPublishHandlerFunc{middleware.SystemPing: func(m *message.Message) error {
		pings <- string(m.Payload)
		return nil
	}}
	invoices := w.consume(b, "invoice.*", policy, func(run) error { return nil })
	require.NoError(w, b.Publisher().Publish(middleware.SystemPing, newMessage("ping")))
	require.Equal(w, "ping", receive(w, pings, "the ping"))
	require.NoError(w, b.Publisher().Publish("invoice.created", newMessage("event")))
	require.Equal(w, "event", string(invoices.waitRuns(1)[0].Message.Payload))
}
