package engine

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// batcher gathers items that callers add while a flush is running and passes them to the next flush: the busier the
// broker, the larger the batches, and an idle one is called at once. At most one flush runs at a time, and no goroutine
// is kept while there is nothing to do. The zero value, with flush and max set, is ready for use.
type batcher[T comparable] struct {
	flush func(batch []T)
	max   int
	size  func(item T) int // an item's weight; 1 if nil
	// linger is how long a flush that follows another waits for a batch that is worth a call. With 0 it never waits, which
	// is right if callers wait for the flush.
	linger  time.Duration
	enough  int  // items that are worth a call; max when 0
	patient bool // the first flush of an idle batcher lingers too

	mu      sync.Mutex
	pending []T
	running bool
	ended   chan struct{} // while a caller waits for the end
	full    chan struct{} // while lingering: closed to end the wait early
}

// add queues an item for the next flush.
func (b *batcher[T]) add(item T) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pending = append(b.pending, item)
	if b.full != nil && b.isEnoughLocked() {
		b.hurryLocked()
	}
	if !b.running {
		b.running = true
		go b.run()
	}
}

func (b *batcher[T]) isEnoughLocked() bool { return len(b.pending) >= cmp.Or(b.enough, b.max) }

// withdraw takes back an item that no flush has taken. It reports false if one has.
func (b *batcher[T]) withdraw(item T) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.Index(b.pending, item)
	if i >= 0 {
		b.pending = slices.Delete(b.pending, i, i+1)
	}
	return i >= 0
}

// hurryLocked ends a linger.
func (b *batcher[T]) hurryLocked() {
	if b.full != nil {
		close(b.full)
		b.full = nil
	}
}

// idle reports whether nothing is pending or running.
func (b *batcher[T]) idle() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.running
}

// drained returns a channel that closes when nothing is pending or running. It ends a linger, and is called once.
func (b *batcher[T]) drained() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hurryLocked()
	ended := make(chan struct{})
	if b.running {
		b.ended = ended
	} else {
		close(ended)
	}
	return ended
}

func (b *batcher[T]) run() {
	for {
		if b.patient {
			b.gather()
		}
		batch := b.take()
		if batch == nil {
			return
		}
		b.flush(batch)
		if !b.patient {
			b.gather()
		}
	}
}

// take returns the next batch, or nil if there is nothing to do and run must end.
func (b *batcher[T]) take() []T {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.pending) == 0 {
		b.running = false
		if b.ended != nil {
			close(b.ended)
			b.ended = nil
		}
		return nil
	}
	n := min(len(b.pending), b.max)
	if b.size != nil {
		sum := 0
		for i, item := range b.pending {
			if sum += b.size(item); i > 0 && sum > b.max {
				break
			}
			n = i + 1
		}
	}
	batch := b.pending[:n:n]
	if b.pending = b.pending[n:]; len(b.pending) == 0 {
		b.pending = make([]T, 0, n) // the next batch will be of similar size
	}
	return batch
}

// gather waits for more items if there are few.
func (b *batcher[T]) gather() {
	b.mu.Lock()
	if b.linger == 0 || b.ended != nil || len(b.pending) == 0 || b.isEnoughLocked() {
		b.mu.Unlock()
		return
	}
	full := make(chan struct{})
	b.full = full
	b.mu.Unlock()
	select {
	case <-full:
	case <-time.After(b.linger):
		b.mu.Lock()
		defer b.mu.Unlock()
		b.hurryLocked()
	}
}
