package brokertest

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

func (w *world) TestGroups_EachSeeEveryMessageOnce() {
	billing, mail, mailToo := w.open(group("billing")), w.open(group("mail")), w.open(group("mail"))
	if !billing.Capabilities().Groups {
		w.Skip("the broker has no groups")
	}
	topic := w.topic("orders")
	handles := func(run) error { return nil }
	inBilling := w.consume(billing, topic, middleware.Config{}, handles)
	inMail := w.consume(mail, topic, middleware.Config{}, handles)
	inMailToo := w.consume(mailToo, topic, middleware.Config{}, handles)

	batch := w.batch(60)
	w.publish(billing, topic, batch...)

	w.waitFor(batch, inBilling)
	w.waitFor(batch, inMail, inMailToo)
	inBilling.quiet()
	require.ElementsMatch(w, ids(batch), runIDs(inBilling.seen()), "every message once")
	require.ElementsMatch(w, ids(batch), runIDs(append(inMail.seen(), inMailToo.seen()...)), "one of them got each, once")
}

// If retries were published to the topic, customers would get the same e-mail four times.
func (w *world) TestRetry_ReturnsOnlyToTheConsumerThatFailed() {
	billing, mail := w.open(group("billing")), w.open(group("mail"))
	if !billing.Capabilities().Groups {
		w.Skip("the broker has no groups")
	}
	topic := w.topic("orders")
	retry := middleware.Config{MaxAttempts: middleware.Tries(4), Backoff: w.steps(0, time.Second)}
	failing := w.consume(billing, topic, retry, func(run) error { return errFails })
	healthy := w.consume(mail, topic, retry, func(run) error { return nil })

	w.publish(mail, topic, newMessage("order"))
	failing.waitRuns(4)
	healthy.waitRuns(1)
	failing.quiet()
	require.Len(w, failing.seen(), 4)
	require.Len(w, healthy.seen(), 1, "the other consumer gets the message once")
}

// A redrive is a Reschedule from another process, much later, with delay 0.
func (w *world) TestRedrive_ReachesOnlyTheConsumerThatFailed() {
	billing, mail := w.open(group("billing")), w.open(group("mail"))
	if !billing.Capabilities().Groups {
		w.Skip("the broker has no groups")
	}
	topic := w.topic("orders")
	dead := make(chan *envelope.DeadLetter, 1)
	cfg := middleware.Config{MaxAttempts: 1, DeadLetters: keepIn(dead)}
	var fixed atomic.Bool
	failing := w.consume(billing, topic, cfg, failsUntil(&fixed))
	healthy := w.consume(mail, topic, middleware.Config{}, func(run) error { return nil })
	w.publish(mail, topic, newMessage("order"))

	letter := receive(w, dead, "the dead letter")
	healthy.waitRuns(1)
	fixed.Store(true)

	operator := w.open(group("operator"))
	again := letter.Message.Copy()
	delete(again.Metadata, envelope.KeyRetryCount)
	require.NoError(w, operator.Reschedule(w.Context(), letter.Origin, again, 0))

	runs := failing.waitRuns(2)
	failing.quiet()
	require.Len(w, healthy.seen(), 1, "the other consumer gets the message once")
	require.Equal(w, "order", string(runs[1].Message.Payload))
	require.Equal(w, 1, runs[1].Attempt, "attempts start at 1 again")
}

func (w *world) TestOrigin_NamesTheConsumer() {
	billing, mail := w.open(group("billing")), w.open(group("mail"))
	topic := w.topic("orders")
	again := failsBefore(2)
	cfg := middleware.Config{Backoff: middleware.None()}
	inBilling := w.consume(billing, topic, cfg, again)
	inMail := w.consume(mail, topic, cfg, again)
	w.publish(billing, topic, newMessage("order"))

	runs := inBilling.waitRuns(2)
	for _, r := range runs {
		require.Equal(w, billing.Capabilities().Scheme, r.Origin.Broker)
		require.Equal(w, topic, r.Origin.Topic)
		require.Equal(w, runs[0].Origin.Consumer, r.Origin.Consumer, "unchanged by a retry")
	}
	require.NotEmpty(w, runs[0].Origin.Consumer)
	if billing.Capabilities().Groups {
		require.NotEqual(w, runs[0].Origin.Consumer, inMail.waitRuns(2)[0].Origin.Consumer)
	}
}

// keepIn is a dead letter sink that sends its dead letters to a channel.
func keepIn(letters chan<- *envelope.DeadLetter) middleware.DeadLetterSink {
	return middleware.DeadLetterFunc(func(_ context.Context, d *envelope.DeadLetter) error {
		letters <- d
		return nil
	})
}

func ids(messages []*message.Message) []string {
	var found []string
	for _, m := range messages {
		found = append(found, m.UUID)
	}
	return found
}

func runIDs(runs []run) []string {
	var found []string
	for _, r := range runs {
		found = append(found, r.id())
	}
	return found
}

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
func (w *world) TestPublish_OfAnEventWithoutASubscriberSucceeds() {
	require.NoError(w, w.bus().Publisher().Publish("order.lost", newMessage("event")))
	strict := w.bus(func(c *brokers.Config) { c.RefuseUnrouted = true })
	require.ErrorIs(w, strict.Publisher().Publish("order.lost", newMessage("event")), brokers.ErrUnroutable)
	w.reads(strict, "order.#")
	require.NoError(w, strict.Publisher().Publish("order.lost", newMessage("event")))
}

// There is one bus, with one queue per service, and each service has its own patterns and failed queue.
func (w *world) TestPatterns_SelectEventsAndRetriesKeepTheirName() {
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
func (w *world) TestPatterns_SystemEventsReachEveryService() {
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
