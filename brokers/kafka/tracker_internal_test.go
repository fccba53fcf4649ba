package kafka

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func TestTracker_CommitsOnlyWhatIsContiguous(t *testing.T) {
	tr := newTracker(7, 10)
	var records []*tracked
	for _, offset := range []int64{7, 8, 12, 13} { // 9-11 were compacted away
		r, ok := tr.add(t.Context(), offset)
		require.True(t, ok)
		records = append(records, r)
	}

	tr.settle(records[1])
	tr.settle(records[2])
	_, dirty := tr.position()
	require.False(t, dirty, "offset 7 is still under way")

	tr.settle(records[0])
	next, dirty := tr.position()
	require.True(t, dirty)
	require.EqualValues(t, 13, next.offset)

	tr.committedAt(next)
	_, dirty = tr.position()
	require.False(t, dirty)

	tr.settle(records[3])
	next, _ = tr.position()
	require.EqualValues(t, 14, next.offset)
}

func TestTracker_WindowHoldsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTracker(-1, 2)
		first, _ := tr.add(t.Context(), 0)
		second, _ := tr.add(t.Context(), 1)

		added := make(chan bool, 1)
		go func() {
			_, ok := tr.add(t.Context(), 2)
			added <- ok
		}()
		synctest.Wait()
		tr.settle(second)
		synctest.Wait()
		require.Empty(t, added, "the window counts from the first record that is not settled")
		tr.settle(first)
		require.True(t, <-added)

		ctx, cancel := context.WithCancel(t.Context())
		_, _ = tr.add(ctx, 3)
		cancel()
		_, ok := tr.add(ctx, 4)
		require.False(t, ok)
	})
}
