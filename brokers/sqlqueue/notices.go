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
	gaps   map[string]*gap
	ending sync.WaitGroup
	closed bool
}

// gap follows a notification.
type gap struct {
	another bool // a notification is due at its end
	delay   time.Duration
}

func newNotices(send func(topic string, delay time.Duration)) *notices {
	return &notices{send: send, gaps: map[string]*gap{}}
}

// publish reports whether a publish to topic that starts now should notify on its own.
func (n *notices) publish(topic string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.gaps[topic] != nil {
		return false
	}
	n.begin(topic)
	return true
}

// schedule sends a delayed notification for a publish that did not notify.
func (n *notices) schedule(topic string, delay time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	g := n.gaps[topic]
	if g == nil {
		g = n.begin(topic) // the publish took longer than the gap
	}
	if !g.another || delay < g.delay {
		g.another, g.delay = true, delay
	}
}

func (n *notices) begin(topic string) *gap {
	g := &gap{}
	if n.closed {
		return g // consumers find the row by polling
	}
	n.gaps[topic] = g
	n.ending.Add(1)
	time.AfterFunc(noticeGap, func() {
		defer n.ending.Done()
		n.mu.Lock()
		delete(n.gaps, topic)
		if g.another {
			n.begin(topic)
		}
		n.mu.Unlock()
		if g.another {
			n.send(topic, g.delay)
		}
	})
	return g
}

// close sends pending notifications, and waits for them.
func (n *notices) close() {
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	n.ending.Wait()
}
