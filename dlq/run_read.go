package dlq

import (
	"context"
	"time"
)

// readItem is a waiting item, and what the run's jq expression made of its body where that changed something.
type readItem struct {
	RunItem

	edited *Body
}

// readItems is the answer of a read.
type readItems struct {
	items   []readItem
	skipped []RunRefusal // could not be edited
	last    int64        // the last item of the read; 0 when there was none
	err     error
}

// readAhead takes what has been read, and has the next items read while the last ones are being claimed and published. When nothing is
// left behind the last one it begins anew: items that were given back wait in front.
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
	if d.run.State != RunRunning || len(d.ahead) >= d.size || d.run.Counts.Waiting <= known || time.Now().Before(d.reread) {
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
		d.reread = time.Now().Add(d.m.workEvery)
	default:
		d.atEnd = true
	}
	return nil
}

// read reads waiting items and runs the jq expression over them. It runs beside drive and touches nothing of the driver that changes.
func (d *runDriver) read(ctx context.Context, answer chan<- readItems, run string, after int64, limit int) {
	var r readItems
	items, err := d.m.store.NextItems(ctx, run, after, limit, batchBytes)
	r.err = err
	for i := range items {
		r.last = items[i].EntryID
		item := readItem{RunItem: items[i]}
		if item.edited, err = d.edit(ctx, &item.RunItem); err == nil {
			r.items = append(r.items, item)
		} else if ctx.Err() == nil {
			r.skipped = append(r.skipped, RunRefusal{EntryID: item.EntryID, Detail: "not edited: " + clean(err.Error(), maxName)})
		}
	}
	if ctx.Err() != nil {
		r = readItems{err: ctx.Err()}
	}
	answer <- r
}

// edit runs the jq expression, if there is one. An item that the run has claimed before has its edited body already.
func (d *runDriver) edit(ctx context.Context, item *RunItem) (*Body, error) {
	if d.program == nil || item.Entry == nil || item.Entry.Body == nil || item.Entry.Revision != item.Revision {
		return nil, nil //nolint:nilnil // nothing is to be edited
	}
	return d.program.edit(ctx, item.Entry.Body)
}

// endReading ends the read under way, and waits for it.
func (d *runDriver) endReading(stop context.CancelFunc) {
	stop()
	if d.reading != nil {
		<-d.reading
		d.reading = nil
	}
}
