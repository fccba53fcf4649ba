package brokertest

import (
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/middleware"
)

// A message that another session locks while its handler runs is acked once the lock is released. Those delivered
// together with it and those behind it do not wait for that, and none is handled twice.
func lockedMessage(w *world) {
	if w.backend.Lock == nil {
		w.Skip("a message cannot be locked")
	}
	const n = 8
	b, _ := w.openFor(n)
	topic := w.topic("orders")
	gate, open := w.gate()
	c := w.consume(b, topic, middleware.Config{}, func(run) error {
		<-gate
		return nil
	})
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
	c.quiet()
	require.ElementsMatch(w, append(ids(batch), ids(behind)...), runIDs(c.seen()), "every message once")
	c.stop()

	// All are acked: nothing is left for the next consumer.
	again := w.consume(w.open(), topic, middleware.Config{}, func(run) error { return nil })
	w.publish(b, topic, newMessage("next"))
	require.Equal(w, "next", string(again.waitRuns(1)[0].Message.Payload))
	again.quiet()
}

// An operator deletes messages while their handlers run. Whatever the handlers return, no failure is lost, nothing
// loops, and the messages behind them are handled.
func deletedMessage(w *world) {
	if w.backend.Delete == nil {
		w.Skip("a message cannot be deleted while its handler runs")
	}
	results := map[string]error{
		"succeeds": nil, "dies": middleware.Permanent(errFails),
		"fails": errFails, "asks for later": middleware.RetryAfter(errFails, w.scaled(time.Second)),
	}
	b, _ := w.openFor(len(results))
	topic := w.topic("orders")
	gate, open := w.gate()
	c := w.consume(b, topic, middleware.Config{MaxAttempts: 2, Backoff: w.steps(0)}, func(r run) error {
		<-gate
		return results[string(r.Message.Payload)]
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
	require.Equal(w, "dies", string(w.deadLetters(b, brokers.NameScheme{}, topic, 1)[0].Payload))
	c.quiet()
}
