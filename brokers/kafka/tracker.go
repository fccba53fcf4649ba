package kafka

import (
	"context"
	"sync"
)

// tracker knows which records of one partition are in flight, and from which offset a successor has to read: the first
// record that is not settled. Records are settled in any order; those settled after the first are recorded in the
// position's note, so that the successor skips them. It is safe for concurrent use.
type tracker struct {
	window int

	mu      sync.Mutex
	records []*tracked    // in order of offset; a settled head is removed at once
	next    int64         // offset to commit, negative before the first record is settled
	seen    int64         // offset after the last record, negative before the first
	changed bool          // since the last commit
	room    chan struct{} // a token when the window may have room again

	before    map[int64]struct{} // records that the predecessor had not settled, below beforeEnd
	beforeEnd int64
}

type tracked struct {
	offset  int64
	settled bool
}

// newTracker starts at the group's position.
func newTracker(at position, window int) *tracker {
	t := &tracker{window: window, next: at.offset, seen: at.offset, room: make(chan struct{}, 1), changed: at.fresh}
	t.before, t.beforeEnd = unpackNote(at)
	return t
}

// known reports whether the predecessor has already settled a record.
func (t *tracker) known(offset int64) bool {
	if t.before == nil || offset >= t.beforeEnd {
		return false
	}
	_, waiting := t.before[offset]
	return !waiting
}

// add records that a record is in flight. It blocks while the window is full, and reports false if ctx ended first.
func (t *tracker) add(ctx context.Context, offset int64) (*tracked, bool) {
	r := &tracked{offset: offset}
	for {
		t.mu.Lock()
		if len(t.records) < t.window {
			t.records = append(t.records, r)
			t.seen = offset + 1
			t.mu.Unlock()
			return r, true
		}
		t.mu.Unlock()
		select {
		case <-t.room:
		case <-ctx.Done():
			return nil, false
		}
	}
}

// expects returns the next offset, or a negative one if the first record is not known.
func (t *tracker) expects() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.seen
}

// settle marks the record as done.
func (t *tracker) settle(r *tracked) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r.settled = true
	t.changed = true
	if t.records[0] != r {
		return
	}
	done := 0
	for done < len(t.records) && t.records[done].settled {
		t.next = t.records[done].offset + 1
		t.records[done] = nil
		done++
	}
	t.records = t.records[done:]
	select {
	case t.room <- struct{}{}:
	default:
	}
}

// position returns the position to commit, and whether it has moved since the last commit.
func (t *tracker) position() (at position, moved bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.now(), t.changed
}

// now is position for callers that hold mu.
func (t *tracker) now() (at position) {
	at.note = t.note() // needs the final next
	at.offset = t.next
	return at
}

// note encodes the records settled after the first unsettled one, relative to next.
func (t *tracker) note() string {
	last := len(t.records) - 1
	for last >= 0 && !t.records[last].settled {
		last--
	}
	if last < 0 {
		return ""
	}
	var waiting []int64
	for _, r := range t.records[:last] {
		if !r.settled {
			waiting = append(waiting, r.offset)
		}
	}
	t.next = waiting[0] // the same, or after offsets without a record
	return packNote(waiting, t.records[last].offset+1)
}

// committedAt forgets the change, unless there has been another one since.
func (t *tracker) committedAt(at position) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.changed = t.now() != at
}
