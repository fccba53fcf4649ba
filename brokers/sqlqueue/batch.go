package sqlqueue

import (
	"sync"
	"time"
)

// batcher gathers what callers add while a flush is under way and hands it to the next flush: the busier the database,
// the larger the batches, and an idle one is asked at once. No more than one flush runs at a time, and no goroutine is
// kept while there is nothing to do. The zero value, with flush and max set, is ready for use.
type batcher[T any] struct {
	flush func(batch []T)
	max   int
	// linger is how long a flush that follows another waits for a batch that is worth a statement. 0 never waits, which
	// is right when callers wait for the flush.
	linger time.Duration

	mu      sync.Mutex
	pending []T
	running bool
	full    chan struct{} // while lingering: closed when the wait is over early
}

// add queues items for the next flush.
func (b *batcher[T]) add(items ...T) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pending = append(b.pending, items...)
	if b.full != nil && len(b.pending) >= b.max {
		close(b.full)
		b.full = nil
	}
	if !b.running && len(b.pending) > 0 {
		b.running = true
		go b.run()
	}
}

// hurry ends a linger.
func (b *batcher[T]) hurry() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.full != nil {
		close(b.full)
		b.full = nil
	}
}

func (b *batcher[T]) run() {
	for {
		batch := b.take()
		if batch == nil {
			return
		}
		b.flush(batch)
		b.gather()
	}
}

// take returns the next batch, or nil when there is nothing to do and run must end.
func (b *batcher[T]) take() []T {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := min(len(b.pending), b.max)
	if n == 0 {
		b.running = false
		return nil
	}
	batch := b.pending[:n:n]
	if b.pending = b.pending[n:]; len(b.pending) == 0 {
		b.pending = make([]T, 0, n) // the next batch will be of much the same size
	}
	return batch
}

// gather waits for more items, if there are some but few.
func (b *batcher[T]) gather() {
	b.mu.Lock()
	if b.linger == 0 || len(b.pending) == 0 || len(b.pending) >= b.max {
		b.mu.Unlock()
		return
	}
	full := make(chan struct{})
	b.full = full
	b.mu.Unlock()
	timer := time.NewTimer(b.linger)
	defer timer.Stop()
	select {
	case <-full:
	case <-timer.C:
		b.hurry()
	}
}
