package sqlqueue

import "sync"

// batcher gathers what callers add while a flush is under way and hands it to the next flush: the busier the database,
// the larger the batches, and an idle one is asked at once. No more than one flush runs at a time, and no goroutine is
// kept while there is nothing to do. The zero value, with flush and max set, is ready for use.
type batcher[T any] struct {
	flush func(batch []T)
	max   int

	mu      sync.Mutex
	pending []T
	running bool
}

// add queues items for the next flush.
func (b *batcher[T]) add(items ...T) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pending = append(b.pending, items...)
	if !b.running && len(b.pending) > 0 {
		b.running = true
		go b.run()
	}
}

func (b *batcher[T]) run() {
	for {
		b.mu.Lock()
		n := min(len(b.pending), b.max)
		if n == 0 {
			b.running = false
			b.mu.Unlock()
			return
		}
		batch := b.pending[:n:n]
		if b.pending = b.pending[n:]; len(b.pending) == 0 {
			b.pending = nil
		}
		b.mu.Unlock()
		b.flush(batch)
	}
}
