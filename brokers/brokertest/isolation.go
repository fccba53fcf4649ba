package brokertest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

// twoGroups opens a broker for each of two groups that get all messages of a topic.
func (w *world) twoGroups() (billing, mail brokers.Broker, topic string) {
	w.Helper()
	billing = w.open(group("billing"))
	w.skipIf(!billing.Capabilities().Groups, "the broker has no groups")
	return billing, w.open(group("mail")), w.topic("orders")
}

func (w *world) TestGroups_EachSeeEveryMessageOnce() {
	billing, mail, topic := w.twoGroups()
	mailToo := w.open(group("mail"))
	inBilling := w.consume(billing, topic, middleware.Config{}, succeeds)
	inMail := w.consume(mail, topic, middleware.Config{}, succeeds)
	inMailToo := w.consume(mailToo, topic, middleware.Config{}, succeeds)

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
	billing, mail, topic := w.twoGroups()
	retry := middleware.Config{MaxAttempts: middleware.Tries(4), Backoff: w.steps(0, time.Second)}
	failing := w.consume(billing, topic, retry, fails)
	healthy := w.consume(mail, topic, retry, succeeds)

	w.publish(mail, topic, newMessage("order"))
	healthy.waitRuns(1)
	failing.exactly(4)
	require.Len(w, healthy.seen(), 1, "the other consumer gets the message once")
}

// A redrive is a Reschedule from another process, much later, with delay 0.
func (w *world) TestRedrive_ReachesOnlyTheConsumerThatFailed() {
	billing, mail, topic := w.twoGroups()
	dead := make(chan *envelope.DeadLetter, 1)
	cfg := middleware.Config{MaxAttempts: 1, DeadLetters: keepIn(dead)}
	var fixed atomic.Bool
	failing := w.consume(billing, topic, cfg, failsUntil(&fixed))
	healthy := w.consume(mail, topic, middleware.Config{}, succeeds)
	w.publish(mail, topic, newMessage("order"))

	letter := receive(w, dead, "the dead letter")
	healthy.waitRuns(1)
	fixed.Store(true)

	operator := w.open(group("operator"))
	again := letter.Message.Copy()
	delete(again.Metadata, envelope.KeyRetryCount)
	require.NoError(w, operator.Reschedule(w.Context(), letter.Origin, again, 0))

	runs := failing.exactly(2)
	require.Len(w, healthy.seen(), 1, "the other consumer gets the message once")
	require.Equal(w, "order", runs[1].payload())
	require.Equal(w, 1, runs[1].Attempt, "attempts start at 1 again")
}

// A program may open a broker twice, for example to reschedule through a separate connection.
func (w *world) TestRetry_ThroughTheBrokerOpenedTwice() {
	topic := w.topic("orders")
	b := w.open()
	c := w.consume(b, topic, middleware.Config{Rescheduler: w.open(), Backoff: middleware.None()}, failsBefore(2))
	w.publish(b, topic, newMessage("order"))
	require.Equal(w, 2, c.exactly(2)[1].Attempt)
}

// A retry that another server would store is refused, although a consumer of the same name is there.
func (w *world) TestRetry_ThroughAnotherServerIsRefused() {
	w.skipIf(w.backend.OpenOther == nil, "there is no other server")
	b, topic := w.openTopic("orders")
	w.backend.Open = w.backend.OpenOther
	other := w.open()
	stray := w.consume(other, topic, middleware.Config{}, succeeds)
	refused := make(chan *envelope.DeadLetter, 1)
	w.consume(b, topic, middleware.Config{MaxAttempts: 1, DeadLetters: keepIn(refused)}, func(r run) error {
		return other.Reschedule(r.Context, r.Origin, r.Message.Copy(), 0)
	})
	w.publish(b, topic, newMessage("order"))
	err := receive(w, refused, "the refusal").Cause
	require.ErrorIs(w, err, brokers.ErrUnroutable)
	require.ErrorContains(w, err, "set Rescheduler to the handler's own broker")
	require.Empty(w, stray.seen())
}

// batchRedriver is implemented by brokers that redrive several messages in one call.
type batchRedriver interface {
	RescheduleAll(ctx context.Context, origins []envelope.Origin, messages []*message.Message) []error
}

// A redrive to a consumer that never existed would create a queue that no consumer reads, and the message would wait
// there unnoticed.
func (w *world) TestRedrive_ToAMissingConsumerIsRefused() {
	operator := w.open(group("operator"))
	topic := w.topic("orders")
	origin := envelope.Origin{
		Broker: operator.Capabilities().Scheme, Topic: topic, Consumer: topic + ".billing",
		RedriveTo: topic + ".billing.again",
	}
	ctx := envelope.WithExistingOnly(w.Context())
	for _, recorded := range []string{"", origin.RedriveTo} {
		origin.RedriveTo = recorded
		for range 2 { // the first call must not create the queue that the second finds
			err := operator.Reschedule(ctx, origin, newMessage("lost"), 0)
			require.ErrorIs(w, err, brokers.ErrUnroutable)
			require.ErrorContains(w, err, topic)
			require.ErrorContains(w, err, "start the consumer")
		}
		if all, ok := operator.(batchRedriver); ok {
			for _, err := range all.RescheduleAll(ctx, []envelope.Origin{origin, origin},
				[]*message.Message{newMessage("a"), newMessage("b")}) {
				require.ErrorIs(w, err, brokers.ErrUnroutable)
				require.ErrorContains(w, err, "start the consumer")
			}
		}
	}

	c := w.consume(w.open(group("billing")), topic, middleware.Config{}, succeeds)
	w.publish(operator, topic, newMessage("first"))
	runs := c.waitRuns(1)
	require.NoError(w, operator.Reschedule(ctx, runs[0].Origin, newMessage("again"), 0), "the consumer exists now")
	require.Equal(w, "again", c.exactly(2)[1].payload(), "no refused message was kept")
}

// A message that a foreign consumer dead-lettered is redriven to its topic.
func (w *world) TestPublish_ToAMissingTopicThatMustExistIsRefused() {
	b, topic := w.openTopic("orders")
	publish := func(payload string) error {
		m := newMessage(payload)
		m.SetContext(envelope.WithExistingOnly(w.Context()))
		return b.Publisher().Publish(topic, m)
	}
	for range 2 {
		require.ErrorIs(w, publish("lost"), brokers.ErrUnroutable)
	}
	c := w.consume(b, topic, middleware.Config{}, succeeds)
	require.NoError(w, publish("kept"))
	require.Equal(w, "kept", c.exactly(1)[0].payload())
}

// An operator's server has its own naming scheme, or none: a redrive goes to the destination that the consumer's broker
// has recorded.
func (w *world) TestRedrive_UsesTheNamingOfTheConsumer() {
	service := w.open(group("billing"), naming(brokers.NameScheme{Retry: "{queue}-again{.delay}", Dead: "{queue}-dead"}))
	operator := w.open(group("operator"))
	topic := w.topic("orders")
	dead := make(chan *envelope.DeadLetter, 1)
	var fixed atomic.Bool
	c := w.consume(service, topic, middleware.Config{MaxAttempts: 1, DeadLetters: keepIn(dead)}, failsUntil(&fixed))
	w.publish(service, topic, newMessage("order"))
	letter := receive(w, dead, "the dead letter")
	fixed.Store(true)
	again := letter.Message.Copy()
	delete(again.Metadata, envelope.KeyRetryCount)
	require.NoError(w, operator.Reschedule(envelope.WithExistingOnly(w.Context()), letter.Origin, again, 0))
	require.Equal(w, "order", c.exactly(2)[1].payload())
}

// Before a redrive, an operator wants to know whether any consumer would read it.
func (w *world) TestRedrive_ReadersAreCounted() {
	operator := w.open(group("operator"))
	counter, ok := operator.(brokers.ReaderCounter)
	w.skipIf(!ok, "the broker counts no readers")
	topic := w.topic("orders")
	_, err := counter.Readers(w.Context(), envelope.Origin{Topic: topic, Consumer: topic + ".billing"})
	w.skipIf(errors.Is(err, errors.ErrUnsupported), "the broker does not know its readers")
	require.NoError(w, err)
	c := w.consume(w.open(group("billing")), topic, middleware.Config{}, succeeds)
	w.publish(operator, topic, newMessage("order"))
	origin := c.waitRuns(1)[0].Origin
	awaitReaders := func(want bool) {
		w.await(func() string {
			if n, err := counter.Readers(w.Context(), origin); err != nil || n > 0 != want {
				return fmt.Sprintf("%d readers, wanted any: %t", n, want)
			}
			return ""
		})
	}
	awaitReaders(true)
	n, err := counter.Readers(w.Context(), envelope.Origin{Topic: topic, Consumer: origin.Consumer + "-gone"})
	require.NoError(w, err)
	require.Zero(w, n, "of another consumer")
	c.stop()
	awaitReaders(false)
}

func (w *world) TestOrigin_NamesTheConsumer() {
	billing, mail := w.open(group("billing")), w.open(group("mail"))
	topic := w.topic("orders")
	cfg := middleware.Config{Backoff: middleware.None()}
	inBilling, inMail := w.consume(billing, topic, cfg, failsBefore(2)), w.consume(mail, topic, cfg, failsBefore(2))
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
	return mapped(messages, func(m *message.Message) string { return m.UUID })
}

func runIDs(runs []run) []string { return mapped(runs, run.id) }

func payloadsOf(runs []run) []string { return mapped(runs, run.payload) }

// mapped returns the results of a function for the elements of a list.
func mapped[T, R any](list []T, of func(T) R) []R {
	results := make([]R, len(list))
	for i, element := range list {
		results[i] = of(element)
	}
	return results
}

// bus opens a broker with the service bus names, or skips the case if the broker has no patterns.
func (w *world) bus(change ...func(*brokers.Config)) brokers.Broker {
	w.Helper()
	b, err := w.tryOpen(append(change, naming(brokers.ServiceBus(w.prefix)))...)
	w.skipIf(errors.Is(err, brokers.ErrUnsupported), "the broker has no bus")
	require.NoError(w, err)
	w.skipIf(!b.Capabilities().Patterns, "the broker has no patterns")
	return b
}

// Publishing an event that no service has subscribed to is not an error on a bus, unless the program requests one.
func (w *world) TestPublish_OfAnEventWithoutASubscriberSucceeds() {
	require.NoError(w, w.bus().Publisher().Publish("order.lost", newMessage("event")))
	strict := w.bus(func(c *brokers.Config) { c.RefuseUnrouted = true })
	require.ErrorIs(w, strict.Publisher().Publish("order.lost", newMessage("event")), brokers.ErrUnroutable)
	w.subscribe(strict, "order.#")
	require.NoError(w, strict.Publisher().Publish("order.lost", newMessage("event")))
}

// There is one bus, with one queue per service, and each service has its own patterns and failed queue.
func (w *world) TestPatterns_SelectEventsAndRetriesKeepTheirName() {
	scheme := brokers.ServiceBus(w.prefix)
	probe := w.bus(group("probe"))

	policy := middleware.Config{MaxAttempts: 2, Backoff: middleware.None()}
	invoices := w.consume(w.open(group("invoice-service"), naming(scheme)), "invoice.*", policy, fails)
	users := w.consume(w.open(group("user-service"), naming(scheme)), "user.#", policy, succeeds)
	created := w.consume(w.open(group("audit-service"), naming(scheme)), "*.created", policy, succeeds)

	for _, event := range []string{"invoice.created", "user.address.changed", "user.created", "invoice.line.added"} {
		require.NoError(w, probe.Publisher().Publish(event, newMessage(event)), "also the last, which no service reads")
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
	invoices := w.consume(b, "invoice.*", policy, succeeds)
	require.NoError(w, b.Publisher().Publish(middleware.SystemPing, newMessage("ping")))
	require.Equal(w, "ping", receive(w, pings, "the ping"))
	require.NoError(w, b.Publisher().Publish("invoice.created", newMessage("event")))
	require.Equal(w, "event", invoices.waitRuns(1)[0].payload())
}
