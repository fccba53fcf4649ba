package sqlqueue

import (
	"context"
	"slices"
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
