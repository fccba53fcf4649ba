package sqlqueue

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// leases keeps this process's rows leased, so that a handler may take as long as it needs.
type leases struct {
	store *store
	log   *slog.Logger

	mu      sync.Mutex
	held    map[int64]*delivery
	batches map[int64]int // rows per shared lease whose outcome the database has not recorded
	locked  int           // rows left out of the last renewal
	over    []int64       // the last leases that no row needs any more, until a statement ends them
}

// take registers rows as ours and returns those that are new deliveries. A known row that was not being returned was
// claimed a second time because its lease had expired while this process was stuck, and there was no other worker: its
// handler continues under the new lease. A row that only has the id of a known one is another message: the table was
// emptied, and ids started over.
func (l *leases) take(list []*delivery) []*delivery {
	l.mu.Lock()
	defer l.mu.Unlock()
	fresh := list[:0]
	for _, d := range list {
		if known := l.held[d.row.id]; known != nil && !known.isLeaving() && known.row.same(&d.row) {
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

// drop forgets deliveries: the database has recorded their outcome, or they are lost.
func (l *leases) drop(list ...*delivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range list {
		if l.held[d.row.id] == d {
			delete(l.held, d.row.id)
		}
		l.leave(d)
	}
}

// forget drops a stream's unsettled deliveries: their leases expire, and a shared one is not ended before that by the
// rows that are settled later.
func (l *leases) forget(s *stream) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, d := range l.held {
		if d.stream == s {
			delete(l.held, id)
			delete(l.batches, d.row.batch)
		}
	}
}

// leave removes a row from the lease that it shares.
func (l *leases) leave(d *delivery) {
	batch := d.row.batch
	if _, shared := l.batches[batch]; !shared || d.left {
		return
	}
	d.left = true
	if l.batches[batch]--; l.batches[batch] == 0 {
		delete(l.batches, batch)
		l.over = append(l.over, batch)
		l.over = l.over[max(0, len(l.over)-maxRows):] // a worker may never ack; the others expire
	}
}

// ending returns the shared leases that can end in a statement that acks rows, because no other row needs them. If the
// statement fails, its rows still need them. A lease that is never ended expires.
func (l *leases) ending(rows []leased) []int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	over := slices.Clone(l.over)
	acked := map[int64]int{}
	for _, r := range rows {
		if acked[r.batch]++; acked[r.batch] == l.batches[r.batch] { // never for 0, which is no lease
			over = append(over, r.batch)
		}
	}
	return over
}

// ended forgets shared leases that a statement has ended.
func (l *leases) ended(over []int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	done := set(over)
	l.over = slices.DeleteFunc(l.over, func(batch int64) bool { return done[batch] })
}

// current returns the rows of those deliveries that no later delivery of the same row has superseded: both are under
// this process's lease, and only the latest may decide.
func (l *leases) current(list []answer) []leased {
	l.mu.Lock()
	defer l.mu.Unlock()
	rows := make([]leased, 0, len(list))
	for _, a := range list {
		if l.held[a.row.id] == a.delivery {
			rows = append(rows, a.leased())
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

// renew extends the leases that have used up a third of their time. Most messages are finished before that.
func (l *leases) renew(ctx context.Context) {
	began := time.Now()
	aging := began.Add(l.store.lease * 2 / 3)
	var rows []leased
	l.mu.Lock()
	for _, d := range l.held {
		if ends, ours := d.lease(); ours && ends.Before(aging) {
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
	rows, locked, err := l.store.unlocked(timeout, rows)
	var lost map[int64]bool
	if err == nil && len(rows) > 0 {
		lost, err = l.store.renew(timeout, rows)
	}
	if had := l.locked; len(locked) > 0 && had == 0 {
		l.log.WarnContext(ctx, "sqlqueue: another session has locked rows; their leases may run out", "messages", len(locked))
	}
	l.locked = len(locked)
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
		default:
			// The database cannot be reached, and the row may be another worker's. The handler is cancelled; if no other worker
			// has taken the row, its ack still counts.
			if ends, _ := d.lease(); ends.Before(now) {
				d.end(ErrLeaseLost)
			}
		}
	}
}

// lose ends a delivery whose row belongs to another worker, or is gone.
func (l *leases) lose(ctx context.Context, d *delivery) {
	if d.lose() {
		l.log.WarnContext(ctx, "sqlqueue: a lease was lost; another worker has the message",
			"topic", d.stream.q.Topic, "group", d.stream.q.Group, "id", d.row.id)
	}
}
