package memory

import (
	"context"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/internal/depths"
)

// Depths implements brokers.DepthReporter, over the queues of all brokers that are connected to this one. It counts
// messages that are delayed, in retry, ready, and in dead letter queues.
func (b *Broker) Depths(ctx context.Context) ([]brokers.Depth, error) {
	return b.Broker.Depths(ctx, b.Transport().(*transport))
}

// Depths implements Broker.Depths.
func (t *transport) Depths(ctx context.Context) ([]brokers.Depth, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return depths.DeadLetters(t.store.depths(), t.cfg.Naming), nil
}

func (s *store) depths() []brokers.Depth {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var found []brokers.Depth
	add := func(c consumer, ready, waiting, retries int) {
		found = append(found,
			brokers.Depth{Topic: c.topic, Group: c.group, Kind: brokers.DepthDelayed, Messages: int64(waiting - retries)},
			brokers.Depth{Topic: c.topic, Group: c.group, Kind: brokers.DepthRetry, Messages: int64(retries)},
			brokers.Depth{Topic: c.topic, Group: c.group, Kind: brokers.DepthReady, Messages: int64(ready)})
	}
	for c, q := range s.queues {
		ready, waiting, retries := q.depth()
		add(c, ready, waiting, retries)
	}
	now := time.Now()
	for topic, items := range s.orphans {
		waiting := 0
		for _, it := range items {
			if it.due.After(now) {
				waiting++
			}
		}
		add(consumer{topic: topic}, len(items)-waiting, waiting, 0)
	}
	return found
}

// depth counts the ready messages, the waiting ones, and how many of those are retries.
func (q *queue) depth() (ready, waiting, retries int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.ready), len(q.waiting), q.retries
}
