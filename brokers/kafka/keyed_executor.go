package kafka

import (
	"context"
	"sync"
)

// keyedExecutor runs the deliveries of one partition: at most n at once, those of one key one after the other in the
// given order, and with n = 1 all of them. Deliveries without a key are not ordered if n > 1.
type keyedExecutor struct {
	n   int
	run func(*delivery)

	slots   chan struct{}
	running sync.WaitGroup

	mu   sync.Mutex
	busy map[string][]*delivery // keys in flight, with the deliveries waiting behind them
}

func newKeyedExecutor(n int, run func(*delivery)) *keyedExecutor {
	return &keyedExecutor{n: n, run: run, slots: make(chan struct{}, n), busy: map[string][]*delivery{}}
}

// take accepts a delivery. It blocks while n deliveries run, and reports false if ctx ended first.
func (e *keyedExecutor) take(ctx context.Context, d *delivery) bool {
	if e.n > 1 && d.record.Key != nil && e.queue(d) {
		return true
	}
	select {
	case e.slots <- struct{}{}:
	case <-ctx.Done():
		if e.n > 1 && d.record.Key != nil {
			e.forget(d)
		}
		return false
	}
	if e.n == 1 {
		// In the caller: a goroutine per message would only cost, and the reader would run ahead for nothing.
		e.run(d)
		<-e.slots
		return true
	}
	e.running.Go(func() {
		for d != nil {
			e.run(d)
			d = e.following(d)
		}
		<-e.slots
	})
	return true
}

// queue puts d behind the one of its key that is in flight, or marks the key as busy.
func (e *keyedExecutor) queue(d *delivery) (behind bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	key := string(d.record.Key)
	waiting, behind := e.busy[key]
	if behind {
		e.busy[key] = append(waiting, d)
		return true
	}
	e.busy[key] = nil
	return false
}

// following returns the next delivery of the key, or frees the key.
func (e *keyedExecutor) following(d *delivery) *delivery {
	if d.record.Key == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	key := string(d.record.Key)
	waiting := e.busy[key]
	if len(waiting) == 0 {
		delete(e.busy, key)
		return nil
	}
	e.busy[key] = waiting[1:]
	return waiting[0]
}

// forget frees the key of a delivery that was not run. Deliveries queued behind it are dropped with it: the partition
// is being given up, and none of them is settled.
func (e *keyedExecutor) forget(d *delivery) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.busy, string(d.record.Key))
}

// wait returns when nothing runs any more. take must not be called after it, except by running deliveries.
func (e *keyedExecutor) wait() {
	e.running.Wait()
	for range e.n {
		e.slots <- struct{}{}
	}
}
