package kafka

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"
)

func TestTracker_CommitsContiguousOffsets(t *testing.T) {
	tr := newTracker(position{offset: 7}, 10)
	for _, offset := range []int64{7, 8, 12, 13} { // 9-11 were compacted away
		require.True(t, tr.add(t.Context(), &kgo.Record{Offset: offset}))
	}

	tr.settle(8)
	tr.settle(13)
	at, moved := tr.position()
	require.True(t, moved)
	require.EqualValues(t, 7, at.offset, "still in progress")

	// The next owner skips the records after it that are settled.
	successor := newTracker(at, 10)
	for offset, known := range map[int64]bool{7: false, 8: true, 12: false, 13: true, 14: false} {
		require.Equal(t, known, successor.known(&kgo.Record{Offset: offset}), offset)
	}

	tr.committedAt(at)
	_, moved = tr.position()
	require.False(t, moved)

	tr.settle(7)
	at, moved = tr.position()
	require.True(t, moved)
	require.EqualValues(t, 12, at.offset)

	tr.settle(12)
	at, _ = tr.position()
	require.Equal(t, position{offset: 14}, at)
}

// After an unclean election, other records have the offsets that the note of an earlier leader's lists.
func TestTracker_NotesAreNotForRecordsOfALaterEpoch(t *testing.T) {
	tr := newTracker(position{offset: -1}, 10)
	for offset := range int64(3) {
		require.True(t, tr.add(t.Context(), &kgo.Record{Offset: offset, LeaderEpoch: 4}))
	}
	tr.settle(2)
	at, _ := tr.position()
	require.Equal(t, position{offset: 0, epoch: 4, note: at.note}, at)

	successor := newTracker(at, 10)
	require.True(t, successor.known(&kgo.Record{Offset: 2, LeaderEpoch: 4}))
	require.False(t, successor.known(&kgo.Record{Offset: 2, LeaderEpoch: 5}))
	at.epoch = -1 // stored by an earlier version
	require.True(t, newTracker(at, 10).known(&kgo.Record{Offset: 2, LeaderEpoch: 5}))
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
	// "ACME" would be a note that all records up to offset 40 are settled.
	foreign := "ACME"
	at := stored(5, 0, &foreign).in(topicID{}) // Kafka before 2.8 has no ids of topics
	require.False(t, newTracker(at, 10).known(&kgo.Record{Offset: 6}))

	own := (&committer{}).metadata(position{offset: 5, note: foreign}, topicID{})
	at = stored(5, 0, own).in(topicID{})
	require.True(t, newTracker(at, 10).known(&kgo.Record{Offset: 6}))
}

// Records that are settled during a commit are included in the next one, even if that is the last.
func TestTracker_ChangesDuringACommitAreKept(t *testing.T) {
	tr := newTracker(position{offset: 0}, 10)
	for offset := range int64(3) {
		tr.add(t.Context(), &kgo.Record{Offset: offset})
	}
	for _, settled := range []int64{1, 0, 2} { // out of order: only the note changes, then both, then the offset
		tr.settle(settled)
		at, moved := tr.position()
		require.True(t, moved)
		tr.committedAt(position{offset: at.offset - 1})
		_, moved = tr.position()
		require.True(t, moved, "the committed position is older")
		tr.committedAt(at)
		_, moved = tr.position()
		require.False(t, moved)
	}
	at, _ := tr.position()
	require.Equal(t, position{offset: 3}, at)
}

func TestTracker_WindowIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTracker(position{offset: -1}, 2)
		tr.add(t.Context(), &kgo.Record{Offset: 0})
		tr.add(t.Context(), &kgo.Record{Offset: 1})

		added := make(chan bool, 1)
		go func() { added <- tr.add(t.Context(), &kgo.Record{Offset: 2}) }()
		synctest.Wait()
		tr.settle(1)
		synctest.Wait()
		require.Empty(t, added, "the window counts from the first record that is not settled")
		tr.settle(0)
		require.True(t, <-added)

		ctx, cancel := context.WithCancel(t.Context())
		tr.add(ctx, &kgo.Record{Offset: 3})
		cancel()
		require.False(t, tr.add(ctx, &kgo.Record{Offset: 4}))
	})
}
