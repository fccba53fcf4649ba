package sqlqueue

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/redrive-go/redrive/internal/wait"
)

// watcher wakes a broker's idle subscriptions when they have due rows. It learns of these from this process and from
// the database's notifications, and polls for the rest with one statement for all subscriptions, so that a thousand
// cost no more than one. It is safe for concurrent use.
type watcher struct {
	first func(ctx context.Context, low, high int64) (map[int64]time.Duration, error)
	// listening reports whether the database notifies of new rows; polling then only finds missed ones.
	listening func() bool
	log       *slog.Logger

	mu      sync.Mutex
	queues  map[int64][]*reader
	waiting chan struct{} // capacity 1: a reader has begun to wait
}

// reader is a subscription, as the watcher sees it.
type reader struct {
	consumerQueue

	alarm *alarm
	gone  chan struct{} // closed when the queue no longer exists

	// Used by the watcher while the reader waits, otherwise by the stream.
	idle idleness
	poll time.Time // the next one; zero unless the reader waits
	due  bool      // the last poll found a due row
}

func newReader(q consumerQueue, longestPause time.Duration) *reader {
	return &reader{
		consumerQueue: q, alarm: newAlarm(), gone: make(chan struct{}), idle: idleness{longest: longestPause},
	}
}

func newWatcher(s *store, timeout time.Duration, listening func() bool, log *slog.Logger) *watcher {
	return &watcher{
		listening: listening, log: log, queues: map[int64][]*reader{}, waiting: make(chan struct{}, 1),
		first: func(ctx context.Context, low, high int64) (map[int64]time.Duration, error) {
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			return s.firstDue(ctx, low, high)
		},
	}
}

func (w *watcher) join(r *reader) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queues[r.id] = append(w.queues[r.id], r)
}

func (w *watcher) leave(r *reader) {
	r.alarm.stop()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.remove(r)
}

func (w *watcher) remove(r *reader) {
	w.queues[r.id] = slices.DeleteFunc(w.queues[r.id], func(other *reader) bool { return other == r })
	if len(w.queues[r.id]) == 0 {
		delete(w.queues, r.id)
	}
}

// wait returns when a row in r's queue is due, or seems to be, or the queue is gone. The pauses between the polls grow
// with each wait, until r.idle is reset.
func (w *watcher) wait(ctx context.Context, r *reader) error {
	w.mu.Lock()
	r.poll = time.Now().Add(r.idle.next(w.listening()))
	w.mu.Unlock()
	wait.Signal(w.waiting)
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		r.poll = time.Time{}
	}()
	select {
	case <-r.alarm.c:
	case <-r.gone:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// wake wakes the queue's subscriptions after a delay.
func (w *watcher) wake(queue int64, after time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.queues[queue] {
		r.alarm.set(after)
	}
}

// wakeIf wakes the subscriptions that match.
func (w *watcher) wakeIf(match func(*reader) bool, after time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, readers := range w.queues {
		for _, r := range readers {
			if match(r) {
				r.alarm.set(after)
			}
		}
	}
}

// run polls until ctx ends. Polling takes at most a twentieth of the time, except while polls are slow.
func (w *watcher) run(ctx context.Context) {
	pauses := wait.Backoff{First: 100 * time.Millisecond, Longest: 5 * time.Second}
	var earliest time.Time // for the next poll
	failures := 0
	for {
		at, low, high := w.next()
		var polls <-chan time.Time
		if !at.IsZero() {
			polls = time.After(max(time.Until(at), time.Until(earliest)))
		}
		select {
		case <-w.waiting:
			continue
		case <-polls:
		case <-ctx.Done():
			return
		}
		began := time.Now()
		first, err := w.first(ctx, low, high)
		now := time.Now()
		if err != nil {
			if failures++; failures == 1 && ctx.Err() == nil {
				w.log.WarnContext(ctx, "sqlqueue: new messages could not be polled for", "error", err)
			}
			earliest = now.Add(pauses.After(failures))
			continue
		}
		failures = 0
		earliest = now.Add(min(20*now.Sub(began), pauses.Longest)) // a frozen server delays no more
		w.polled(first, now)
	}
}

// next returns the time of the next poll and its queues; no time if no subscription waits.
func (w *watcher) next() (at time.Time, low, high int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, readers := range w.queues {
		for _, r := range readers {
			if r.poll.IsZero() {
				continue
			}
			if at.IsZero() || r.poll.Before(at) {
				at = r.poll
			}
			if low == 0 || r.id < low {
				low = r.id
			}
			high = max(high, r.id)
		}
	}
	return at, low, high
}

// polled passes the result of a poll on to the readers. A due row that stays in the queue is locked by another session,
// so the pauses between attempts to claim it grow as well.
func (w *watcher) polled(first map[int64]time.Duration, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	listening := w.listening()
	for id, readers := range w.queues {
		in, some := first[id]
		for _, r := range readers {
			if r.poll.IsZero() {
				continue
			}
			r.due = some && in <= 0
			switch {
			case !r.due:
				if some {
					r.alarm.set(in)
				}
				r.poll = now.Add(r.idle.next(listening))
			case !r.poll.After(now):
				r.poll = time.Time{}
				r.alarm.ring()
			}
		}
	}
}

// endGone ends the subscriptions whose row in redrive_queues is gone, or now belongs to another queue, as ids may start
// over: an operator has deleted it, truncated the table or restored a dump. New messages go to another row.
func (w *watcher) endGone(ctx context.Context, store *store) error {
	w.mu.Lock()
	open := maps.Clone(w.queues)
	w.mu.Unlock()
	if len(open) == 0 {
		return nil
	}
	where, args := store.byIDs(slices.Sorted(maps.Keys(open)))
	found, err := store.queues(ctx, where, args...)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for id := range open {
		for _, r := range slices.Clone(w.queues[id]) {
			if !slices.Contains(found, r.consumerQueue) {
				w.remove(r)
				close(r.gone)
			}
		}
	}
	return nil
}

// alarm rings at the earliest of the times it was set to. Its owner waits on c, and claims the due rows.
type alarm struct {
	c     chan struct{} // capacity 1
	mu    sync.Mutex
	timer *time.Timer
	at    time.Time // of the timer; zero if it does not run
}

func newAlarm() *alarm { return &alarm{c: make(chan struct{}, 1)} }

// ring wakes the owner now. An alarm stays rung until it is answered.
func (a *alarm) ring() { wait.Signal(a.c) }

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
	a.stopTimer()
	a.at = at
	a.timer = time.AfterFunc(d, a.expire)
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
	a.stopTimer()
}

func (a *alarm) stopTimer() {
	if a.timer != nil {
		a.timer.Stop()
	}
}

// Bounds of the pause between two polls of an idle queue.
const (
	shortestPause = 2 * time.Millisecond
	listenedPause = time.Second // with notifications, polling only finds missed ones
)

// idleness returns the pauses between polls: short after a message, and growing to longest.
type idleness struct{ longest, pause time.Duration }

func (i *idleness) reset() { i.pause = 0 }

func (i *idleness) next(listening bool) time.Duration {
	longest := i.longest
	if listening {
		longest = max(longest, listenedPause)
	}
	i.pause = min(max(shortestPause, 2*i.pause), longest)
	return i.pause
}
