package memory

import (
	"bytes"
	"cmp"
	"container/heap"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/wait"
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

// item is one stored message of one queue. A million of them may wait for a retry, so headers are a slice of pairs,
// which takes a third of the size of a map, and shared with the items of other groups, because nothing changes them.
type item struct {
	uuid     string
	payload  []byte
	headers  []driver.Header
	topic    string // as published
	position int64
	stored   time.Time

	due        time.Time // zero if it may be delivered at once
	deliveries int       // number of nacked deliveries
	again      bool      // stored by Reschedule
}

// newItem copies the message of o.
func newItem(o *driver.Outgoing, topic string) *item {
	it := &item{
		uuid:    o.Message.UUID,
		payload: bytes.Clone(o.Message.Payload),
		headers: make([]driver.Header, 0, len(o.Message.Metadata)+len(o.Extra)),
		topic:   topic,
		stored:  time.Now(),
		due:     o.Due,
		again:   o.To.Kind == driver.ToConsumer && !o.First,
	}
	for k, v := range o.Headers() {
		it.headers = append(it.headers, driver.Header{Key: k, Value: v})
	}
	return it
}

// message renders a fresh message, so that its receiver cannot affect the next delivery.
func (it *item) message() *message.Message {
	m := message.NewMessage(it.uuid, bytes.Clone(it.payload))
	for _, h := range it.headers {
		m.Metadata[h.Key] = h.Value
	}
	return m
}

// queue holds the messages of one topic that one group has yet to handle. Its streams compete for it. The store's mutex
// guards everything but changed.
type queue struct {
	ready    []*item
	waiting  dueHeap
	inFlight int
	streams  int      // that read it
	patterns []string // bound in addition to the topic
	changed  chan struct{}
}

func newQueue() *queue { return &queue{changed: make(chan struct{}, 1)} }

// put stores it, to be delivered when it is due.
func (q *queue) put(it *item) {
	q.promote()
	if it.due.After(time.Now()) {
		heap.Push(&q.waiting, it)
	} else {
		q.ready = append(q.ready, it)
	}
	q.signal()
}

// signal makes one of the waiting streams look at the queue again. It may be called without the mutex.
func (q *queue) signal() { wait.Signal(q.changed) }

// promote makes the due items ready.
func (q *queue) promote() {
	for now := time.Now(); len(q.waiting) > 0 && !q.waiting[0].due.After(now); {
		q.ready = append(q.ready, heap.Pop(&q.waiting).(*item))
	}
}

// take removes the next ready item. Without one it returns when the first of the waiting ones is due. The stream that
// takes an item stops watching the rest: another one has to.
func (q *queue) take() (it *item, due time.Time) {
	q.promote()
	switch {
	case len(q.ready) > 0:
		it, q.ready[0] = q.ready[0], nil
		q.ready = q.ready[1:]
		q.inFlight++
		if len(q.ready)+len(q.waiting) > 0 {
			q.signal()
		}
	case len(q.waiting) > 0:
		due = q.waiting[0].due
	}
	return it, due
}

// settle ends the delivery of an item. A released one returns to the front, as if it had not been received.
func (q *queue) settle(it *item, s *driver.Settlement) {
	q.inFlight--
	switch s.Answer {
	case driver.Ack:
	case driver.Nack:
		it.due = time.Now().Add(s.Pause)
		it.deliveries++
		q.put(it)
	case driver.Release:
		q.ready = slices.Insert(q.ready, 0, it)
		q.signal()
	}
}

// dueHeap orders items by due time, and those due at once in order of arrival.
type dueHeap []*item

func compareDue(a, b *item) int {
	return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.position, b.position))
}

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return compareDue(h[i], h[j]) < 0 }
func (h dueHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *dueHeap) Push(x any) { *h = append(*h, x.(*item)) }

// Pop implements heap.Interface.
func (h *dueHeap) Pop() any {
	last := len(*h) - 1
	it := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return it
}
