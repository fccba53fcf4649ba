package memory

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/redrive-go/redrive/brokers"
)

// consumer identifies a queue: the messages of one topic for one group.
type consumer struct{ topic, group string }

// store holds the queues. Brokers that are connected to each other share one.
type store struct {
	patterns bool // topics of subscriptions are patterns

	position atomic.Int64

	mu      sync.RWMutex
	queues  map[consumer]*queue
	byTopic map[string][]*queue // queues by the topic of their subscription; unused with patterns
	bound   map[consumer][]string
	orphans map[string][]*item // messages of topics that no group has subscribed to yet
	brokers int                // open ones; the last to close stops the timers, the next to connect restarts them
}

func newStore(cfg brokers.Config) *store {
	return &store{
		patterns: cfg.Naming.Patterns,
		queues:   map[consumer]*queue{},
		byTopic:  map[string][]*queue{},
		bound:    map[consumer][]string{},
		orphans:  map[string][]*item{},
	}
}

// publish stores its items for every group that reads topic, in order, or keeps them for the first group.
func (s *store) publish(topic string, items []*item) {
	for _, it := range items {
		it.position = s.position.Add(1)
	}
	s.mu.RLock()
	readers := s.readers(topic)
	for _, it := range items {
		for i, q := range readers {
			own := it
			if i < len(readers)-1 { // the last reader takes the item itself
				clone := *it
				own = &clone
			}
			q.put(own)
		}
	}
	s.mu.RUnlock()
	if len(readers) > 0 {
		return
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	// A group may have subscribed between the two locks; then the orphans belong to it.
	readers = s.readers(topic)
	if len(readers) == 0 {
		s.orphans[topic] = append(s.orphans[topic], items...)
		return
	}
	for _, it := range items {
		for _, q := range readers {
			own := *it
			q.put(&own)
		}
	}
}

// has reports whether the consumer has a queue.
func (s *store) has(c consumer) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.queues[c] != nil
}

// isRead reports whether a group reads topic.
func (s *store) isRead(topic string) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.readers(topic)) > 0
}

// readers returns the queues that receive a message published to topic.
func (s *store) readers(topic string) []*queue {
	if !s.patterns {
		return s.byTopic[topic]
	}
	var readers []*queue
	for c, q := range s.queues {
		if s.reads(c, topic) {
			readers = append(readers, q)
		}
	}
	return readers
}

// reads reports whether a consumer sees the messages of topic.
func (s *store) reads(c consumer, topic string) bool {
	if !s.patterns {
		return c.topic == topic
	}
	if brokers.MatchPattern(c.topic, topic) {
		return true
	}
	for _, p := range s.bound[c] {
		if brokers.MatchPattern(p, topic) {
			return true
		}
	}
	return false
}

// queue returns the consumer's queue. A new one takes the messages that waited for a first group, and from then on
// receives messages published to its topic and to the patterns bound to it.
func (s *store) queue(c consumer, bind ...string) *queue {
	s.mu.RLock()
	q, ok := s.queues[c]
	s.mu.RUnlock()
	if ok && len(bind) == 0 {
		return q
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	if q, ok = s.queues[c]; !ok {
		q = &queue{closed: s.brokers == 0}
		s.queues[c] = q
		s.byTopic[c.topic] = append(s.byTopic[c.topic], q)
	}
	for _, p := range bind {
		if !slices.Contains(s.bound[c], p) {
			s.bound[c] = append(s.bound[c], p)
		}
	}
	for topic, items := range s.orphans {
		if !s.reads(c, topic) {
			continue
		}
		delete(s.orphans, topic)
		for _, it := range items {
			q.put(it)
		}
	}
	return q
}

func (s *store) connect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.brokers++
	if s.brokers > 1 {
		return
	}
	for _, q := range s.queues {
		q.open()
	}
}

func (s *store) disconnect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.brokers--
	if s.brokers > 0 {
		return
	}
	for _, q := range s.queues {
		q.close()
	}
}
