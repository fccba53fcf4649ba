package kafka

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Records that are settled during a commit are included in the next one, even if that is the last.
func TestAccount_ChangesDuringACommitAreKept(t *testing.T) {
	tr, lot := newTracker(position{offset: 0}, 10), newParked(0)
	var marks []*tracked
	for offset := range int64(3) {
		mark, _ := tr.add(t.Context(), offset)
		marks = append(marks, mark)
		lot.add(offset)
	}
	for name, c := range map[string]struct {
		account
		settle func(i int)
	}{
		"tracker": {tr, func(i int) { tr.settle(marks[i]) }},
		"parked":  {lot, func(i int) { lot.settle(int64(i)) }},
	} {
		t.Run(name, func(t *testing.T) {
			for _, settled := range []int{1, 0, 2} { // settled out of order: only the note changes, then both, then the offset
				c.settle(settled)
				at, moved := c.position()
				require.True(t, moved)
				c.committedAt(position{offset: at.offset - 1})
				_, moved = c.position()
				require.True(t, moved, "the committed position is older")
				c.committedAt(at)
				_, moved = c.position()
				require.False(t, moved)
			}
			at, _ := c.position()
			require.Equal(t, position{offset: 3}, at)
		})
	}
}
