package sqlqueue

import (
	"context"
	"maps"
	"slices"
	"sync"
)

// reads are the open streams of a broker. The row of a queue can be deleted while it is being read, by an operator, a
// restored dump or a truncated table. Later messages then go to another row, which the stream does not know. It is safe
// for concurrent use.
type reads struct {
	mu      sync.Mutex
	streams map[*stream]struct{}
}

func (r *reads) add(s *stream) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.streams == nil {
		r.streams = map[*stream]struct{}{}
	}
	r.streams[s] = struct{}{}
}

func (r *reads) remove(s *stream) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.streams, s)
}

// look ends the streams whose queue has no row any more, or whose row is another queue's: ids may start over.
func (r *reads) look(ctx context.Context, store *store) error {
	r.mu.Lock()
	open := slices.Collect(maps.Keys(r.streams))
	r.mu.Unlock()
	if len(open) == 0 {
		return nil
	}
	ids := make([]int64, len(open))
	for i, s := range open {
		ids[i] = s.queue
	}
	slices.Sort(ids)
	where, args := store.byIDs(slices.Compact(ids))
	found, err := store.queues(ctx, where, args...)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range open {
		if _, still := r.streams[s]; still && !slices.Contains(found, consumerQueue{s.queue, s.q.Topic, s.q.Group}) {
			delete(r.streams, s)
			close(s.gone)
		}
	}
	return nil
}
