package sqlqueue

import (
	"context"
	"time"
)

// mover changes the rows of deliveries that are rescheduled while they are handled, those of many handlers at a time.
type mover struct {
	batcher[*move]
	store   *store
	timeout time.Duration
}

// move is one handler's request.
type move struct {
	moved
	done chan error // capacity 1
}

func newMover(s *store, timeout time.Duration) *mover {
	m := &mover{store: s, timeout: timeout}
	m.batcher = batcher[*move]{flush: m.apply, max: maxRows}
	return m
}

// move returns when the row is stored with its new content and due time, or ErrLeaseLost when it is another worker's. When
// ctx ends first, the row may be moved or not.
func (m *mover) move(ctx context.Context, r moved) error {
	request := &move{moved: r, done: make(chan error, 1)}
	m.add(request)
	select {
	case err := <-request.done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (m *mover) apply(batch []*move) {
	for len(batch) > 0 {
		n, bytes := 0, 0
		for ; n < len(batch); n++ {
			if bytes += batch[n].size(); n > 0 && bytes > maxBytes {
				break
			}
		}
		m.applyTogether(batch[:n])
		batch = batch[n:]
	}
}

// applyTogether tries each request by itself when the database refuses them together.
func (m *mover) applyTogether(batch []*move) {
	ctx, cancel := context.WithTimeout(context.Background(), m.timeout)
	defer cancel()
	rows := make([]moved, len(batch))
	for i, r := range batch {
		rows[i] = r.moved
	}
	done, err := m.store.move(ctx, m.store.db, m.store.worker, rows)
	if err != nil && len(batch) > 1 && !unreachable(err) {
		for _, r := range batch {
			m.applyTogether([]*move{r})
		}
		return
	}
	for _, r := range batch {
		switch {
		case err != nil:
			r.done <- err
		case !done[r.id]:
			r.done <- ErrLeaseLost
		default:
			r.done <- nil
		}
	}
}
