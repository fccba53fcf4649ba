package live

import (
	"container/heap"
	"context"
	"time"

	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/middleware"
)

// queueOf returns the state of a delivery's queue; nil beyond the limit.
func (m *Monitor) queueOf(d *middleware.Delivery) *queue {
	key := queueKey{d.Origin.Topic, d.Origin.Consumer, d.Handler}
	q := m.queues[key]
	if q == nil && len(m.queues) < maxNames {
		q = &queue{handling: map[string]time.Time{}}
		m.queues[key] = q
	}
	return q
}

// Started implements [middleware.Observer].
func (m *Monitor) Started(ctx context.Context, e middleware.Started) context.Context {
	m.mu.Lock()
	defer m.mu.Unlock()
	if q := m.queueOf(e.Delivery); q != nil {
		if _, there := q.handling[e.Message.UUID]; there {
			q.repeated++
		} else {
			q.handling[e.Message.UUID] = time.Now().UTC().Truncate(time.Microsecond)
		}
	}
	return ctx
}

// Finished implements [middleware.Observer].
func (m *Monitor) Finished(_ context.Context, e middleware.Finished) {
	if !e.Ran {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	q := m.queueOf(e.Delivery)
	switch {
	case q == nil:
	case q.repeated > 0 && q.handling[e.Message.UUID].IsZero():
		q.repeated-- // the other message has removed the id
	default:
		delete(q.handling, e.Message.UUID)
	}
}

// RetryScheduled implements [middleware.Observer].
func (m *Monitor) RetryScheduled(_ context.Context, e middleware.RetryScheduled) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if q := m.queueOf(e.Delivery); q != nil {
		q.due.add(time.Now().Add(e.Decision.Delay))
	}
}

// DeadLettered implements [middleware.Observer]: the dead letter itself reports it.
func (m *Monitor) DeadLettered(context.Context, middleware.DeadLettered) {}

// PublishFailed implements [middleware.Observer]: it is in the log.
func (m *Monitor) PublishFailed(context.Context, middleware.PublishFailed) {}

// BreakerChanged implements [middleware.Observer].
func (m *Monitor) BreakerChanged(_ context.Context, e middleware.BreakerChanged) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e.To == "closed" {
		delete(m.circuits, e.Key)
	} else if _, there := m.circuits[e.Key]; there || len(m.circuits) < maxNames {
		m.circuits[e.Key] = driver.Circuit{Key: e.Key, State: e.To, Since: time.Now().UTC().Truncate(time.Microsecond)}
	}
}

// dueTimes has when retries are due. It forgets due ones, because the broker may deliver them to any process.
type dueTimes struct {
	times timeHeap
	// more counts the retries beyond maxDue; last is when the last of them is due.
	more int64
	last time.Time
}

// maxDue limits the times that a queue keeps: 24 bytes each.
const maxDue = 100_000

func (d *dueTimes) add(at time.Time) {
	if d.forget(time.Now()); len(d.times) < maxDue {
		heap.Push(&d.times, at)
		return
	}
	d.more++
	if at.After(d.last) {
		d.last = at
	}
}

func (d *dueTimes) forget(now time.Time) {
	for len(d.times) > 0 && !d.times[0].After(now) {
		heap.Pop(&d.times)
	}
	if !d.last.After(now) {
		d.more = 0
	}
}

// dueSteps are the classes of waiting retries by the time left; the last one has the rest.
var dueSteps = []time.Duration{10 * time.Second, time.Minute, 10 * time.Minute, time.Hour, 0}

// counts returns how many wait, when the first is due, and how many are due within each step.
func (d *dueTimes) counts(now time.Time) (waiting int64, next time.Time, due []driver.DueCount) {
	d.forget(now)
	if len(d.times) == 0 && d.more == 0 {
		return 0, next, nil
	}
	numbers := make([]int64, len(dueSteps))
	numbers[len(dueSteps)-1] = d.more
	for _, at := range d.times {
		for i, step := range dueSteps {
			if step == 0 || at.Sub(now) <= step {
				numbers[i]++
				break
			}
		}
	}
	for i, n := range numbers {
		if n > 0 {
			due = append(due, driver.DueCount{Within: dueSteps[i], Messages: n})
		}
	}
	if len(d.times) > 0 {
		next = d.times[0].UTC().Truncate(time.Microsecond)
	}
	return int64(len(d.times)) + d.more, next, due
}

type timeHeap []time.Time

func (h timeHeap) Len() int           { return len(h) }
func (h timeHeap) Less(i, j int) bool { return h[i].Before(h[j]) }
func (h timeHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *timeHeap) Push(x any) { *h = append(*h, x.(time.Time)) }

// Pop implements heap.Interface.
func (h *timeHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}
