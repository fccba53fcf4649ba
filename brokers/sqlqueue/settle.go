package sqlqueue

import (
	"context"
	"log/slog"
	"time"
)

// ackLinger lets acks gather while they come fast: a statement for a few rows costs the database nearly as much as one for
// hundreds. A crash in this time delivers the messages again.
const ackLinger = 5 * time.Millisecond

// outcome is how a delivery ended.
type outcome struct {
	*delivery
	kind  outcomeKind
	delay time.Duration // of a nack
}

type outcomeKind int

const (
	acked outcomeKind = iota
	nacked
	released // never reached a handler
)

// settler tells the database how deliveries ended, many at a time, and does not stop trying: until it has succeeded the
// leases are renewed, so that a message which was handled is not handled again.
type settler struct {
	batcher[outcome]
	ctx    context.Context // ends when the broker has waited long enough
	store  *store
	leases *leases
	wakeup *wakeups
	log    *slog.Logger
}

func (s *settler) settle(batch []outcome) {
	acks := make([]*delivery, 0, len(batch))
	var releases []*delivery
	nacks := map[time.Duration][]*delivery{}
	for _, o := range batch {
		switch o.kind {
		case acked:
			acks = append(acks, o.delivery)
		case nacked:
			nacks[o.delay] = append(nacks[o.delay], o.delivery)
		case released:
			releases = append(releases, o.delivery)
		}
	}
	over := s.leases.ending(acks)
	s.apply(acks, func(ctx context.Context, rows []leased) error {
		n, err := s.store.ack(ctx, rows, over)
		if lost := int64(len(rows)) - n; err == nil && lost > 0 {
			s.log.WarnContext(ctx, "sqlqueue: acks came after their leases were lost; these messages are delivered again", "messages", lost)
		}
		return err
	})
	for delay, list := range nacks {
		s.apply(list, func(ctx context.Context, rows []leased) error { return s.store.nack(ctx, rows, delay) })
		s.wake(list, delay)
	}
	s.apply(releases, s.store.release)
	s.wake(releases, 0)
}

// apply runs change on the rows of list until it succeeds or there is no more time.
func (s *settler) apply(list []*delivery, change func(ctx context.Context, rows []leased) error) {
	if len(list) == 0 {
		return
	}
	defer s.leases.drop(list...)
	rows := s.leases.current(list)
	if len(rows) == 0 {
		return
	}
	pause := 20 * time.Millisecond
	for {
		ctx, cancel := context.WithTimeout(s.ctx, s.store.lease)
		err := change(ctx, rows)
		cancel()
		if err == nil {
			return
		}
		s.log.WarnContext(s.ctx, "sqlqueue: acks could not be stored", "messages", len(rows), "error", err)
		if wait(s.ctx, pause) != nil {
			return
		}
		pause = min(2*pause, time.Second)
	}
}

// wake tells consumers in this process, and in others where the database can, that rows are theirs to take.
func (s *settler) wake(list []*delivery, delay time.Duration) {
	queues := map[int64]bool{}
	for _, d := range list {
		queues[d.subscription.queue] = true
	}
	for queue := range queues {
		s.wakeup.wake(queue, delay)
		ctx, cancel := context.WithTimeout(s.ctx, time.Second)
		_ = s.store.wake(ctx, s.store.db, queue, delay) // they also poll
		cancel()
	}
}
