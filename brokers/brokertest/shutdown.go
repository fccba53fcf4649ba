package brokertest

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

// Watermill's router cancels handlers and closes their publishers at once; the subscriber delays both.
func (w *world) TestShutdown_HandlersFinishAndTheirResultsArePublished() { w.drain((*consumer).stop) }

// The router's Close is not always called: with signal.NotifyContext the context of Run ends instead.
func (w *world) TestShutdown_ByContextDrainsToo() {
	w.drain(func(c *consumer) {
		c.cancel()
		<-c.ended
	})
}

func (w *world) drain(stop func(c *consumer)) {
	const n = 10
	// The handlers block for as long as the test needs, and the drain waits for them.
	first, atOnce := w.openFor(3, draining(w.h.Wait))
	topic, results := w.topic("orders"), w.topic("results")
	gate, open := w.gate()
	begun, begin := w.gate()

	outcome, out := w.subscribe(first, results, brokers.WithGroup("watcher"))

	c := w.newConsumer(first, middleware.Config{})
	c.router.AddHandler("handler", topic, endSignal{first.Subscriber(), begin}, results, first.Publisher(),
		func(m *message.Message) ([]*message.Message, error) {
			c.record(m)
			<-gate
			if err := m.Context().Err(); err != nil {
				return nil, err
			}
			return []*message.Message{message.NewMessage(m.UUID, nil)}, nil
		})
	c.start()
	batch := w.batch(n)
	w.publish(first, topic, batch...)
	c.waitRuns(atOnce)

	stopped := make(chan struct{})
	go func() { defer close(stopped); stop(c) }()
	receive(w, begun, "the subscription to start ending")
	pause(300 * time.Millisecond) // so that it does
	handled := c.seen()
	for _, r := range handled {
		require.NoError(w, r.Context.Err(), "a running handler keeps its context")
	}
	open()
	<-stopped
	require.Len(w, c.seen(), atOnce, "nothing was delivered after the stop")

	var published []string
	for range atOnce {
		m := receive(w, out, "another result")
		published = append(published, m.UUID)
		m.Ack()
	}
	require.ElementsMatch(w, runIDs(handled), published)
	require.NoError(w, outcome.Close())

	// The next process gets the remaining messages, and only those.
	next := w.consume(w.open(), topic, middleware.Config{}, succeeds).exactly(n - atOnce)
	require.ElementsMatch(w, ids(batch), runIDs(append(next, handled...)))
}

// endSignal is a Subscriber that calls begin when its subscriptions start to end.
type endSignal struct {
	message.Subscriber

	begin func()
}

// Subscribe implements message.Subscriber.
func (s endSignal) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	context.AfterFunc(ctx, s.begin)
	return s.Subscriber.Subscribe(ctx, topic)
}

// Close implements message.Subscriber.
func (s endSignal) Close() error {
	s.begin()
	return s.Subscriber.Close()
}

func (w *world) TestShutdown_ReturnsMessagesWithoutAnAttempt() {
	const n = 10
	topic := w.topic("orders")
	var settled atomic.Int32
	cfg := middleware.Config{
		Rescheduler: middleware.ReschedulerFunc(
			func(context.Context, envelope.Origin, *message.Message, time.Duration) error {
				settled.Add(1)
				return nil
			}),
		DeadLetters: middleware.DeadLetterFunc(
			func(context.Context, *envelope.DeadLetter) error { settled.Add(1); return nil }),
	}
	first, atOnce := w.openFor(3, draining(300*time.Millisecond))
	c := w.consume(first, topic, cfg, func(r run) error {
		<-r.Context.Done() // runs longer than the drain may take
		return r.Context.Err()
	})
	batch := w.batch(n)
	w.publish(first, topic, batch...)
	c.waitRuns(atOnce)
	c.stop()

	runs := w.consume(w.open(), topic, cfg, succeeds).exactly(n)
	require.ElementsMatch(w, ids(batch), runIDs(runs), "every message, including those that were being handled")
	for _, r := range runs {
		require.Equal(w, 1, r.Attempt, "a shutdown consumes no attempt")
	}
	require.Zero(w, settled.Load(), "neither a retry nor a dead letter")
}

func (w *world) TestShutdown_KeepsWaitingRetries() {
	first := w.open()
	w.skipIf(!first.Capabilities().Durable && !w.h.Virtual, "the broker forgets its messages when it closes")
	topic := w.topic("orders")
	wait := w.scaled(20 * time.Second)
	rescheduled, signal := w.gate()
	cfg := middleware.Config{
		Backoff: middleware.Constant(wait),
		Hooks: middleware.Hooks{OnRetry: func(context.Context, middleware.RetryParams) error {
			signal()
			return nil
		}},
	}
	c := w.consume(first, topic, cfg, fails)
	w.publish(first, topic, newMessage("order"))
	receive(w, rescheduled, "the retry")
	c.stop()
	require.NoError(w, first.Close())
	if len(c.seen()) > 1 && !w.h.Virtual {
		w.late = "the retry was due before its consumer had stopped"
		return
	}

	again := w.consume(w.open(), topic, cfg, succeeds).waitRuns(1)[0]
	require.Equal(w, 2, again.Attempt)
	w.onTime(c.seen()[0].At, again.At, wait)
}

func (w *world) TestClose_TwiceSucceeds() {
	b := w.open()
	sub, in := w.subscribe(b, w.topic("orders"))

	var closing sync.WaitGroup
	for range 3 {
		closing.Go(func() { assert.NoError(w, b.Close()) })
		closing.Go(func() { assert.NoError(w, sub.Close()) })
	}
	closing.Wait()
	require.NoError(w, b.Close())
	require.NoError(w, sub.Close())
	_, open := <-in
	require.False(w, open, "the channel of messages is closed")
}

func (w *world) TestClose_RefusesFurtherWork() {
	b, topic := w.openTopic("orders")
	c := w.consume(b, topic, middleware.Config{}, succeeds)
	w.publish(b, topic, newMessage("order"))
	r := c.waitRuns(1)[0]
	c.stop()
	p, sub := b.Publisher(), b.Subscriber()
	require.NoError(w, b.Ping(w.Context()))
	require.NoError(w, b.Close())

	require.ErrorIs(w, p.Publish(topic, newMessage("late")), brokers.ErrClosed)
	require.ErrorIs(w, b.Publisher().Publish(topic, newMessage("late")), brokers.ErrClosed)
	require.ErrorIs(w, b.Reschedule(w.Context(), r.Origin, newMessage("late"), 0), brokers.ErrClosed)
	require.ErrorIs(w, b.DeadLetter(w.Context(), &envelope.DeadLetter{Message: newMessage("late"), Origin: r.Origin}),
		brokers.ErrClosed)
	_, err := sub.Subscribe(w.Context(), topic)
	require.ErrorIs(w, err, brokers.ErrClosed)
	require.Error(w, b.Ping(w.Context()))
}

// Handlers share a publisher, as in most programs on Watermill, and the router closes it for the first handler that
// stops. What the others return afterwards must still be published: otherwise a message with one attempt would be
// dead-lettered.
func (w *world) TestShutdown_ResultsArePublishedBySharedPublishers() {
	b := w.open()
	topic, invoices := w.topic("orders"), w.topic("invoices")
	results := w.consume(b, invoices, middleware.Config{}, succeeds)
	closed, closing := w.gate()
	shared := closeSignal{b.Publisher(), closing}
	c := w.newConsumer(b, middleware.Config{MaxAttempts: 1})
	c.router.AddHandler("idle", w.topic("returns"), b.Subscriber(), invoices, shared, message.PassthroughHandler)
	c.router.AddHandler("busy", topic, b.Subscriber(), invoices, shared,
		func(m *message.Message) ([]*message.Message, error) {
			c.record(m)
			<-closed
			return []*message.Message{newMessage("invoice")}, nil
		})
	c.start()
	w.publish(b, topic, newMessage("order"))
	c.waitRuns(1)
	c.stop()

	require.Equal(w, "invoice", results.waitRuns(1)[0].payload())
	require.Len(w, c.seen(), 1)
}

// closeSignal is a Publisher that calls closed after it was closed.
type closeSignal struct {
	message.Publisher

	closed func()
}

// Close implements message.Publisher.
func (p closeSignal) Close() error {
	defer p.closed()
	return p.Publisher.Close()
}

// Watermill's router closes the publishers and subscribers of its handlers, including shared ones.
func (w *world) TestClose_OfAHandleLeavesTheBrokerOpen() {
	b, topic := w.openTopic("orders")
	one, two := b.Publisher(), b.Publisher()
	subTwo, in := w.subscribe(b, topic)
	subOne, _ := w.subscribe(b, topic)

	require.NoError(w, one.Close())
	require.NoError(w, one.Close(), "closing twice")
	require.NoError(w, subOne.Close())
	for _, p := range []message.Publisher{one, two} {
		require.NoError(w, p.Publish(topic, newMessage("order")))
		m := receive(w, in, "the message of the other subscriber")
		require.Equal(w, "order", string(m.Payload))
		m.Ack()
	}
	require.NoError(w, subTwo.Close())
}

const goroutineCase = "Close_LeavesNoGoroutine"

// noGoroutineIsLeft uses everything that starts goroutines: publishing, subscribing, retries in flight, and closing
// with a retry that still waits. It runs in real time and alone.
func noGoroutineIsLeft(t *testing.T, h Harness) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	h.Virtual = false
	t.Run("use", func(t *testing.T) {
		w := newWorld(t, h)
		b := w.open(concurrency(4), draining(time.Second))
		topic := w.topic("orders")
		twice := middleware.Config{MaxAttempts: 3, Backoff: middleware.Steps(time.Millisecond, time.Hour)}
		c := w.consume(b, topic, twice, fails)
		w.publish(b, topic, w.batch(20)...)
		c.waitRuns(40)
		c.stop()
		require.NoError(w, b.Close())
	})
	err := goleak.Find(before)
	for n := 1; err != nil && n < leakLooks; n++ {
		err = goleak.Find(before)
	}
	require.NoError(t, err, "goroutines after Close")
}

// leakLooks is how many times, every half second, goroutines are looked for: on a machine that is busy with other
// packages, goroutines that are about to end may not get to run for some seconds.
const leakLooks = 20
