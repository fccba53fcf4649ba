package sqlqueue

import (
	"context"
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers/driver"
)

// answer is a settlement and the index of its error.
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
		d.answered()
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
		s.apply(ctx, list, func(ctx context.Context, rows, _ []leased) error { return s.t.store.nack(ctx, rows, pause) })
		s.wake(ctx, pause)
	}
	if len(releases) > 0 {
		s.apply(ctx, releases, func(ctx context.Context, rows, _ []leased) error { return s.t.store.release(ctx, rows) })
		s.wake(ctx, 0)
	}
	return faults
}

// ack removes rows, and with them the leases that they were the last to share.
func (s *stream) ack(ctx context.Context, acks []answer) {
	if len(acks) == 0 {
		return
	}
	over := s.t.leases.ending(acks)
	var others map[int64]bool // rows that another worker holds
	s.apply(ctx, acks, func(ctx context.Context, rows, locked []leased) (err error) {
		shared := batchesOf(locked) // a lease that a left-out row needs ends when it expires
		ending := slices.DeleteFunc(slices.Clone(over), func(id int64) bool { return slices.Contains(shared, id) })
		others, err = s.t.store.ack(ctx, rows, ending)
		return err
	})
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
			a.turn(rowOpen)
		case len(locked) > 0 && slices.Contains(locked, a.leased()):
			*a.fault = driver.ErrBusy
			a.turn(rowOpen)
		default:
			a.turn(rowDecided)
			done = append(done, a.delivery)
		}
	}
	leases.drop(done...)
}

// wake notifies consumers in this process, and in others if the database can, that rows are available.
func (s *stream) wake(ctx context.Context, delay time.Duration) {
	s.t.watcher.wake(s.id, delay)
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_ = s.t.store.wake(ctx, s.t.db, s.id, delay) // they also poll
}
