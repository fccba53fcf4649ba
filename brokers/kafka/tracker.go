package kafka

import (
	"context"
	"sync"
)

// tracker knows which records of one partition are under way, and from which offset a successor would have to read:
// the first record that is not settled. Records settle in any order. It is safe for concurrent use.
type tracker struct {
	window int

	mu        sync.Mutex
	records   []*tracked // in order of offset; a settled head is removed at once
	next      int64      // offset to commit, -1 before the first record settled
	committed int64
	room      chan struct{} // a token when the window may have room again
}

type tracked struct {
	offset  int64
	settled bool
}

// newTracker starts at the offset that is committed already, or a negative one if none is.
func newTracker(committed int64, window int) *tracker {
	return &tracker{window: window, next: committed, committed: committed, room: make(chan struct{}, 1)}
}

// add takes a record under way. It blocks while the window is full, and reports false when ctx ended first.
func (t *tracker) add(ctx context.Context, offset int64) (*tracked, bool) {
	r := &tracked{offset: offset}
	for {
		t.mu.Lock()
		if len(t.records) < t.window {
			t.records = append(t.records, r)
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

// settle says that the record needs no further work.
func (t *tracker) settle(r *tracked) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r.settled = true
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
	return position{offset: t.next}, t.next > t.committed
}

// committedAt remembers what the coordinator has stored.
func (t *tracker) committedAt(at position) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.committed = max(t.committed, at.offset)
}
