package sqlqueue

import (
	"sync"
	"time"
)

// wakeups notifies the subscriptions of this process that a queue has a due row. It is safe for concurrent use.
type wakeups struct {
	mu     sync.Mutex
	queues map[int64]*readers
}

// readers are the subscriptions to a queue.
type readers struct {
	topic  string
	alarms map[*alarm]struct{}
}

// alarm rings at the earliest of the times it was set to. Its owner waits on c, and takes the due rows.
type alarm struct {
	c     chan struct{} // capacity 1
	mu    sync.Mutex
	timer *time.Timer
	at    time.Time // of the timer; zero if it does not run
}

func newAlarm() *alarm { return &alarm{c: make(chan struct{}, 1)} }

// ring wakes the owner now. An alarm stays rung until it is answered.
func (a *alarm) ring() {
	select {
	case a.c <- struct{}{}:
	default:
	}
}

// set makes the alarm ring after d, unless it rings earlier anyway.
func (a *alarm) set(d time.Duration) {
	if d <= 0 {
		a.ring()
		return
	}
	at := time.Now().Add(d)
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.at.IsZero() && a.at.Before(at) {
		return
	}
	a.at = at
	if a.timer == nil {
		a.timer = time.AfterFunc(d, a.expire)
		return
	}
	a.timer.Reset(d)
}

func (a *alarm) expire() {
	a.mu.Lock()
	a.at = time.Time{}
	a.mu.Unlock()
	a.ring()
}

func (a *alarm) stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.timer != nil {
		a.timer.Stop()
	}
}

func (w *wakeups) join(queue int64, topic string, a *alarm) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.queues == nil {
		w.queues = map[int64]*readers{}
	}
	if w.queues[queue] == nil {
		w.queues[queue] = &readers{topic: topic, alarms: map[*alarm]struct{}{}}
	}
	w.queues[queue].alarms[a] = struct{}{}
}

func (w *wakeups) leave(queue int64, a *alarm) {
	a.stop()
	w.mu.Lock()
	defer w.mu.Unlock()
	if r := w.queues[queue]; r != nil {
		if delete(r.alarms, a); len(r.alarms) == 0 {
			delete(w.queues, queue)
		}
	}
}

// wake sets the alarms of the queue's subscriptions.
func (w *wakeups) wake(queue int64, after time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queues[queue].wake(after)
}

// wakeTopic sets the alarms of the subscriptions to topic, in every group.
func (w *wakeups) wakeTopic(topic string, after time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.queues {
		if r.topic == topic {
			r.wake(after)
		}
	}
}

// wakeAll rings every alarm, because something may have been missed.
func (w *wakeups) wakeAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.queues {
		r.wake(0)
	}
}

func (r *readers) wake(after time.Duration) {
	if r == nil {
		return
	}
	for a := range r.alarms {
		a.set(after)
	}
}
