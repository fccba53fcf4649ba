package dlq

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/internal/text"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/envelope"
)

// Redriven records that the consumer handled the redriven message of an entry: the entry is RESOLVED, by "redrive". It
// returns nil when that is durable, in the store or in the spool, and also when the outcome is known already or the
// entry belongs to another store: a failure to record a success must not turn it into a failure.
func (l *Letters) Redriven(ctx context.Context, r envelope.Redriven) error {
	id, err := driver.ParseID(r.EntryID)
	if err != nil || r.Number < 1 {
		l.opts.logger.WarnContext(ctx, "a redriven message has an invalid entry or redrive number",
			"entry_id", r.EntryID, "redrive", r.Number, "message_id", r.MessageID)
		return nil //nolint:nilerr // see the comment: not ours
	}
	outcome := wire.Redriven{
		ID: id, MessageID: text.Clean(r.MessageID, text.MaxName), Topic: text.Clean(r.Topic, text.MaxName),
		Consumer: text.Clean(r.Consumer, text.MaxName), Number: r.Number, At: l.storesTime(ctx, r.At),
	}
	attrs := []slog.Attr{slog.Int64("entry_id", id), slog.String("message_id", r.MessageID)}
	return l.keep(ctx, "redrive outcome", func() wire.Record { return wire.Record{Redriven: &outcome} }, attrs,
		func(ctx context.Context) error { return l.outcomes.put(ctx, l, outcome) })
}

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
	outcome wire.Redriven
	done    chan error
}

// put returns when the outcome is in the store.
func (o *outcomes) put(ctx context.Context, l *Letters, outcome wire.Redriven) error {
	call := &outcomeCall{outcome, make(chan error, 1)}
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
	list := make([]wire.Redriven, len(batch))
	for i, call := range batch {
		list[i] = call.outcome
	}
	results, err := l.store.Change(ctx, succeeded(list...))
	for i, call := range batch {
		if err == nil {
			call.done <- outcomeError(ctx, call.outcome, results[i].Err, l.opts.logger)
		} else {
			call.done <- err
		}
	}
}

// outcomeError is the store's answer to an outcome; a refusal for good is logged and is not an error.
func outcomeError(ctx context.Context, outcome wire.Redriven, err error, logger *slog.Logger) error {
	switch {
	case errors.Is(err, ErrConflict): // closed already: the same success reported twice, or an operator was faster
		logger.DebugContext(ctx, "redrive outcome changes nothing", "entry_id", outcome.ID, "error", err)
		return nil
	case errors.Is(err, ErrNotFound), errors.Is(err, ErrInvalid): // purged in the meantime, or another store's entry
		logger.WarnContext(ctx, "redrive outcome without an entry", "entry_id", outcome.ID,
			"message_id", outcome.MessageID, "error", err)
		return nil
	default:
		return err
	}
}

// succeeded is the change that records outcomes. Its time is the latest of theirs.
func succeeded(list ...wire.Redriven) driver.Change {
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
