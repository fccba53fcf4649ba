package sqlqueue

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/internal/wait"
)

// stream claims the rows of one queue for one subscription. Rows that its handlers will not reach within lookAhead stay
// in the queue, for other workers.
type stream struct {
	*reader

	t        *transport
	q        driver.Queue
	prefetch int
	need     chan struct{} // capacity 1: there may be room for a claim

	// Of the goroutine in Next.
	buffer   []*delivery
	pace     pace
	mark     lowWater
	passed   map[int64]bool // for claims; nil with several handlers, which keep no order
	reach    int            // the factor by which the next claim exceeds the free room, to find rows behind locked ones
	drained  bool           // the last claim has seen the end of the due rows
	most     int            // rows of the next claim: half as many after one that failed, perhaps because of their size
	failures int            // consecutive failed claims

	outstanding atomic.Int64 // claimed and not yet settled
	handled     atomic.Int64
	ahead       atomic.Int64 // rows to lease beyond those being handled
}

var (
	_ driver.Stream   = (*stream)(nil)
	_ driver.Contexts = (*stream)(nil)
	_ driver.Beginner = (*stream)(nil)
	_ driver.Renewer  = (*stream)(nil)
	_ driver.Watcher  = (*stream)(nil)
)

// Next implements driver.Stream. An unreachable database does not end it: leases outlive connections, and acks count
// once the database is back.
func (s *stream) Next(ctx context.Context) (driver.Delivery, error) {
	for {
		select {
		case <-s.gone: // before the buffer: Close returns what is left in it
			return driver.Delivery{}, fmt.Errorf("the queue has been deleted: %w", brokers.ErrUnroutable)
		default:
		}
		if len(s.buffer) > 0 {
			d := s.buffer[0]
			s.buffer[0] = nil
			s.buffer = s.buffer[1:]
			return d.describe(), nil
		}
		if err := s.fetch(ctx); err != nil {
			return driver.Delivery{}, err
		}
	}
}

// Gone implements driver.Watcher.
func (s *stream) Gone() <-chan struct{} { return s.gone }

// fetch waits until there is something to claim, and tries to claim it.
func (s *stream) fetch(ctx context.Context) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if s.drained {
		if err := s.t.watcher.wait(ctx, s.reader); err != nil {
			return err
		}
		s.drained = false
	}
	s.ahead.Store(int64(min(s.prefetch, s.pace.update(s.handled.Load(), time.Now()))))
	room := s.free()
	n := s.t.store.limit(min(room*s.reach, s.most))
	if n == 0 {
		select {
		case <-s.need:
		case <-s.gone:
		case <-ctx.Done():
		}
		return ctx.Err()
	}
	began := time.Now()
	list, err := s.claim(n, s.mark.from(began)) //nolint:contextcheck // see claim
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		s.failures++
		s.most = max(1, n/2)
		s.t.cfg.Logger.WarnContext(ctx, "sqlqueue: messages could not be claimed", "topic", s.q.Topic, "group", s.q.Group,
			"error", err)
		pauses := wait.Backoff{First: 50 * time.Millisecond, Longest: 5 * time.Second}
		return wait.For(ctx, pauses.Spread(s.failures))
	}
	s.failures, s.most = 0, min(2*s.most, maxClaim)
	s.hold(list, room, began) //nolint:contextcheck // see claim
	reach := 1
	if len(list) > 0 {
		s.idle.reset()
	} else if s.due && s.t.store.locks != neverLocked { // rows locked by others: the next claim must reach beyond them
		reach = min(2*s.reach, longestReach)
	}
	s.reach = reach
	s.drained = len(list) < n
	s.mark.update(list, !s.drained && len(list) <= room, began, time.Now())
	return ctx.Err()
}

const (
	longestReach = 256
	maxClaim     = 1 << 24 // beyond every prefetch, concurrency and reach
)

// claim leases up to n rows. It ignores the end of Next's context: if a claim is cancelled after the database has run
// it, no process gets its rows until their lease ends.
func (s *stream) claim(n int, from int64) ([]claimed, error) {
	ctx, cancel := context.WithTimeout(context.Background(), s.t.cfg.PublishTimeout)
	defer cancel()
	store := s.t.store
	return store.take(ctx, claim{s.id, store.worker, from, store.lease, n, s.passed})
}

// hold puts claimed rows into the buffer, except those beyond room, which return to their place in the queue.
func (s *stream) hold(list []claimed, room int, began time.Time) {
	deliveries := make([]*delivery, len(list))
	for i, row := range list {
		deliveries[i] = &delivery{row: row, stream: s, expires: began.Add(s.t.store.lease)}
	}
	s.buffer = s.t.leases.take(deliveries)
	s.outstanding.Add(int64(len(s.buffer)))
	if room < len(s.buffer) {
		surplus := s.buffer[room:]
		s.buffer = s.buffer[:room:room]
		ctx, cancel := context.WithTimeout(context.Background(), longestWait)
		s.release(ctx, surplus)
		cancel()
		s.t.leases.drop(surplus...)
		s.handled.Add(-int64(len(surplus)))
	}
}

// release returns rows that the engine has not received to their place in the queue. MariaDB and MySQL may keep a row
// locked for a moment after the claim, so it tries again until ctx ends. A row that is still locked then comes back
// when its lease ends.
func (s *stream) release(ctx context.Context, list []*delivery) {
	back := make([]driver.Settlement, len(list))
	for i, d := range list {
		back[i] = driver.Settlement{Delivery: &driver.Delivery{Token: d}, Answer: driver.Release}
	}
	pauses := wait.Backoff{First: firstLockPause, Longest: time.Second}
	for n := 0; len(back) > 0 && wait.For(ctx, pauses.After(n)) == nil; n++ {
		left := back[:0]
		for i, err := range s.Settle(ctx, back) {
			if err != nil && !errors.Is(err, driver.ErrLost) {
				left = append(left, back[i])
			}
		}
		back = left
	}
}

// free returns how many rows to claim now. It returns 0 while there is only a little room, so that claims are large
// when handlers are fast.
func (s *stream) free() int {
	ahead := s.ahead.Load()
	n := int64(s.q.Concurrency) + ahead - s.outstanding.Load()
	if n < max(1, ahead/2) {
		return 0
	}
	return int(n)
}

// Context implements driver.Contexts. The handler's context ends when the lease is lost.
func (s *stream) Context(parent context.Context, held *driver.Delivery) (context.Context, context.CancelFunc) {
	d := held.Token.(*delivery)
	return d.begin(parent), d.finished
}

// Begin implements driver.Beginner: it records that the handler of a row which may have killed a process starts.
func (s *stream) Begin(ctx context.Context, held *driver.Delivery) error {
	d := held.Token.(*delivery)
	begun, err := s.t.store.start(ctx, d.leased())
	if err == nil && !begun {
		err = ErrLeaseLost
	}
	return err
}

// Renew implements driver.Renewer.
func (s *stream) Renew(held *driver.Delivery) *message.Message {
	return held.Token.(*delivery).message()
}

// Close implements driver.Stream. Rows that the engine has not received return to their place in the queue; those that
// it could not settle are redelivered when their lease ends.
func (s *stream) Close(ctx context.Context) error {
	s.t.watcher.leave(s.reader)
	s.release(ctx, s.buffer)
	s.t.leases.forget(s)
	return nil
}

// lookAhead is how much work, in time, a subscription leases beyond what its handlers are doing: enough to hide the
// round trip of a claim, but so little that a slow handler withholds no message from an idle worker.
const lookAhead = 50 * time.Millisecond

// pace measures the speed of handlers. The zero value is ready for use.
type pace struct {
	handled int64
	at      time.Time
	ahead   int
}

// update returns how many messages the handlers finish within lookAhead, based on their progress since the last call.
func (p *pace) update(handled int64, now time.Time) int {
	elapsed := now.Sub(p.at)
	switch {
	case p.at.IsZero():
	case elapsed < time.Millisecond: // too short to measure
		return p.ahead
	default:
		p.ahead = int(float64(handled-p.handled) / elapsed.Seconds() * lookAhead.Seconds())
	}
	p.handled, p.at = handled, now
	return p.ahead
}

// lowWater remembers how far into a queue's index the claims have advanced, as long as they are full.
//
// A claimed or deleted row stays in the index until no snapshot can see it. One forgotten transaction, anywhere in the
// database, keeps all of them, and each claim would read through this growing heap again. The mark lets it start after
// them. Rows can appear before the mark (a transaction that commits late, a returned lease), so occasionally a claim
// reads from the start, for a bounded share of the time.
type lowWater struct {
	mark     int64 // microseconds since 1970, by the database's clock
	whole    time.Time
	interval time.Duration
}

const (
	lowWaterOverlap  = 100 * time.Millisecond
	lowWaterInterval = 100 * time.Millisecond
	longestInterval  = 10 * time.Second // after a claim that waited for a frozen server
)

// from returns where the next claim should start reading.
func (l *lowWater) from(now time.Time) int64 {
	if l.mark > 0 && now.Sub(l.whole) < l.interval {
		return l.mark
	}
	l.mark = 0
	return 0
}

// update records a claim. One that was not full has seen the end of the due rows: the next starts over.
func (l *lowWater) update(list []claimed, full bool, began, ended time.Time) {
	if !full {
		l.mark = 0
		return
	}
	if l.mark == 0 {
		l.whole, l.interval = ended, min(max(lowWaterInterval, 10*ended.Sub(began)), longestInterval)
	}
	first, last := list[0].dueAt, list[0].at
	for _, c := range list {
		first, last = min(first, c.dueAt), max(last, c.at)
	}
	if last == 0 {
		last = first - lowWaterOverlap.Microseconds()
	}
	l.mark = max(last, 1)
}
