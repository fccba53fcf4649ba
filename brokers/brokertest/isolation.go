package brokertest

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

func groupsSeeEverything(w *world) {
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
func retryReturnsToConsumer(w *world) {
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
func redriveReachesConsumer(w *world) {
	billing, mail := w.open(group("billing")), w.open(group("mail"))
	if !billing.Capabilities().Groups {
		w.Skip("the broker has no groups")
	}
	topic := w.topic("orders")
	dead := make(chan *envelope.DeadLetter, 1)
	cfg := middleware.Config{
		MaxAttempts: 1,
		DeadLetters: keepIn(dead),
	}
	var fixed atomic.Bool
	failing := w.consume(billing, topic, cfg, func(run) error {
		if !fixed.Load() {
			return errFails
		}
		return nil
	})
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

func originIsFilled(w *world) {
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
