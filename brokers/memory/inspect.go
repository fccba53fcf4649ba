package memory

import (
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Depth counts the messages of one consumer.
type Depth struct {
	// Ready to be delivered.
	Ready int
	// Waiting for their due time.
	Waiting int
	// InFlight are handed out, and neither acked nor nacked.
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
func (b *Broker) Depth(topic, groupName string) Depth {
	var d Depth
	b.store.inspect(consumer{topic, group(groupName)}, func(ready, waiting []*item, inFlight int) {
		d = Depth{Ready: len(ready), Waiting: len(waiting), InFlight: inFlight}
	})
	return d
}

// Peek returns copies of the ready messages in order of delivery, without removing them. Tests read dead letter queues
// with it.
func (b *Broker) Peek(topic, groupName string) []*message.Message {
	var found []*message.Message
	b.store.inspect(consumer{topic, group(groupName)}, func(ready, _ []*item, _ int) {
		for _, it := range ready {
			found = append(found, it.message())
		}
	})
	return found
}

// Waiting returns copies of the messages that wait for their due time, in order of delivery.
func (b *Broker) Waiting(topic, groupName string) []Waiting {
	var found []Waiting
	b.store.inspect(consumer{topic, group(groupName)}, func(_, waiting []*item, _ int) {
		for _, it := range waiting {
			found = append(found, Waiting{Due: it.due, Message: it.message()})
		}
	})
	slices.SortStableFunc(found, func(a, b Waiting) int { return a.Due.Compare(b.Due) })
	return found
}

// inspect calls look with the messages stored for c, under the lock.
func (s *store) inspect(c consumer, look func(ready, waiting []*item, inFlight int)) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	q, ok := s.queues[c]
	if !ok {
		var ready, waiting []*item
		for _, it := range s.orphans[c.topic] {
			if it.due.After(time.Now()) {
				waiting = append(waiting, it)
			} else {
				ready = append(ready, it)
			}
		}
		look(ready, waiting, 0)
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	look(q.ready, q.waiting, q.inFlight)
}
