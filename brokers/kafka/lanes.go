package kafka

import (
	"context"
	"sync"
)

// lanes runs the deliveries of one partition: at most n at once, those of one key one after the other in the order
// given, and with n = 1 all of them so. Deliveries without a key have no order among each other when n > 1.
type lanes struct {
	n   int
	run func(*delivery)

	slots   chan struct{}
	running sync.WaitGroup

	mu   sync.Mutex
	busy map[string][]*delivery // keys under way, with what waits behind them
}

func newLanes(n int, run func(*delivery)) *lanes {
	return &lanes{n: n, run: run, slots: make(chan struct{}, n), busy: map[string][]*delivery{}}
}

// take hands a delivery over. It blocks while all lanes are busy, and reports false when ctx ended first.
func (l *lanes) take(ctx context.Context, d *delivery) bool {
	if l.n > 1 && d.record.Key != nil && l.queue(d) {
		return true
	}
	select {
	case l.slots <- struct{}{}:
	case <-ctx.Done():
		if l.n > 1 && d.record.Key != nil {
			l.forget(d)
		}
		return false
	}
	if l.n == 1 {
		// In the caller: a goroutine per message would only cost, and the one that reads would run ahead for nothing.
		l.run(d)
		<-l.slots
		return true
	}
	l.running.Go(func() {
		for d != nil {
			l.run(d)
			d = l.following(d)
		}
		<-l.slots
	})
	return true
}

// queue puts d behind the one of its key that is under way, or marks the key as busy.
func (l *lanes) queue(d *delivery) (behind bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := string(d.record.Key)
	waiting, behind := l.busy[key]
	if behind {
		l.busy[key] = append(waiting, d)
		return true
	}
	l.busy[key] = nil
	return false
}

// following returns the next delivery of the key, or frees the key.
func (l *lanes) following(d *delivery) *delivery {
	if d.record.Key == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	key := string(d.record.Key)
	waiting := l.busy[key]
	if len(waiting) == 0 {
		delete(l.busy, key)
		return nil
	}
	l.busy[key] = waiting[1:]
	return waiting[0]
}

// forget frees the key of a delivery that got no lane. What queued up behind it meanwhile is dropped with it: the
// partition is being given up, and none of it is settled.
func (l *lanes) forget(d *delivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.busy, string(d.record.Key))
}

// wait returns when nothing runs any more. take must not be called after it, but by those who already do.
func (l *lanes) wait() {
	l.running.Wait()
	for range l.n {
		l.slots <- struct{}{}
	}
}
