package redrive

import (
	"context"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/internal/text"
	"github.com/redrive-go/redrive/dlq/payload"
)

// readItem is a waiting item, and what the run's jq expression made of its body where that changed something.
type readItem struct {
	Item

	edited *dlq.Body
}

// readItems is the answer of a read.
type readItems struct {
	items   []readItem
	skipped []Refusal // could not be edited
	last    int64     // the last item of the read; 0 when there was none
	err     error
}

// readAhead takes what has been read, and has the next items read while the last ones are being claimed and published.
// When nothing is left behind the last one it begins anew: items that were returned wait in front.
func (d *runDriver) readAhead(ctx context.Context) error {
	if d.reading != nil {
		select {
		case r := <-d.reading:
			d.reading = nil
			if err := d.takeRead(r); err != nil {
				return err
			}
		default:
			return nil
		}
	}
	// Those ahead, and those whose skipping is not recorded yet, still wait in the store.
	known := int64(len(d.ahead) + len(d.step.Skipped))
	if d.run.State != Running || len(d.ahead) >= d.size || d.run.Counts.Waiting <= known || time.Now().Before(d.reread) {
		return nil
	}
	if d.atEnd {
		if known > 0 || d.under > 0 || d.recordable() {
			return nil
		}
		d.after, d.atEnd = 0, false
	}
	d.reading = make(chan readItems, 1)
	go d.read(ctx, d.reading, d.run.ID, d.after, d.size)
	return nil
}

// takeRead puts the answer of a read behind what is ahead.
func (d *runDriver) takeRead(r readItems) error {
	switch {
	case r.err != nil:
		return r.err
	case r.last > 0:
		d.after, d.ahead = r.last, append(d.ahead, r.items...)
		d.step.Skipped = append(d.step.Skipped, r.skipped...)
	case d.after == 0:
		d.reread = time.Now().Add(d.runner.workEvery)
	default:
		d.atEnd = true
	}
	return nil
}

// read reads waiting items and runs the jq expression over them. It runs alongside drive and touches nothing of the
// driver that changes.
func (d *runDriver) read(ctx context.Context, answer chan<- readItems, run string, after int64, limit int) {
	var r readItems
	if err := guard(func() error { return d.fill(ctx, &r, run, after, limit) }); err != nil {
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
		r.last = items[i].EntryID
		item := readItem{Item: items[i]}
		if item.edited, err = d.edit(ctx, &item.Item); err == nil {
			r.items = append(r.items, item)
		} else if ctx.Err() == nil {
			r.skipped = append(r.skipped, Refusal{
				EntryID: item.EntryID,
				Detail:  "not edited: " + text.Clean(err.Error(), text.MaxName),
			})
		}
	}
	return nil
}

// edit runs the jq expression, if there is one. An item that the run has claimed before has its edited body already.
func (d *runDriver) edit(ctx context.Context, item *Item) (*dlq.Body, error) {
	if d.jq == "" || item.Entry == nil || item.Entry.Body == nil || item.Entry.Revision != item.Revision {
		return nil, nil //nolint:nilnil // nothing is to be edited
	}
	return payload.Edit(ctx, d.runner.jq, d.jq, item.Entry.Body)
}

// endReading ends the read in flight, and waits for it.
func (d *runDriver) endReading(stop context.CancelFunc) {
	stop()
	if d.reading != nil {
		<-d.reading
		d.reading = nil
	}
}
