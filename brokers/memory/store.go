package memory

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/envelope"
)

// consumer identifies a queue: the messages of one topic for one group.
type consumer struct{ topic, group string }

// store holds the queues. Brokers that are connected to each other share one.
//
// mu is held only briefly, never while a channel blocks: under testing/synctest a goroutine that waits for a mutex is
// not idle, and virtual time would stand still.
type store struct {
	patterns bool // topics of subscriptions are patterns

	mu       sync.Mutex
	position int64
	queues   map[consumer]*queue
	orphans  map[orphan]*queue // messages of topics that no group has subscribed to yet
}

// orphan is a topic without a reader. Patterns are for events: they do not match the name of a dead letter queue.
type orphan struct {
	topic string
	dead  bool
}

// publish stores o for every group that reads its topic, or keeps it for the first one; a retry goes to its consumer.
func (s *store) publish(o *driver.Outgoing) error {
	topic := o.To.Topic
	switch o.To.Kind {
	case driver.ToTopic:
	case driver.ToConsumer:
		topic = cmp.Or(o.Origin.RoutingKey, topic)
	case driver.ToDeadLetters:
		topic = o.To.Names.Dead
	}
	it := newItem(o, topic)

	s.mu.Lock()
	defer s.mu.Unlock()
	s.position++
	it.position = s.position
	if o.To.Kind == driver.ToConsumer {
		to := consumer{o.To.Topic, o.To.Consumer}
		if o.ExistingOnly && s.queues[to] == nil {
			return fmt.Errorf("consumer %s: %w", to.group, brokers.ErrUnroutable)
		}
		s.queue(to).put(it)
		return nil
	}
	read, of := false, orphan{topic, o.To.Kind == driver.ToDeadLetters}
	for c, q := range s.queues {
		if s.reads(c, q, of) {
			read = true
			own := *it
			q.put(&own)
		}
	}
	switch {
	case read:
	case o.ExistingOnly && o.To.Kind == driver.ToTopic:
		return fmt.Errorf("event %s: %w", topic, brokers.ErrUnroutable)
	default:
		if s.orphans[of] == nil {
			s.orphans[of] = newQueue()
		}
		s.orphans[of].put(it)
	}
	return nil
}

// reads reports whether the consumer of q sees these messages.
func (s *store) reads(c consumer, q *queue, of orphan) bool {
	if !s.patterns || of.dead {
		return c.topic == of.topic
	}
	return envelope.MatchEvent(c.topic, of.topic) ||
		slices.ContainsFunc(q.patterns, func(p string) bool { return envelope.MatchEvent(p, of.topic) })
}

// queue returns the consumer's queue, with more patterns bound to it. It takes the messages that waited for a first
// group, and from now on receives those published to its topic and its patterns.
func (s *store) queue(c consumer, patterns ...string) *queue {
	q := s.queues[c]
	if q == nil {
		q = newQueue()
		s.queues[c] = q
	}
	for _, p := range patterns {
		if !slices.Contains(q.patterns, p) {
			q.patterns = append(q.patterns, p)
		}
	}
	for of, orphans := range s.orphans {
		if s.reads(c, q, of) {
			delete(s.orphans, of)
			for _, it := range slices.Concat(orphans.ready, orphans.waiting) {
				q.put(it)
			}
		}
	}
	return q
}
