package engine

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Items added during a flush are flushed together.
func TestBatcher_GathersDuringAFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var batches [][]int
		b := &batcher[int]{max: 3}
		b.flush = func(batch []int) {
			batches = append(batches, batch)
			time.Sleep(time.Second) // virtual: the database
		}
		b.add(1)
		synctest.Wait()
		for i := 2; i <= 6; i++ {
			b.add(i)
		}
		time.Sleep(10 * time.Second) // virtual
		synctest.Wait()
		require.Equal(t, [][]int{{1}, {2, 3, 4}, {5, 6}}, batches)
	})
}

// The first item is flushed at once; later ones wait for more, but not forever.
func TestBatcher_Lingers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var at []time.Duration
		b := &batcher[int]{max: 3, linger: time.Second}
		first := make(chan struct{})
		b.flush = func([]int) {
			at = append(at, time.Since(began))
			if len(at) == 1 {
				<-first
			}
		}
		b.add(1)
		synctest.Wait()
		b.add(2)
		close(first)
		time.Sleep(5 * time.Second) // virtual
		synctest.Wait()
		require.Equal(t, []time.Duration{0, time.Second}, at)
	})
}
