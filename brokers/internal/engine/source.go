package engine

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/wait"
)

const (
	declareTimeout = 30 * time.Second
	// healthy is how long a session must last not to count as a failure.
	healthy = 10 * time.Second
	// instant is the duration below which a session is assumed to have been ended by one of its first deliveries. After
	// the second in a row the next sessions take one message at a time, because each end counts as a delivery of
	// everything that was prefetched. One that turns out to be healthy is renewed with the whole window.
	instant = time.Second
)

// reconnecting is the pause between sessions.
var reconnecting = wait.Backoff{First: 100 * time.Millisecond, Longest: 10 * time.Second}

// source provides a subscription's deliveries, from one session after another. One goroutine at a time uses it.
type source struct {
	sub      *subscription
	session  *session  // nil after its end
	blocked  *delivery // in flight without a slot in the window when the session ended
	failures int       // sessions in a row that did not last, and attempts to open one
	instants int       // sessions in a row that ended at once
	missing  bool      // the queue has to be declared
}

// session is one stream.
type session struct {
	sub      *subscription
	stream   driver.Stream
	window   int // as it was opened; less than q.Window after sessions that ended at once
	contexts driver.Contexts
	renewer  driver.Renewer
	beginner driver.Beginner
	gone     <-chan struct{} // closed when the stream has ended, before Next returns; nil if the stream does not signal it
	began    time.Time
	worked   atomic.Bool   // the broker has accepted an ack
	open     atomic.Int32  // deliveries whose outcome the broker does not know
	overflow atomic.Int32  // deliveries in flight that have given up their slots in the window
	lost     chan struct{} // closed when the stream has failed
	ended    atomic.Bool   // no settlement can reach the broker any more
	settles  *batcher[*delivery]
	retrying sync.WaitGroup // settlements that are retried
	closing  sync.Once

	mu       sync.Mutex
	inFlight list.List // of *delivery, newest first
	settled  bool      // settlements are not retried any more
}

func (s *source) open(ctx context.Context) error {
	b, q := s.sub.b, s.sub.q
	if s.instants > 1 {
		q.Window = 1
	}
	open := func(ctx context.Context) (driver.Stream, error) { return b.transport.Receive(ctx, q) }
	ctx, cancel := b.within(ctx, declareTimeout)
	defer cancel()
	stream, err := boundedOf(ctx, &b.traits, open, closeLate)
	if err != nil {
		return err
	}
	s.session = newSession(s.sub, stream, q.Window)
	return nil
}

// closeLate closes a stream that was opened after its subscription had given up, and would keep messages.
func closeLate(stream driver.Stream) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = stream.Close(ctx)
}

// within bounds ctx, except for transports that wait for nothing.
func (b *Broker) within(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if b.traits.Local {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, d)
}

// next returns the next delivery, from another session if this one fails. It returns nil if the subscription is to
// stop.
func (s *source) next() *delivery {
	for {
		if s.sub.stopping.Err() != nil { // a stream with a delivery ready may prefer it to the end of its context
			return nil
		}
		if s.session == nil && !s.reopen() {
			return nil
		}
		d, err := s.session.stream.Next(s.sub.stopping)
		switch {
		case err == nil && s.isNarrowForNothing(&d):
			err = driver.ErrRenew // d, which no handler has, is redelivered
		case err == nil:
			return newDelivery(s.session, d)
		}
		if s.sub.stopping.Err() != nil {
			return nil
		}
		s.lose(err)
	}
}

// isNarrowForNothing reports whether the session takes one message at a time, has lasted, and has nothing in flight but
// d, against which a redelivery does not count. A suspect that has the turn may be on its way.
func (s *source) isNarrowForNothing(d *driver.Delivery) bool {
	return s.session.window < s.sub.q.Window && time.Since(s.session.began) >= healthy && s.session.open.Load() == 0 &&
		!s.sub.suspects.busy() && d.Suspect == 0 && d.Message.Metadata[envelope.KeySuspect] == ""
}

// lose ends a failed session.
func (s *source) lose(err error) {
	lost := s.session
	s.session = nil
	close(lost.lost)
	lost.ended.Store(true)
	s.sub.memory.lose()
	lost.survive()
	s.releaseBlocked()
	s.sub.release()
	s.sub.closings.Go(lost.close)
	switch lasted := time.Since(lost.began); {
	case lasted >= healthy, lost.worked.Load():
		s.failures, s.instants = 0, 0
	case lasted < instant:
		s.instants++
	}
	if errors.Is(err, driver.ErrRenew) {
		return
	}
	s.missing = s.missing || errors.Is(err, brokers.ErrUnroutable)
	s.failures++
	s.sub.b.warn("the session of a subscription has ended, opening another", err,
		"topic", s.sub.q.Topic, "queue", s.sub.q.Names.Queue, "failures", s.failures)
}

// releaseBlocked releases a delivery that has no slot in the window.
func (s *source) releaseBlocked() {
	if h := s.blocked; h != nil {
		s.blocked = nil
		h.settle(driver.Release, 0)
	}
}

// reopen opens the next session, paced. It reports false if the subscription is to stop.
func (s *source) reopen() bool {
	for {
		if wait.For(s.sub.stopping, reconnecting.Spread(s.failures)) != nil {
			return false
		}
		var err error
		if s.missing {
			err = s.sub.b.declare(s.sub.stopping, &s.sub.q)
		}
		if undeclared := err; err == nil || errors.Is(err, driver.ErrDiffers) {
			if err = s.open(s.sub.stopping); err == nil {
				if undeclared != nil {
					s.sub.b.warn("consuming from a queue that is not as it would be declared", undeclared,
						"topic", s.sub.q.Topic, "queue", s.sub.q.Names.Queue)
				}
				s.missing = false
				return true
			}
		}
		if s.sub.stopping.Err() != nil {
			return false
		}
		s.missing = s.missing || errors.Is(err, brokers.ErrUnroutable)
		s.failures++
		s.sub.b.warn("cannot consume, trying again", err,
			"topic", s.sub.q.Topic, "queue", s.sub.q.Names.Queue, "failures", s.failures)
	}
}

func newSession(sub *subscription, stream driver.Stream, window int) *session {
	s := &session{sub: sub, stream: stream, window: window, began: time.Now(), lost: make(chan struct{})}
	sub.current.Store(s)
	s.contexts, _ = stream.(driver.Contexts)
	s.renewer, _ = stream.(driver.Renewer)
	s.beginner, _ = stream.(driver.Beginner)
	if w, ok := stream.(driver.Watcher); ok {
		s.gone = w.Gone()
	}
	if t := &sub.b.traits; t.SettleBatch > 1 {
		s.settles = &batcher[*delivery]{max: min(t.SettleBatch, max(1, window/2)), linger: t.SettleLinger, flush: s.flush}
		if t.SettleFrees {
			s.settles.max, s.settles.patient = t.SettleBatch, true
			s.settles.enough = min(t.SettleBatch, max(1, window/16, (window-sub.q.Concurrency)/4))
		}
	}
	return s
}

// close lets pending settlements reach the broker, and ends the stream.
func (s *session) close() {
	s.closing.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		if s.settles != nil {
			select {
			case <-s.settles.drained():
			case <-ctx.Done():
			}
		}
		s.mu.Lock()
		s.settled = true
		s.mu.Unlock()
		retried := make(chan struct{})
		go func() {
			defer close(retried)
			s.retrying.Wait()
		}()
		select {
		case <-retried:
		case <-ctx.Done():
		}
		s.ended.Store(true)
		if err := bounded(ctx, &s.sub.b.traits, s.stream.Close); err != nil && !isClosed(s.lost) {
			s.sub.b.warn("a subscription has closed with an error", err, "topic", s.sub.q.Topic)
		}
	})
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
