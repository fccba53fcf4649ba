package sqlqueue

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// leases keeps the rows that this process has, so that a handler may take as long as it needs.
type leases struct {
	store *store
	log   *slog.Logger

	mu      sync.Mutex
	held    map[int64]*delivery
	batches map[int64]int // how many rows that share a lease have not been answered
	over    []int64       // leases that no row needs any more, until a statement ends them
}

// take remembers rows as ours and returns those that are new deliveries. A row that is known, and was not being given back,
// was claimed a second time because its lease had run out while this process was stuck, and nobody else was there: its
// handler goes on, under the new lease.
func (l *leases) take(list []*delivery) []*delivery {
	l.mu.Lock()
	defer l.mu.Unlock()
	fresh := list[:0]
	for _, d := range list {
		if known := l.held[d.row.id]; known != nil && !known.isLeaving() {
			known.revive(d.expires)
			continue
		}
		if d.row.batch != 0 {
			l.batches[d.row.batch]++
		}
		l.held[d.row.id] = d
		fresh = append(fresh, d)
	}
	return fresh
}

// drop forgets deliveries: the database knows how they ended, or they are lost.
func (l *leases) drop(list ...*delivery) {
	l.mu.Lock()
	for _, d := range list {
		if l.held[d.row.id] == d {
			delete(l.held, d.row.id)
		}
	}
	l.leave(list)
	l.mu.Unlock()
	for _, d := range list {
		if d.stored != nil {
			close(d.stored)
		}
		d.subscription.unsettled.Done()
	}
}

// leave counts answers to rows that share leases.
func (l *leases) leave(list []*delivery) {
	for _, d := range list {
		batch := d.row.batch
		if batch == 0 || d.left {
			continue
		}
		d.left = true
		if l.batches[batch]--; l.batches[batch] == 0 {
			delete(l.batches, batch)
			l.over = append(l.over, batch)
		}
	}
}

// ending returns the leases that a statement may end which stores the last answers to list. One that nothing ends runs out.
func (l *leases) ending(list []*delivery) []int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leave(list)
	over := l.over
	l.over = nil
	return over
}

// current returns the rows of those deliveries that have not been followed by another one of the same row: the lease is
// this process's for both, and only the last one may decide.
func (l *leases) current(list []*delivery) []leased {
	l.mu.Lock()
	defer l.mu.Unlock()
	rows := make([]leased, 0, len(list))
	for _, d := range list {
		if l.held[d.row.id] == d {
			rows = append(rows, d.leased())
		}
	}
	return rows
}

// get returns the delivery of a row, or nil.
func (l *leases) get(id int64) *delivery {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held[id]
}

// run renews leases until ctx ends.
func (l *leases) run(ctx context.Context) {
	ticker := time.NewTicker(l.store.lease / 4)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			l.renew(ctx)
		}
	}
}

// renew extends the leases that have used up a third of their time. Most messages are done before that.
func (l *leases) renew(ctx context.Context) {
	began := time.Now()
	aging := began.Add(l.store.lease * 2 / 3)
	var rows []leased
	l.mu.Lock()
	for _, d := range l.held {
		if d.leaseEnd().Before(aging) && !d.isLost() {
			rows = append(rows, d.leased())
		}
	}
	l.mu.Unlock()
	for len(rows) > 0 {
		n := min(len(rows), maxRows)
		l.renewBatch(ctx, began, rows[:n])
		rows = rows[n:]
	}
}

func (l *leases) renewBatch(ctx context.Context, began time.Time, rows []leased) {
	timeout, cancel := context.WithTimeout(ctx, l.store.lease/4)
	defer cancel()
	lost, err := l.store.renew(timeout, rows)
	if err != nil {
		l.log.WarnContext(ctx, "sqlqueue: leases could not be renewed", "messages", len(rows), "error", err)
	}
	now := time.Now()
	for _, r := range rows {
		id := r.id
		d := l.get(id)
		switch {
		case d == nil: // settled meanwhile
		case err == nil && !lost[id]:
			d.extend(began.Add(l.store.lease))
		case lost[id]:
			l.lose(ctx, d)
		case d.leaseEnd().Before(now):
			// The database is out of reach, and may be in another worker's. The handler is told to stop; if nobody took the
			// row, its ack still counts.
			d.end(ErrLeaseLost)
		}
	}
}

// lose ends a delivery whose row belongs to another worker, or is gone.
func (l *leases) lose(ctx context.Context, d *delivery) {
	if d.lose() {
		l.log.WarnContext(ctx, "sqlqueue: a lease was lost, another worker has the message",
			"topic", d.subscription.topic, "group", d.subscription.group, "id", d.row.id)
	}
}
