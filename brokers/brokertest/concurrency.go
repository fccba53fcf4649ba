package brokertest

import (
	"strconv"
	"sync/atomic"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/middleware"
)

// Exactly n handlers run at once: with fewer, the wait below never ends, and one more is counted.
func concurrentHandlers(w *world) {
	const n = 8
	b := w.open(concurrency(n))
	if limit := b.Capabilities().MaxConcurrency; limit != 0 && limit < n {
		w.Skipf("the broker runs at most %d handlers at once", limit)
	}
	topic := w.topic("orders")
	var running, most atomic.Int32
	gate, open := newGate()
	c := w.consume(b, topic, middleware.Config{}, func(run) error {
		now := running.Add(1)
		defer running.Add(-1)
		for old := most.Load(); now > old && !most.CompareAndSwap(old, now); old = most.Load() {
		}
		<-gate
		return nil
	})
	w.Cleanup(open)
	batch := w.batch(4 * n)
	w.publish(b, topic, batch...)
	c.waitRuns(n)
	c.quiet()
	require.EqualValues(w, n, most.Load())
	open()
	c.waitRuns(4 * n)
	require.EqualValues(w, n, most.Load(), "handlers at once")
	require.ElementsMatch(w, ids(batch), runIDs(c.seen()))
}

func orderKept(w *world) {
	b := w.open()
	if !b.Capabilities().Ordered {
		w.Skip("the broker does not preserve order")
	}
	topic := w.topic("orders")
	c := w.consume(b, topic, middleware.Config{}, func(run) error { return nil })
	const n = 200
	var want []string
	for i := range n {
		m := newMessage(strconv.Itoa(i))
		m.Metadata.Set("x-kafka-key", "one") // on brokers with keys, order holds per key
		want = append(want, m.UUID)
		w.publish(b, topic, m)
	}
	require.Equal(w, want, runIDs(c.waitRuns(n)))
}
