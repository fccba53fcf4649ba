package sqlqueue

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/redrive-go/redrive/brokers/driver"
)

// answer is a settlement, and where its error goes.
type answer struct {
	*delivery

	fault *error
}

// Settle implements driver.Stream. It returns driver.ErrBusy for rows that another session has locked, and for those
// that a transaction or a retry is deciding on.
func (s *stream) Settle(ctx context.Context, settled []driver.Settlement) []error {
	faults := make([]error, len(settled))
	var acks, releases []answer
	nacks := map[time.Duration][]answer{}
	for i := range settled {
		d := settled[i].Delivery.Token.(*delivery)
		d.finished()
		switch d.decide(settled[i].Answer != driver.Ack) {
		case rowDecided: // rescheduled, or acked in a transaction
			continue
		case rowDeciding:
			faults[i] = driver.ErrBusy
			continue
		case rowLost:
			s.t.leases.drop(d)
			faults[i] = ErrLeaseLost
			continue
		case rowOpen:
		}
		a := answer{delivery: d, fault: &faults[i]}
		switch settled[i].Answer {
		case driver.Ack:
			acks = append(acks, a)
		case driver.Nack:
			nacks[settled[i].Pause] = append(nacks[settled[i].Pause], a)
		case driver.Release:
			releases = append(releases, a)
		}
	}
	s.ack(ctx, acks)
	for pause, list := range nacks {
		s.apply(ctx, list, func(ctx context.Context, rows []leased) error { return s.t.store.nack(ctx, rows, pause) })
		s.t.wake(ctx, s.id, pause)
	}
	if len(releases) > 0 {
		s.apply(ctx, releases, func(ctx context.Context, rows []leased) error { return s.t.store.release(ctx, rows) })
		s.t.wake(ctx, s.id, 0)
	}
	return faults
}

// ack removes rows, and with them the leases that they were the last to share.
func (s *stream) ack(ctx context.Context, acks []answer) {
	if len(acks) == 0 {
		return
	}
	var over []int64
	var others map[int64]bool // rows that another worker holds
	s.apply(ctx, acks, func(ctx context.Context, rows []leased) (err error) {
		over = s.t.leases.ending(rows)
		if others, err = s.t.store.ack(ctx, rows, over); err != nil {
			over = nil
		}
		return err
	})
	s.t.leases.ended(over)
	for _, a := range acks {
		if *a.fault == nil && others[a.row.id] {
			*a.fault = ErrLeaseLost
		}
	}
}

// apply runs change on the rows of list. Those that have been superseded by another delivery of the same row are left
// alone.
func (s *stream) apply(ctx context.Context, list []answer, change change) {
	leases := s.t.leases
	var locked []leased
	var err error
	if rows := leases.current(list); len(rows) > 0 {
		locked, err = s.t.store.changeFree(ctx, rows, change)
	}
	done := make([]*delivery, 0, len(list))
	for _, a := range list {
		switch {
		case err != nil:
			*a.fault = err
			a.decided(rowOpen)
		case len(locked) > 0 && slices.Contains(locked, a.leased()):
			*a.fault = driver.ErrBusy
			a.decided(rowOpen)
		default:
			a.decided(rowDecided)
			done = append(done, a.delivery)
		}
	}
	leases.drop(done...)
}

// lockCheck is when to look for rows that another session has locked: an operator's SELECT ... FOR UPDATE, a dump, a
// stuck transaction. A statement for many rows would wait for one of them while the leases of all expire, so locked
// rows are left out and retried separately.
type lockCheck int

const (
	neverLocked lockCheck = iota // a writer has the whole database
	lookFirst                    // a waiting statement cannot be interrupted
	lookLate                     // after a statement that has waited: the driver can interrupt it at the server
)

const (
	// longestWait bounds a statement that runs without looking for locks first.
	longestWait = 2 * time.Second
	// carefulTime is how long every statement looks first, after one has had to wait.
	carefulTime = time.Minute
)

// change runs a statement on rows.
type change func(ctx context.Context, rows []leased) error

// changeFree runs a change on those of rows that no other session has locked, and returns the others.
func (s *store) changeFree(ctx context.Context, rows []leased, change change) (locked []leased, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.lease)
	defer cancel()
	if s.locks == neverLocked {
		return nil, change(ctx, rows)
	}
	if s.locks == lookLate && time.Now().UnixNano() > s.careful.Load() {
		wait, cancel := context.WithTimeout(ctx, min(s.lease/4, longestWait))
		err := change(wait, rows)
		waited := wait.Err() != nil && ctx.Err() == nil
		cancel()
		if err == nil || !waited && !s.name.Locked(err) {
			return nil, err
		}
		s.careful.Store(time.Now().Add(carefulTime).UnixNano())
	}
	free, locked, err := s.unlocked(ctx, rows)
	if err == nil && len(free) > 0 {
		err = change(ctx, free)
	}
	return locked, err
}

// unlocked splits rows into those that can be changed at once, or are gone, and those that another session has locked.
// The locks are not kept.
func (s *store) unlocked(ctx context.Context, rows []leased) (free, locked []leased, err error) {
	if s.locks == neverLocked || len(rows) == 0 {
		return rows, nil, nil
	}
	where, args := s.byIDs(idsOf(rows))
	query := "SELECT id FROM " + s.byID + where
	ids, err := queryInts(ctx, s.db, query+" FOR UPDATE SKIP LOCKED", args...)
	if err != nil || len(ids) == len(rows) {
		return rows, nil, err
	}
	there, err := queryInts(ctx, s.db, query, args...)
	if err != nil {
		return nil, nil, err
	}
	lockable, known := set(ids), set(there)
	for _, r := range rows {
		if known[r.id] && !lockable[r.id] {
			locked = append(locked, r)
		} else {
			free = append(free, r)
		}
	}
	return free, locked, nil
}

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
