package redrive

import (
	"context"
	"errors"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/internal/guarded"
	"github.com/redrive-go/redrive/dlq/internal/text"
	"github.com/redrive-go/redrive/dlq/payload"
	"github.com/redrive-go/redrive/dlq/wire"
)

// readItem is a waiting item, and its body after the run's jq expression if that changed something.
type readItem struct {
	Item

	edited *dlq.Body
}

// readItems is the result of a read.
type readItems struct {
	items   []readItem
	skipped []Refusal // could not be edited
	last    int64     // the last item of the read; 0 without one
	err     error
}

// readAhead adds the result of the last read, and starts the next one while those items are claimed and published. At
// the end it starts over: released items wait at the front.
func (d *runDriver) readAhead(ctx context.Context) error {
	if d.reading != nil {
		select {
		case r := <-d.reading:
			d.reading = nil
			if err := d.addRead(r); err != nil {
				return err
			}
		default:
			return nil
		}
	}
	// Those ahead, and those whose skipping is not recorded yet, are still waiting in the store.
	known := int64(len(d.ahead) + len(d.step.Skipped))
	if d.run.State != Running || d.enoughAhead() || d.run.Counts.Waiting <= known || time.Now().Before(d.reread) {
		return nil
	}
	if d.atEnd {
		if known > 0 || d.inFlight > 0 || d.recordable() {
			return nil
		}
		d.after, d.atEnd = 0, false
	}
	d.reading = make(chan readItems, 1)
	go d.read(ctx, d.reading, d.run.ID, d.after, d.size)
	return nil
}

// enoughAhead reports whether the next batch has been read. A few large messages are one: more would fill the memory.
func (d *runDriver) enoughAhead() bool {
	var bytes int64
	for i := range d.ahead {
		if e := d.ahead[i].Entry; e != nil {
			bytes += e.Size
		}
	}
	return len(d.ahead) >= d.size || bytes >= batchBytes
}

// addRead appends the result of a read to the items ahead.
func (d *runDriver) addRead(r readItems) error {
	switch {
	case r.err != nil:
		return r.err
	case r.last > 0:
		d.failures, d.after, d.ahead = 0, r.last, append(d.ahead, r.items...)
		d.step.Skipped = append(d.step.Skipped, r.skipped...)
	case d.after == 0:
		d.reread = time.Now().Add(d.runner.cfg.WorkInterval)
	default:
		d.atEnd = true
	}
	return nil
}

// read reads waiting items and evaluates the jq expression on them. It runs concurrently with drive, and uses no field
// that drive changes.
func (d *runDriver) read(ctx context.Context, answer chan<- readItems, run string, after int64, limit int) {
	var r readItems
	if err := guarded.Call(func() error { return d.fill(ctx, &r, run, after, limit) }); err != nil {
		r = readItems{err: err}
	}
	if ctx.Err() != nil {
		r = readItems{err: ctx.Err()}
	}
	answer <- r
}

func (d *runDriver) fill(ctx context.Context, r *readItems, run string, after int64, limit int) error {
	items, err := d.runner.runs.NextItems(ctx, run, after, limit, batchBytes)
	if err != nil {
		return err
	}
	for i := range items {
		item := readItem{Item: items[i]}
		switch item.edited, err = d.edit(ctx, &item.Item); {
		case err == nil:
			r.items = append(r.items, item)
		case i > 0 && errors.Is(err, payload.ErrNotEvaluated): // the next read begins here
			return nil
		case ctx.Err() != nil, errors.Is(err, payload.ErrNotEvaluated):
			return err
		default:
			r.skipped = append(r.skipped, Refusal{
				EntryID: item.EntryID,
				Detail:  wire.NotEdited + text.Clean(err.Error(), text.MaxName),
			})
		}
		r.last = item.EntryID
	}
	return nil
}

// edit evaluates the jq expression, if there is one. An item that the run has claimed before has its edited body
// already.
func (d *runDriver) edit(ctx context.Context, item *Item) (*dlq.Body, error) {
	if d.jq == "" || item.Entry == nil || item.Entry.Body == nil || item.Entry.Revision != item.Revision {
		return nil, nil //nolint:nilnil // nothing to edit
	}
	return payload.Edit(ctx, d.runner.cfg.JQ, d.jq, item.Entry.Body)
}
