package kafka

import (
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// batchWait bounds how long a record waits for others.
const batchWait = time.Millisecond

// batcher combines single records of many callers into few requests. The client may have five requests in flight and
// sends records at once, so 64 callers with one record each would cause requests of a few records, and a request costs
// the broker as much as a hundred records. So a record waits while another one of its topic is unanswered, at most
// gatherWait: a slow partition does not hold the others up, and a single caller never waits.
type batcher struct {
	release func(t *gathering) // called in a goroutine that may block

	mu     sync.Mutex
	topics map[string]*gathering // those with unanswered records
}

// gathering is a topic's unanswered and waiting records.
type gathering struct {
	unanswered int
	waiting    []sending
	overdue    *time.Timer // runs while records wait
}

// sending is a record on its way to the client.
type sending struct {
	ctx    context.Context // bounds the wait for room in the client
	record *kgo.Record
	call   *call
	index  int // of the record in its call
}

// add reports whether s is to be sent at once. Otherwise release follows.
func (g *batcher) add(s sending) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	t := g.topics[s.record.Topic]
	if t == nil {
		g.topics[s.record.Topic] = &gathering{unanswered: 1}
		return true
	}
	if t.waiting = append(t.waiting, s); len(t.waiting) == 1 {
		t.overdue = time.AfterFunc(batchWait, func() { g.release(t) })
	}
	return false
}

// answered is called once for each sent record.
func (g *batcher) answered(topic string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	t := g.topics[topic]
	if t.unanswered--; t.unanswered > 0 {
		return
	}
	if len(t.waiting) == 0 {
		delete(g.topics, topic)
		return
	}
	go func() {
		runtime.Gosched() // let the callers of the answered records add their next ones first
		g.release(t)
	}()
}

// take returns the waiting records, which are to be sent now.
func (g *batcher) take(t *gathering) []sending {
	g.mu.Lock()
	defer g.mu.Unlock()
	taken := t.waiting
	if len(taken) > 0 {
		t.overdue.Stop()
		t.unanswered += len(taken)
		t.waiting = make([]sending, 0, len(taken)) // about as many are expected next
	}
	return taken
}

// takeAll returns the waiting records of all topics, which are to be sent now.
func (g *batcher) takeAll() (taken []sending) {
	g.mu.Lock()
	topics := make([]*gathering, 0, len(g.topics))
	for _, t := range g.topics {
		topics = append(topics, t)
	}
	g.mu.Unlock()
	for _, t := range topics {
		taken = append(taken, g.take(t)...)
	}
	return taken
}
