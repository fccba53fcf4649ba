package kafka

import (
	"context"
	"fmt"

	"github.com/redrive-go/redrive/brokers"
)

// Joined returns when every subscription that is open now is a member of its group and reads the partitions that it
// got, which may be none. Subscribe does not wait for that: joining takes as long as the other members need to give
// partitions up, and a new group begins at the oldest record and misses nothing. With offset=newest it is the moment
// from which on what is published is received. Use it before a service reports that it is ready.
func (b *Broker) Joined(ctx context.Context) error {
	b.mu.Lock()
	closed := b.closed
	var open []*subscription
	for s := range b.subscribers {
		open = append(open, s.all()...)
	}
	b.mu.Unlock()
	if closed {
		return fmt.Errorf("kafka: join: %w", brokers.ErrClosed)
	}
	for _, s := range open {
		select {
		case <-s.joined:
		case <-s.done:
			return fmt.Errorf("kafka: join group %s on topic %s: %w", s.cfg.Group, s.topic, brokers.ErrClosed)
		case <-ctx.Done():
			return fmt.Errorf("kafka: join group %s on topic %s: %w", s.cfg.Group, s.topic, context.Cause(ctx))
		}
	}
	return nil
}
