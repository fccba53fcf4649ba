package brokertest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

// An operator deletes the queue of a subscription that requests nothing because its window is full. Brokers notify only
// readers that request messages, and may not confirm acks of deleted messages. Messages published afterwards must be
// handled, and no others acked.

// alone prepares a backend that no other case uses, so that its topics can be erased.
func (w *world) alone() {
	w.Helper()
	if w.h.Alone != nil {
		w.backend = w.h.Alone(w.T)
	}
	w.skipIf(w.backend.Erase == nil, "the backend cannot erase a topic")
}

func (w *world) erase(topic string) {
	w.Helper()
	w.backend.Erase(w.T, topic, brokers.NameScheme{}.For(topic, defaultGroup))
}

// publishUntil publishes each message until it is accepted: there may be no queue for a while.
func (w *world) publishUntil(b brokers.Broker, topic string, messages ...*message.Message) {
	w.Helper()
	p := b.Publisher()
	for _, m := range messages {
		w.await(func() (missing string) {
			if err := p.Publish(topic, m); err != nil {
				return fmt.Sprintf("cannot publish to %s: %v", topic, err)
			}
			return ""
		})
	}
	require.NoError(w, p.Close())
}

// waitFor waits until handlers of these consumers have run for every message.
func (w *world) waitFor(messages []*message.Message, consumers ...*consumer) {
	w.Helper()
	w.await(func() (missing string) {
		var seen []string
		for _, c := range consumers {
			seen = append(seen, runIDs(c.seen())...)
		}
		left := slices.DeleteFunc(ids(messages), func(id string) bool { return slices.Contains(seen, id) })
		if len(left) > 0 {
			missing = fmt.Sprintf("%d of %d messages were not handled: %v", len(left), len(messages), left)
		}
		return missing
	})
}

// await waits until nothing is missing, and fails once that stops changing. It polls, because several consumers have no
// common signal.
func (w *world) await(missing func() string) {
	w.Helper()
	deadline, last := w.deadline(), ""
	for what := missing(); what != ""; what = missing() {
		if what != last {
			deadline, last = w.deadline(), what
		}
		select {
		case <-deadline:
			w.Fatal(what)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// filled is more messages than consumers with blocked handlers may have in flight, so it fills their windows.
const filled = 200

// The handlers settle after the queue was deleted, half of them after new messages have arrived.
func (w *world) TestOperator_ErasesAQueueWhileHandlersRun() { w.erasedWhileRunning(1, 4) }

// TestOperator_ErasesAQueueThatIsReadOneAtATime is the same with several subscriptions that have one message each.
func (w *world) TestOperator_ErasesAQueueThatIsReadOneAtATime() { w.erasedWhileRunning(3, 1) }

func (w *world) erasedWhileRunning(subscriptions, handlers int) {
	w.Helper()
	w.alone()
	topic := w.topic("orders")
	last, openLast := w.gate()
	first, openFirst := w.gate()
	var started atomic.Int32
	var consumers []*consumer
	var b brokers.Broker
	for range subscriptions {
		b, handlers = w.openFor(handlers)
		consumers = append(consumers, w.consume(b, topic, middleware.Config{}, func(run) error {
			if started.Add(1)%2 == 0 {
				<-first
			} else {
				<-last
			}
			return nil
		}))
	}
	w.publish(b, topic, w.batch(filled)...)
	busy := subscriptions
	if w.h.Parts > 0 {
		busy = min(busy, w.h.Parts)
	}
	w.await(func() (missing string) {
		if n := int(started.Load()); n < busy*handlers {
			missing = fmt.Sprintf("%d of %d handlers are running", n, busy*handlers)
		}
		return missing
	})
	w.erase(topic)
	openFirst()
	fresh := w.batch(filled)
	w.publishUntil(b, topic, fresh...)
	w.pass(w.h.Quiet) // half settle while the others still hold messages whose positions may have been reused
	openLast()
	w.waitFor(fresh, consumers...)
}

// reluctant is a Rescheduler that runs a hook before it reschedules, and fails if the hook does.
func reluctant(b brokers.Broker, before func() error) middleware.ReschedulerFunc {
	return func(ctx context.Context, o envelope.Origin, m *message.Message, d time.Duration) error {
		if err := before(); err != nil {
			return err
		}
		return b.Reschedule(ctx, o, m, d)
	}
}

// The window is full of messages whose retry cannot be published, between their attempts.
func (w *world) TestOperator_ErasesAQueueWhileMessagesArePaced() {
	w.alone()
	b, _ := w.openFor(4)
	topic := w.topic("orders")
	var refused atomic.Int32
	healed, heal := w.gate()
	retries := reluctant(b, func() error {
		select {
		case <-healed:
			return nil
		default:
			refused.Add(1)
			return errFails
		}
	})
	var fails sync.Map
	c := w.consume(b, topic, middleware.Config{Rescheduler: retries, MaxAttempts: 2, Backoff: w.steps(0)},
		failsIf(func(r run) bool {
			_, failed := fails.LoadOrStore(r.id(), true)
			return !failed && r.payload() == "fails"
		}))
	w.publish(b, topic, batchOf(filled, "fails")...)
	c.wait("refused retries", func([]run) bool { return refused.Load() >= 4 })
	w.erase(topic)
	heal()
	fresh := w.batch(20)
	w.publishUntil(b, topic, fresh...)
	w.waitFor(fresh, c)
}

// The queue is deleted after the handlers have failed, before their retries are stored.
func (w *world) TestOperator_ErasesAQueueWhileRetriesArePublished() {
	w.alone()
	b, handlers := w.openFor(4)
	topic := w.topic("orders")
	erase := sync.OnceFunc(func() { w.erase(topic) })
	var reached atomic.Int32
	together, all := w.gate()
	published, allPublished := w.gate() // so that all are stored before the queue is deleted
	retries := reluctant(b, func() error {
		<-published
		if int(reached.Add(1)) >= handlers {
			erase()
			all()
		}
		<-together
		return nil
	})
	c := w.consume(b, topic, middleware.Config{Rescheduler: retries, MaxAttempts: 2, Backoff: w.steps(time.Second)},
		failsIf(func(r run) bool { return r.Attempt == 1 && r.payload() == "fails" }))
	w.publish(b, topic, batchOf(filled, "fails")...)
	allPublished()
	<-together
	fresh := w.batch(20)
	w.publishUntil(b, topic, fresh...)
	w.waitFor(fresh, c)
}

// Another process recreates the queue before ours has noticed, and has new messages in flight when our handlers settle
// the old ones, which may have had the same positions. The other process ends without settling: every unhandled message
// is redelivered.
func (w *world) TestOperator_ErasesAQueueThatAnotherProcessRecreates() {
	const n = 8
	w.alone()
	topic := w.topic("orders")
	b, atOnce := w.openFor(n)
	gate, open := w.gate()
	ours := w.consume(b, topic, middleware.Config{}, waitsFor(gate))
	w.publish(b, topic, w.batch(filled)...)
	ours.waitRuns(atOnce)
	w.erase(topic)

	other, otherAtOnce := w.openFor(n, draining(100*time.Millisecond))
	held, release := w.gate()
	theirs := w.consume(other, topic, middleware.Config{}, waitsFor(held))
	fresh := w.batch(filled)
	w.publishUntil(other, topic, fresh...)
	theirs.waitRuns(otherAtOnce)
	open()
	w.pass(w.h.Quiet) // so that the settlements reach the server
	require.NoError(w, other.Close())
	release()
	w.waitFor(fresh, ours)
}

// A new message at the position of an old one that was retried is not treated as the old one, nor is its retry.
func (w *world) TestOperator_ErasesAQueueAndPositionsStartOver() {
	const n = 8
	w.alone()
	topic := w.topic("orders")
	b, _ := w.openFor(n)
	c := w.consume(b, topic, middleware.Config{MaxAttempts: 2, Backoff: w.steps(0)}, failsBefore(2))
	for range 2 {
		batch := w.batch(n)
		w.publishUntil(b, topic, batch...)
		c.wait("second attempts", func(runs []run) bool {
			retried := 0
			for _, m := range batch {
				if slices.ContainsFunc(runs, func(r run) bool { return r.id() == m.UUID && r.Attempt == 2 }) {
					retried++
				}
			}
			return retried == n
		})
		w.erase(topic)
	}
}

// A message that another session locks while its handler runs is acked once the lock is released. Those delivered
// together with it and those behind it do not wait for that, and none is handled twice.
func (w *world) TestOperator_LocksAMessageAndOthersAreHandled() {
	w.skipIf(w.backend.Lock == nil, "a message cannot be locked")
	const n = 8
	b, _ := w.openFor(n)
	topic := w.topic("orders")
	gate, open := w.gate()
	c := w.consume(b, topic, middleware.Config{}, waitsFor(gate))
	batch := w.batch(n)
	w.publish(b, topic, batch...)
	c.waitRuns(n)
	unlock := sync.OnceFunc(w.backend.Lock(w.T, batch[n/2].UUID))
	w.Cleanup(unlock)
	open()

	behind := w.batch(3 * n)
	w.publish(b, topic, behind...)
	c.waitRuns(4 * n)
	unlock()
	require.ElementsMatch(w, ids(append(batch, behind...)), runIDs(c.exactly(4*n)), "every message once")
	c.stop()

	// All are acked: nothing is left for the next consumer.
	again := w.consume(w.open(), topic, middleware.Config{}, succeeds)
	w.publish(b, topic, newMessage("next"))
	require.Equal(w, "next", again.exactly(1)[0].payload())
}

// An operator deletes messages while their handlers run. Whatever the handlers return, no failure is lost, nothing
// loops, and the messages behind them are handled.
func (w *world) TestOperator_DeletesRunningMessages() {
	w.skipIf(w.backend.Delete == nil, "a message cannot be deleted while its handler runs")
	results := map[string]error{
		"succeeds": nil, "dies": middleware.Permanent(errFails),
		"fails": errFails, "asks for later": middleware.RetryAfter(errFails, w.scaled(time.Second)),
	}
	b, _ := w.openFor(len(results))
	topic := w.topic("orders")
	gate, open := w.gate()
	c := w.consume(b, topic, middleware.Config{MaxAttempts: 2, Backoff: w.steps(0)}, func(r run) error {
		<-gate
		return results[r.payload()]
	})
	var batch []*message.Message
	for payload := range results {
		batch = append(batch, newMessage(payload))
	}
	w.publish(b, topic, batch...)
	c.waitRuns(len(results))
	for _, m := range batch {
		w.backend.Delete(w.T, m.UUID)
	}
	open()

	w.publish(b, topic, newMessage("succeeds"))
	c.waitRuns(len(results) + 1)
	require.Equal(w, "dies", string(w.deadLetters(b, topic, 1)[0].Payload))
	c.quiet()
}
