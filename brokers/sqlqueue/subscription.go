package sqlqueue

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
)

// lookAhead is how much work a subscription leases beyond what its handlers are doing, in time: enough to hide the round
// trip of a claim, and so little that a slow handler keeps no message from an idle worker.
const lookAhead = 50 * time.Millisecond

// subscription feeds one channel: a fetcher claims rows into a buffer, and as many workers as handlers may run hand them
// out and wait for their acks.
type subscription struct {
	broker       *Broker
	topic, group string
	queue        int64
	concurrency  int
	prefetch     int
	drain        time.Duration
	crashLimit   int
	ctx          context.Context // of the messages: keeps Subscribe's values, outlives its end
	out          chan *message.Message

	buffer   chan *delivery
	suspects chan *delivery // for runSuspects
	alone    chan *delivery // from runSuspects
	answered chan struct{}  // to runSuspects
	burials  sync.WaitGroup
	need     chan struct{} // capacity 1: the fetcher may claim
	alarm    *alarm
	stopped  <-chan struct{} // nothing more is handed out
	expired  <-chan struct{} // the drain has taken too long

	outstanding atomic.Int64 // claimed and not yet answered by a handler
	handled     atomic.Int64
	ahead       atomic.Int64   // rows to lease beyond concurrency
	unsettled   sync.WaitGroup // claimed, and the database does not know the outcome
}

// run returns when ctx has ended and the drain is over. It closes the channel as soon as no handler is left.
func (s *subscription) run(ctx context.Context) {
	expiry, expire := context.WithCancel(context.WithoutCancel(ctx))
	defer expire()
	s.stopped, s.expired = ctx.Done(), expiry.Done()
	stopTimer := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(s.drain, expire)
		context.AfterFunc(expiry, func() { timer.Stop() })
	})
	defer stopTimer()

	s.broker.wakeups.join(s.queue, s.alarm)
	defer s.broker.wakeups.leave(s.queue, s.alarm)

	var workers sync.WaitGroup
	for range s.concurrency {
		workers.Go(s.work)
	}
	workers.Go(s.runSuspects)
	s.fetch(ctx)
	close(s.buffer)
	close(s.suspects)
	workers.Wait()
	s.burials.Wait()
	close(s.out)
	s.awaitSettled()
}

// awaitSettled waits until the database knows all outcomes, but not for a database that does not come back.
func (s *subscription) awaitSettled() {
	done := make(chan struct{})
	go func() {
		s.unsettled.Wait()
		close(done)
	}()
	timer := time.NewTimer(max(s.drain, time.Second))
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		s.broker.log.Warn("sqlqueue: closed before all acks were stored; some messages will be delivered again",
			"topic", s.topic, "group", s.group)
	}
}

// fetch claims rows until ctx ends.
func (s *subscription) fetch(ctx context.Context) {
	var (
		pace pace
		mark lowWater
	)
	idle := idleness{longest: s.broker.poll}
	pause := 50 * time.Millisecond
	for {
		s.ahead.Store(int64(min(s.prefetch, pace.update(s.handled.Load(), time.Now()))))
		n := s.broker.store.limit(s.free())
		if n == 0 {
			select {
			case <-s.need:
				continue
			case <-ctx.Done():
				return
			}
		}
		began := time.Now()
		list, err := s.claim(n, mark.from(began)) //nolint:contextcheck // see claim
		switch {
		case ctx.Err() != nil:
			s.hold(list, began) //nolint:contextcheck // burying a message goes on when ctx ends
			return
		case err != nil:
			s.broker.log.WarnContext(ctx, "sqlqueue: messages could not be claimed", "topic", s.topic, "group", s.group, "error", err)
			if wait(ctx, pause/2+rand.N(pause/2)) != nil { //nolint:gosec // G404: spreads processes out
				return
			}
			pause = min(2*pause, 5*time.Second)
			continue
		}
		pause = 50 * time.Millisecond
		s.hold(list, began) //nolint:contextcheck // see above
		if len(list) > 0 {
			idle.reset()
		}
		full := len(list) >= n
		mark.update(list, full, began, time.Now())
		if full {
			continue // there may be more
		}
		if !s.sleep(ctx, &idle) {
			return
		}
	}
}

// claim takes up to n rows. It does not heed the end of Subscribe's context: rows whose claim is cancelled on its way
// back from the database would be nobody's until their lease ends.
func (s *subscription) claim(n int, from int64) ([]claimed, error) {
	ctx, cancel := context.WithTimeout(context.Background(), s.broker.cfg.PublishTimeout)
	defer cancel()
	store := s.broker.store
	return store.claim(ctx, store.db, s.queue, store.worker, from, store.lease, n)
}

// hold puts claimed rows into the buffer, which has room for all that free allows.
func (s *subscription) hold(list []claimed, began time.Time) {
	if len(list) == 0 {
		return
	}
	deliveries := make([]*delivery, len(list))
	for i, row := range list {
		deliveries[i] = &delivery{row: row, subscription: s, expires: began.Add(s.broker.store.lease)}
		if s.isSuspect(deliveries[i]) {
			deliveries[i].stored = make(chan struct{})
		}
	}
	deliveries = s.broker.leases.take(deliveries)
	s.outstanding.Add(int64(len(deliveries)))
	s.unsettled.Add(len(deliveries))
	for _, d := range deliveries {
		switch {
		case s.isKiller(d):
			s.burials.Go(func() { s.bury(d) })
		case s.isSuspect(d) && s.concurrency > 1: // with one worker everything is run apart, and in order
			s.suspects <- d
		default:
			s.buffer <- d
		}
	}
}

// sleep waits until something is due: at the time of the first row in the queue, when told of a new one, and now and then
// to look. It reports false when ctx has ended.
func (s *subscription) sleep(ctx context.Context, idle *idleness) bool {
	for looks := 0; ; looks++ {
		select {
		case <-s.alarm.c:
			return true
		default:
		}
		in, some, err := s.next()            //nolint:contextcheck // it is short, and its answer is of use
		due := err != nil || some && in <= 0 // claiming again reports the error
		// What was not due when the queue was looked at last is news. What was, and could not be claimed, another worker has
		// locked: that is no reason to try again at once.
		news := looks > 0 || idle.fresh()
		if due && news {
			return true
		}
		pause := idle.next(s.broker.listening())
		if some && in > 0 {
			s.alarm.set(in)
		}
		timer := time.NewTimer(pause)
		select {
		case <-s.alarm.c:
			timer.Stop()
			return true
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return false
		}
		if due {
			return true
		}
	}
}

// next asks when the first row is due.
func (s *subscription) next() (in time.Duration, some bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), s.broker.cfg.PublishTimeout)
	defer cancel()
	return s.broker.store.next(ctx, s.queue)
}

// free is how many rows may be claimed now: none as long as few would be, so that claims are large when handlers are fast.
func (s *subscription) free() int {
	ahead := s.ahead.Load()
	n := int64(s.concurrency) + ahead - s.outstanding.Load()
	if n < max(1, ahead/2) {
		return 0
	}
	return int(n)
}

// work hands out one message at a time.
func (s *subscription) work() {
	buffer, alone := s.buffer, s.alone
	for buffer != nil || alone != nil {
		select {
		case d, open := <-buffer:
			if !open {
				buffer = nil
				continue
			}
			s.handOut(d)
		case d, open := <-alone:
			if !open {
				alone = nil
				continue
			}
			s.handOut(d)
			s.answered <- struct{}{}
		}
	}
}

// handOut gives one message to the handler and waits for its answer.
func (s *subscription) handOut(d *delivery) {
	select {
	case <-s.stopped:
		s.finish(d, released, 0)
		return
	default:
	}
	if !s.begin(d) {
		s.finish(d, released, 0)
		return
	}
	m := d.message(s.ctx)
	select {
	case s.out <- m:
		s.await(d, m)
		s.acquit(d)
	case <-s.stopped:
		d.end(context.Canceled)
		s.finish(d, released, 0)
	}
}

// await waits for the handler's answer.
func (s *subscription) await(d *delivery, m *message.Message) {
	select {
	case <-m.Acked():
		d.end(context.Canceled)
		s.finish(d, acked, 0)
	case <-m.Nacked():
		d.end(context.Canceled)
		s.finish(d, nacked, s.nackDelay(d))
	case <-s.expired:
		d.end(context.Canceled)
		s.finish(d, nacked, 0)
	}
}

// nackDelay doubles with every delivery, so that a message which cannot be settled makes no hot loop. At shutdown there is
// none: the message is for another worker.
func (s *subscription) nackDelay(d *delivery) time.Duration {
	select {
	case <-s.stopped:
		return 0
	default:
	}
	return min(s.broker.nackDelay<<min(max(d.row.deliveries-1, 0), 16), max(s.broker.nackDelay, 10*time.Second))
}

// finish passes the outcome on, unless the row's fate has been decided: rescheduled, acked in a transaction, or lost.
func (s *subscription) finish(d *delivery, kind outcomeKind, delay time.Duration) {
	s.handled.Add(1)
	s.outstanding.Add(-1)
	o := outcome{delivery: d, kind: kind, delay: delay}
	if decides, forget := d.answer(o); decides {
		s.broker.settler.add(o)
	} else if forget {
		s.broker.leases.drop(d)
	}
	if s.free() > 0 {
		select {
		case s.need <- struct{}{}:
		default:
		}
	}
}

// isOrigin tells whether origin is that of a delivery of s.
func (s *subscription) isOrigin(origin envelope.Origin) bool {
	return origin.Topic == s.topic && origin.Consumer == s.group
}
