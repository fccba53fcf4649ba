package kafka

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
)

// gathered counts the batches that a gatherer releases. It has a lock because timers release them in separate
// goroutines, in no defined order relative to the test's reads.
func gathered() (g *batcher, batches func() []int) {
	var mu sync.Mutex
	var sizes []int
	g = &batcher{topics: map[string]*gathering{}}
	g.release = func(t *gathering) {
		if n := len(g.take(t)); n > 0 {
			mu.Lock()
			defer mu.Unlock()
			sizes = append(sizes, n)
		}
	}
	return g, func() []int {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(sizes)
	}
}

func of(topic string) sending { return sending{record: &kgo.Record{Topic: topic}} }

func TestGatherer_OneCallerNeverWaits(t *testing.T) {
	g, batches := gathered()
	for range 3 {
		require.True(t, g.add(of("orders")))
		g.answered("orders")
	}
	require.Empty(t, batches())
	require.Empty(t, g.topics, "a topic without records in flight is forgotten")
}

func TestGatherer_WaitsForTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, batches := gathered()
		require.True(t, g.add(of("orders")))
		for range 63 {
			require.False(t, g.add(of("orders")))
		}
		require.True(t, g.add(of("payments")), "records of another topic do not wait")
		g.answered("orders")
		synctest.Wait()
		require.Equal(t, []int{63}, batches(), "all in one batch, at once")
		for range 63 {
			g.answered("orders")
		}
		time.Sleep(batchWait) // virtual
		synctest.Wait()
		require.Equal(t, []int{63}, batches())
		g.answered("payments")
		require.Empty(t, g.topics)
	})
}

func TestGatherer_WaitsNoLongerThanItsBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, batches := gathered()
		require.True(t, g.add(of("orders")), "for a partition that does not respond")
		require.False(t, g.add(of("orders")))
		require.False(t, g.add(of("orders")))
		time.Sleep(batchWait - 1) // virtual
		synctest.Wait()
		require.Empty(t, batches())
		time.Sleep(time.Nanosecond) // virtual
		synctest.Wait()
		require.Equal(t, []int{2}, batches())
		require.False(t, g.add(of("orders")))
		time.Sleep(batchWait) // virtual
		synctest.Wait()
		require.Equal(t, []int{2, 1}, batches())
	})
}
