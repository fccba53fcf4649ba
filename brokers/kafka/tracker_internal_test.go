package kafka

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestTracker_CommitsContiguousOffsets(t *testing.T) {
	tr := newTracker(position{offset: 7}, 10)
	var records []*tracked
	for _, offset := range []int64{7, 8, 12, 13} { // 9-11 were compacted away
		r, ok := tr.add(t.Context(), offset)
		require.True(t, ok)
		records = append(records, r)
	}

	tr.settle(records[1])
	tr.settle(records[3])
	at, moved := tr.position()
	require.True(t, moved)
	require.EqualValues(t, 7, at.offset, "still in progress")

	// The next owner skips the records after it that are settled.
	successor := newTracker(at, 10)
	for offset, known := range map[int64]bool{7: false, 8: true, 12: false, 13: true, 14: false} {
		require.Equal(t, known, successor.known(offset), offset)
	}

	tr.committedAt(at)
	_, moved = tr.position()
	require.False(t, moved)

	tr.settle(records[0])
	at, moved = tr.position()
	require.True(t, moved)
	require.EqualValues(t, 12, at.offset)

	tr.settle(records[2])
	at, _ = tr.position()
	require.Equal(t, position{offset: 14}, at)
}

// A note has limited room. Records that do not fit are handled again; no unsettled record is treated as settled.
func TestPackNote_DropsOnlySettledRecords(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		base := rapid.Int64Range(0, 1<<40).Draw(t, "base")
		n := rapid.IntRange(1, 5000).Draw(t, "n")
		stride := rapid.Int64Range(1, 100_000).Draw(t, "stride")
		var waiting []int64
		for i := range n {
			waiting = append(waiting, base+int64(i)*stride)
		}
		end := waiting[n-1] + rapid.Int64Range(1, 1000).Draw(t, "behind")

		note := packNote(waiting, end)
		require.LessOrEqual(t, len(note), maxNote)
		kept, keptEnd := unpackNote(position{offset: base, note: note})
		require.LessOrEqual(t, keptEnd, end)
		for _, offset := range waiting {
			_, ok := kept[offset]
			require.True(t, ok || offset >= keptEnd, "offset %d", offset)
		}
	})
}

// Any client can write the note that Kafka stores with an offset.
func TestUnpackNote_IgnoresForeignNotes(t *testing.T) {
	for _, note := range []string{"", "x", "AAAA!", "////", "/w", "AQ", "watermill"} {
		waiting, end := unpackNote(position{offset: 5, note: note})
		require.Nil(t, waiting, note)
		require.EqualValues(t, 5, end, note)
	}
}

func TestTracker_WindowIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTracker(position{offset: -1}, 2)
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
