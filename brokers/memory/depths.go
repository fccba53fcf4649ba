package memory

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
)

// Depth counts the messages of one consumer.
type Depth struct {
	// Ready to be delivered.
	Ready int
	// Waiting for their due time.
	Waiting int
	// InFlight are delivered, and neither acked nor nacked.
	InFlight int
}

// Waiting is a message that waits for its due time.
type Waiting struct {
	// Due is when it will be delivered.
	Due time.Time
	// Message is a copy.
	Message *message.Message
}

// Depth counts the messages of topic that group has yet to handle; an empty group means the default one. A topic that
// no group has subscribed to yet shows its messages under every group.
func (b *Broker) Depth(topic, group string) Depth {
	q := b.snapshot(topic, group)
	return Depth{Ready: len(q.ready), Waiting: len(q.waiting), InFlight: q.inFlight}
}

// Peek returns copies of the ready messages in order of delivery, without removing them. Tests read dead letter queues
// with it.
func (b *Broker) Peek(topic, group string) []*message.Message {
	var found []*message.Message
	for _, it := range b.snapshot(topic, group).ready {
		found = append(found, it.message())
	}
	return found
}

// Waiting returns copies of the messages that wait for their due time, in order of delivery.
func (b *Broker) Waiting(topic, group string) []Waiting {
	var found []Waiting
	for _, it := range slices.SortedFunc(slices.Values(b.snapshot(topic, group).waiting), compareDue) {
		found = append(found, Waiting{Due: it.due, Message: it.message()})
	}
	return found
}

// snapshot returns a copy of a consumer's queue, or of the messages of a topic that no group has subscribed to.
func (b *Broker) snapshot(topic, group string) queue {
	s := b.transport.store
	s.mu.Lock()
	defer s.mu.Unlock()
	q := cmp.Or(s.queues[consumer{topic, cmp.Or(group, brokers.DefaultGroup)}], s.orphans[orphan{topic: topic}],
		s.orphans[orphan{topic, true}])
	if q == nil {
		return queue{}
	}
	q.promote()
	return queue{ready: slices.Clone(q.ready), waiting: slices.Clone(q.waiting), inFlight: q.inFlight}
}

// Depths implements Broker.Depths.
func (t *transport) Depths(ctx context.Context) ([]brokers.Depth, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s := t.store
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []brokers.Depth
	count := func(c consumer, q *queue) {
		q.promote()
		retries := 0
		for _, it := range q.waiting {
			if it.again || it.deliveries > 0 {
				retries++
			}
		}
		add := func(kind brokers.DepthKind, n int) {
			found = append(found, brokers.Depth{Topic: c.topic, Group: c.group, Kind: kind, Messages: int64(n)})
		}
		add(brokers.DepthDelayed, len(q.waiting)-retries)
		add(brokers.DepthRetry, retries)
		add(brokers.DepthReady, len(q.ready))
	}
	for c, q := range s.queues {
		count(c, q)
	}
	for of, q := range s.orphans {
		count(consumer{topic: of.topic}, q)
	}
	return found, nil
}
