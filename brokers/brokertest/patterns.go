package brokertest

import (
	"errors"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/middleware"
)

// D1, D2, D5, D9: one bus, one queue per service, and each service its own patterns and failed queue.
func patternsSelectEvents(w *world) {
	scheme := brokers.ServiceBus(w.prefix)
	probe, err := w.backend.Open(brokers.Config{Group: "probe", Naming: scheme})
	if errors.Is(err, brokers.ErrUnsupported) {
		w.Skip(err)
	}
	require.NoError(w, err)
	w.Cleanup(func() { require.NoError(w, probe.Close()) })
	if !probe.Capabilities().Patterns {
		w.Skip("the broker has no patterns")
	}

	policy := middleware.Config{HandlerConfig: middleware.HandlerConfig{MaxAttempts: 2, Backoff: middleware.None()}}
	fails := func(run) error { return errFails }
	handles := func(run) error { return nil }
	invoices := w.consume(w.open(group("invoice-service"), naming(scheme)), "invoice.*", policy, fails)
	users := w.consume(w.open(group("user-service"), naming(scheme)), "user.#", policy, handles)
	created := w.consume(w.open(group("audit-service"), naming(scheme)), "*.created", policy, handles)

	for _, event := range []string{"invoice.created", "user.address.changed", "user.created", "invoice.line.added"} {
		m := newMessage(event)
		if err := probe.Publisher().Publish(event, m); event != "invoice.line.added" {
			require.NoError(w, err)
		} // nobody reads the last one: a broker may say so, or keep it
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
	require.Len(w, invoices.seen(), 2, "the retry came back to the service that failed")

	dead := w.read(probe, scheme.For("invoice.*", "invoice-service").Dead, 1)
	require.Equal(w, w.prefix+".invoice-service.failed", scheme.For("invoice.*", "invoice-service").Dead)
	require.Equal(w, "invoice.created", string(dead[0].Payload))
}
