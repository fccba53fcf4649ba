package rabbitmq

import (
	"hash/maphash"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
)

// survivors remembers the messages that were under way when a session was lost and this process lived. RabbitMQ counts
// their deliveries like those that ended in a crash, and a network that breaks again and again, or a handler that is
// slower than the broker's consumer timeout, would have them dead-lettered.
type survivors struct {
	mu    sync.Mutex
	limit int
	times map[messageKey]int
	order []messageKey // oldest first
}

// messageKey tells messages apart: by their id, or without one by their payload.
type messageKey struct {
	id   string
	hash uint64
}

var seed = maphash.MakeSeed()

func keyOf(m *message.Message) messageKey {
	if m.UUID != "" {
		return messageKey{id: m.UUID}
	}
	return messageKey{hash: maphash.Bytes(seed, m.Payload)}
}

func newSurvivors(limit int) *survivors {
	return &survivors{limit: limit, times: map[messageKey]int{}}
}

// add notes that key survived once more. The oldest is forgotten when there are too many.
func (s *survivors) add(key messageKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.times[key] == 0 {
		s.order = append(s.order, key)
	}
	s.times[key]++
	if len(s.order) > s.limit {
		delete(s.times, s.order[0])
		s.order = s.order[1:]
	}
}

// count returns how often key survived.
func (s *survivors) count(key messageKey) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.times[key]
}

// underWay are the messages of one session that have no answer yet.
type underWay struct {
	mu   sync.Mutex
	keys map[uint64]messageKey // by delivery tag
}

func (u *underWay) begin(tag uint64, key messageKey) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.keys[tag] = key
}

func (u *underWay) end(tag uint64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.keys, tag)
}

// survive moves what is under way to s.
func (u *underWay) survive(s *survivors) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, key := range u.keys {
		s.add(key)
	}
	clear(u.keys)
}
