package sqlqueue

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// watcher polls for due rows on behalf of all idle subscriptions of a broker, with one statement for all of them, so
// that a thousand cost no more than one. A subscription whose queue has a due row then queries it. It is safe for
// concurrent use.
type watcher struct {
	first func(ctx context.Context, low, high int64) (map[int64]time.Duration, error)
	// listening reports whether the database notifies of new rows; polling then only finds missed ones.
	listening func() bool
	log       *slog.Logger

	mu      sync.Mutex
	waiting map[*watch]struct{}
	joined  chan struct{} // capacity 1
}

// watch is one waiting subscription.
type watch struct {
	queue int64
	alarm *alarm
	idle  *idleness // the watcher's until the watch ends
	look  time.Time // when to poll next
	seen  chan struct{}
}

func newWatcher(s *store, timeout time.Duration, listening func() bool, log *slog.Logger) *watcher {
	return &watcher{
		listening: listening, log: log, waiting: map[*watch]struct{}{}, joined: make(chan struct{}, 1),
		first: func(ctx context.Context, low, high int64) (map[int64]time.Duration, error) {
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			return s.firstDue(ctx, low, high)
		},
	}
}

// join watches a queue, after a pause from idle. The channel is closed when a row in it is due, or seems to be; a
// future row sets the alarm. The caller leaves when it no longer needs the watch.
func (w *watcher) join(queue int64, a *alarm, idle *idleness) *watch {
	x := &watch{
		queue: queue, alarm: a, idle: idle, look: time.Now().Add(idle.next(w.listening())),
		seen: make(chan struct{}),
	}
	w.mu.Lock()
	w.waiting[x] = struct{}{}
	w.mu.Unlock()
	select {
	case w.joined <- struct{}{}:
	default:
	}
	return x
}

func (w *watcher) leave(x *watch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.waiting, x)
}

// run polls until ctx ends. Polling takes at most a twentieth of the time.
func (w *watcher) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var earliest time.Time // for the next poll
	failures := 0
	for {
		at, low, high := w.next()
		if at.IsZero() {
			select {
			case <-w.joined:
				continue
			case <-ctx.Done():
				return
			}
		}
		if at.Before(earliest) {
			at = earliest
		}
		timer.Reset(time.Until(at))
		select {
		case <-w.joined:
			continue
		case <-timer.C:
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
			earliest = now.Add(min(time.Duration(failures)*100*time.Millisecond, 5*time.Second))
			continue
		}
		failures = 0
		earliest = now.Add(20 * now.Sub(began))
		w.tell(first, now)
	}
}

// next returns the time of the next poll and its queues; no time if no subscription waits.
func (w *watcher) next() (at time.Time, low, high int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for x := range w.waiting {
		if at.IsZero() || x.look.Before(at) {
			at = x.look
		}
		if low == 0 || x.queue < low {
			low = x.queue
		}
		high = max(high, x.queue)
	}
	return at, low, high
}

// tell passes on the result of a poll.
func (w *watcher) tell(first map[int64]time.Duration, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	listening := w.listening()
	for x := range w.waiting {
		in, some := first[x.queue]
		switch {
		case !some, in > 0:
			if some {
				x.alarm.set(in)
			}
			x.look = now.Add(x.idle.next(listening))
		case !x.look.After(now):
			delete(w.waiting, x)
			close(x.seen)
		}
	}
}
