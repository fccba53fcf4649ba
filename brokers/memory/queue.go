package memory

import (
	"container/heap"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// queue holds the messages of one topic that one group has yet to handle. Its subscribers compete for it.
//
// mu is held only briefly, never while a channel blocks: under testing/synctest a goroutine that waits for a mutex is
// not idle, and virtual time would stand still.
type queue struct {
	mu       sync.Mutex
	ready    []*item
	waiting  dueHeap
	retries  int          // how many of those waiting are retries
	receiver []chan *item // receivers that found nothing ready, in order of arrival; each has room for one item
	inFlight int
	timer    *time.Timer // fires at the first due time; nil until something waits
	closed   bool

	streams atomic.Int64 // that read it
}

// put stores it, to be delivered when it is due.
func (q *queue) put(it *item) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.putLocked(it)
}

func (q *queue) putLocked(it *item) {
	if !it.due.IsZero() && it.due.After(time.Now()) {
		heap.Push(&q.waiting, it)
		if it.retry() {
			q.retries++
		}
		if q.waiting[0] == it {
			q.setTimer()
		}
		return
	}
	if len(q.receiver) == 0 {
		q.ready = append(q.ready, it)
		return
	}
	q.hand(it)
}

// hand passes it to the receiver that has waited longest. The channel has room, so this does not block.
func (q *queue) hand(it *item) {
	r := q.receiver[0]
	q.receiver = q.receiver[1:]
	q.inFlight++
	r <- it
}

// receive takes the next item, waiting for one until stop is closed. mailbox is the caller's channel with room for one
// item; ok is false after stop.
func (q *queue) receive(mailbox chan *item, stop <-chan struct{}) (it *item, ok bool) {
	select {
	case <-stop:
		return nil, false
	default:
	}
	q.mu.Lock()
	if len(q.ready) > 0 {
		it := q.ready[0]
		q.ready[0] = nil
		q.ready = q.ready[1:]
		q.inFlight++
		q.mu.Unlock()
		return it, true
	}
	q.receiver = append(q.receiver, mailbox)
	q.mu.Unlock()

	select {
	case it := <-mailbox:
		return it, true
	case <-stop:
	}
	q.mu.Lock()
	if i := slices.Index(q.receiver, mailbox); i >= 0 {
		q.receiver = slices.Delete(q.receiver, i, i+1)
		q.mu.Unlock()
		return nil, false
	}
	q.mu.Unlock()
	// An item was handed over between stop and the lock. It belongs to the next receiver.
	q.giveBack(<-mailbox)
	return nil, false
}

// ack forgets a received item.
func (q *queue) ack() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.inFlight--
}

// nack stores a received item again, to be redelivered after a pause.
func (q *queue) nack(it *item, pause time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.inFlight--
	it.due = time.Now().Add(pause)
	it.deliveries++
	q.putLocked(it)
}

// giveBack returns a received item to the front, as if it had not been received.
func (q *queue) giveBack(it *item) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.inFlight--
	if len(q.receiver) > 0 {
		q.hand(it)
		return
	}
	q.ready = slices.Insert(q.ready, 0, it)
}

// open restarts the timer after close.
func (q *queue) open() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = false
	if len(q.waiting) > 0 {
		q.setTimer()
	}
}

// close stops the timer. Stored items remain readable.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	if q.timer != nil {
		q.timer.Stop()
	}
}

// setTimer makes the timer fire when the first waiting item is due.
func (q *queue) setTimer() {
	if q.closed {
		return
	}
	wait := time.Until(q.waiting[0].due)
	if q.timer == nil {
		q.timer = time.AfterFunc(wait, q.wake)
		return
	}
	q.timer.Reset(wait)
}

// wake moves due items to the receivers, and sets the timer for the rest.
func (q *queue) wake() {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	for len(q.waiting) > 0 && !q.waiting[0].due.After(now) {
		it := heap.Pop(&q.waiting).(*item)
		if it.retry() {
			q.retries--
		}
		it.due = time.Time{}
		q.putLocked(it)
	}
	if len(q.waiting) > 0 {
		q.setTimer()
	}
}

// dueHeap orders items by due time, and those due at once in order of arrival.
type dueHeap []*item

func (h dueHeap) Len() int { return len(h) }

func (h dueHeap) Less(i, j int) bool {
	if c := h[i].due.Compare(h[j].due); c != 0 {
		return c < 0
	}
	return h[i].position < h[j].position
}

func (h dueHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *dueHeap) Push(x any) { *h = append(*h, x.(*item)) }

// Pop implements heap.Interface.
func (h *dueHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return last
}
