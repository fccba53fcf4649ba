package dlq

import (
	"context"
	"sync"

	"github.com/redrive-go/redrive/dlq/driver"
)

// maxOutcomes is the number of outcomes recorded in one transaction.
const maxOutcomes = 500

// outcomes batches successes that consumers report at the same time into one change: a transaction costs a disk sync
// however small it is, and after a bulk redrive they arrive by the thousand. A caller that finds no write in progress
// starts one at once, on its own goroutine, and also writes what accumulates meanwhile; most outcomes arrive alone, and
// need no goroutine or batcher.
type outcomes struct {
	mu      sync.Mutex
	waiting []*outcomeCall
	writing bool
}

type outcomeCall struct {
	redriven

	done chan error
}

// put returns when the outcome is in the store.
func (o *outcomes) put(ctx context.Context, l *Letters, r redriven) error {
	call := &outcomeCall{redriven: r, done: make(chan error, 1)}
	o.mu.Lock()
	o.waiting = append(o.waiting, call)
	lead := !o.writing
	o.writing = true
	o.mu.Unlock()
	if lead {
		// A caller that gives up does not stop a write that others share.
		o.write(context.WithoutCancel(ctx), l)
	}
	select {
	case err := <-call.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// write writes until no caller waits, but only a few batches on the leading caller's goroutine, then on another one.
func (o *outcomes) write(ctx context.Context, l *Letters) {
	const batches = 4
	for n := 1; ; n++ {
		o.mu.Lock()
		batch := o.waiting[:min(len(o.waiting), maxOutcomes)]
		o.waiting = o.waiting[len(batch):]
		if len(batch) == 0 {
			o.writing = false
			o.mu.Unlock()
			return
		}
		o.mu.Unlock()
		if n > batches {
			go func() { // bounded: it ends when no caller waits
				o.record(ctx, l, batch)
				o.write(ctx, l)
			}()
			return
		}
		o.record(ctx, l, batch)
	}
}

func (o *outcomes) record(ctx context.Context, l *Letters, batch []*outcomeCall) {
	ctx, cancel := context.WithTimeout(ctx, l.opts.storeTimeout)
	defer cancel()
	list := make([]redriven, len(batch))
	for i, call := range batch {
		list[i] = call.redriven
	}
	results, err := l.store.Change(ctx, succeeded(list...))
	for i, call := range batch {
		if err == nil {
			call.done <- call.judge(ctx, results[i].Err, l.opts.logger)
		} else {
			call.done <- err
		}
	}
}

// succeeded is the change that records outcomes. Its time is the latest of theirs.
func succeeded(list ...redriven) driver.Change {
	c := driver.Change{Action: driver.ActionSucceed, Actor: "redrive"}
	for _, r := range list {
		c.IDs = append(c.IDs, r.ID)
		c.Reports = append(c.Reports, driver.Report{
			MessageID: r.MessageID, Topic: r.Topic, Consumer: r.Consumer, Number: r.Number,
		})
		if r.At.After(c.At) {
			c.At = r.At
		}
	}
	return c
}
