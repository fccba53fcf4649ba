package memory

import (
	"context"
	"fmt"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

var _ brokers.DepthReporter = (*Broker)(nil)

// Depths implements brokers.DepthReporter, over the queues of all brokers that are connected to this one.
func (b *Broker) Depths(ctx context.Context) ([]brokers.Depth, error) {
	if err := b.Ping(ctx); err != nil {
		return nil, fmt.Errorf("depths: %w", err)
	}
	return b.store.depths(), nil
}

func (s *store) depths() []brokers.Depth {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var found []brokers.Depth
	add := func(c consumer, waiting, retries int) {
		found = append(found,
			brokers.Depth{Topic: c.topic, Group: c.group, Kind: brokers.DepthDelayed, Messages: int64(waiting - retries)},
			brokers.Depth{Topic: c.topic, Group: c.group, Kind: brokers.DepthRetry, Messages: int64(retries)})
	}
	for c, q := range s.queues {
		waiting, retries := q.depth()
		add(c, waiting, retries)
	}
	now := time.Now()
	for topic, items := range s.orphans {
		waiting := 0
		for _, it := range items {
			if it.due.After(now) {
				waiting++
			}
		}
		add(consumer{topic: topic}, waiting, 0)
	}
	return found
}

// depth counts what waits, and what of it is no first delivery.
func (q *queue) depth() (waiting, retries int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiting), q.retries
}
