package brokertest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/middleware"
)

const goroutineCase = "Close_LeavesNoGoroutine"

// noGoroutineIsLeft uses everything that starts goroutines: publishing, subscribing, retries in flight, and closing
// with a retry that still waits. It runs in real time and alone.
func noGoroutineIsLeft(t *testing.T, h Harness) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	h.Virtual = false
	t.Run("use", func(t *testing.T) {
		w := newWorld(t, h)
		b := w.open(concurrency(4), func(c *brokers.Config) { c.DrainTimeout = time.Second })
		topic := w.topic("orders")
		c := w.consume(b, topic, middleware.Config{
			MaxAttempts: 3, Backoff: middleware.Steps(time.Millisecond, time.Hour),
		}, func(run) error { return errFails })
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
