package sqlqueue

import (
	"sync"
	"time"
)

// noticeGap is the shortest time between two notifications of one topic: PostgreSQL commits notifying transactions one
// at a time, and each wakes every listener.
const noticeGap = 10 * time.Millisecond

// notices decides which publishes notify on commit. One after a pause does, so that an idle consumer starts at once;
// those that follow within noticeGap share one notification at its end. It is safe for concurrent use.
type notices struct {
	send func(topic string, delay time.Duration)

	mu     sync.Mutex
	topics map[string]*notice
	closed bool
}

type notice struct {
	last    time.Time
	timer   *time.Timer // runs while one is due
	delay   time.Duration
	sending sync.WaitGroup
}

func newNotices(send func(topic string, delay time.Duration)) *notices {
	return &notices{send: send, topics: map[string]*notice{}}
}

// publish reports whether a publish to topic that starts now should notify on its own.
func (n *notices) publish(topic string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	t := n.topics[topic]
	if t == nil {
		t = new(notice)
		n.topics[topic] = t
	}
	now := time.Now()
	if now.Sub(t.last) < noticeGap {
		return false
	}
	t.last = now
	return true
}

// schedule sends a delayed notification for a publish that did not notify.
func (n *notices) schedule(topic string, delay time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	t := n.topics[topic]
	if n.closed || t == nil {
		return // consumers find the row by polling
	}
	if t.timer != nil {
		t.delay = min(t.delay, delay)
		return
	}
	t.delay = delay
	t.sending.Add(1)
	t.timer = time.AfterFunc(max(0, noticeGap-time.Since(t.last)), func() {
		defer t.sending.Done()
		n.mu.Lock()
		delay := t.delay
		t.timer, t.last = nil, time.Now()
		n.mu.Unlock()
		n.send(topic, delay)
	})
}

// close sends pending notifications, and waits for them.
func (n *notices) close() {
	n.mu.Lock()
	n.closed = true
	topics := n.topics
	n.mu.Unlock()
	for _, t := range topics {
		t.sending.Wait()
	}
}
