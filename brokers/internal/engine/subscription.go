package engine

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/wait"
)

// subscription is one call of Subscribe: as many workers as may run handlers at once, each with one message at a time.
type subscription struct {
	b        *Broker
	q        driver.Queue
	consumer string // as named in envelope.Origin
	// redriveTo is where a redrive to it goes, for envelope.Origin
	redriveTo string
	memory    *memory
	source    source
	base      context.Context // parent of the handlers' contexts: the values of Subscribe's context, which never ends
	out       chan *message.Message

	// workers take deliveries directly from the source, because everything in flight is dispatched
	direct      bool
	part        bool   // part of a joined driver.Sharer: the channel belongs to the whole
	leave       func() // leaves the whole, nil for others
	inPlace     bool   // nacked deliveries are dispatched again in place
	keepsCopies bool   // deliveries are needed unchanged after the handler
	nacking     wait.Backoff
	suspects    suspects
	order       order

	missing bool // the queue has to be declared; owned by the source

	pull   chan struct{}  // the token for the source, with direct
	ready  chan *delivery // to be dispatched, without direct
	window chan struct{}  // a token for each delivery in flight, without direct
	stuck  atomic.Int32   // deliveries in flight that have given up their slot in the window

	stopping  context.Context // ends with stop, for calls of the transport
	cancel    context.CancelFunc
	stop      <-chan struct{} // closed: dispatch nothing more
	expired   chan struct{}   // closed: wait for handlers no longer
	abandoned chan struct{}   // closed: wait for the broker no longer

	workers   sync.WaitGroup
	aside     sync.WaitGroup // deliveries in flight that wait, or are being published again
	unsettled sync.WaitGroup // deliveries whose outcome the broker does not know
	closings  sync.WaitGroup // lost sessions that are being closed
}

func newSubscription(ctx context.Context, b *Broker, q driver.Queue, part bool) *subscription {
	s := &subscription{
		b:         b,
		q:         q,
		part:      part,
		consumer:  b.consumerOf(&q),
		memory:    b.consumers.of(&q),
		base:      context.WithoutCancel(ctx),
		out:       make(chan *message.Message),
		nacking:   nackPauses(b, &q),
		expired:   make(chan struct{}),
		abandoned: make(chan struct{}),
	}
	if a, ok := b.transport.(driver.Addresser); ok {
		s.redriveTo = a.RedriveTo(b.to(driver.ToConsumer, q.Topic, s.consumer))
	}
	s.source.sub = s
	s.stopping, s.cancel = context.WithCancel(s.base)
	s.stop = s.stopping.Done()
	t := &b.traits
	s.direct = !t.Early && !b.caps.DeliveryCount && q.Window <= q.Concurrency &&
		(t.NackPause && !t.Ordered || part && q.Concurrency == 1)
	s.inPlace = !t.NackPause
	s.keepsCopies = s.inPlace || b.caps.DeliveryCount
	if s.direct {
		s.pull = make(chan struct{}, 1)
	} else {
		s.ready = make(chan *delivery, q.Window+maxStuck)
		s.window = make(chan struct{}, q.Window)
	}
	s.suspects.init(s)
	return s
}

// nackPauses doubles the nack-pause on each nack, up to 64 times.
func nackPauses(b *Broker, q *driver.Queue) wait.Backoff {
	first := 100 * time.Millisecond
	if name := driver.NackPause().Name; b.declared(name) {
		first = q.Params.Duration(name)
	}
	return wait.Backoff{First: first, Longest: 64 * first}
}

// open declares the queue, and opens its first session or joins its group.
func (s *subscription) open(ctx context.Context) error {
	sharer, shares := s.b.transport.(driver.Sharer)
	if !shares {
		return s.source.start(ctx)
	}
	err := s.b.declare(ctx, &s.q)
	if err == nil {
		s.leave, err = sharer.Join(ctx, s.q, s.begin)
	}
	return err
}

// begin dispatches the messages of a part until end is called.
func (s *subscription) begin(stream driver.Stream, window int) (end func(grace time.Duration)) {
	q := s.q
	q.Window = max(window, q.Concurrency)
	p := newSubscription(s.base, s.b, q, true)
	p.out = s.out
	p.source.session = newSession(p, stream)
	p.start()
	return p.drain
}

// run dispatches messages until ctx ends, or the subscriber or the broker closes, and then drains.
func (s *subscription) run(ctx context.Context, closing <-chan struct{}) {
	if s.leave == nil {
		s.start()
	}
	select {
	case <-ctx.Done():
	case <-closing:
	case <-s.b.closing:
	}
	if s.leave != nil {
		s.leave()
	}
	s.drain(s.q.DrainTimeout) //nolint:contextcheck // it continues after ctx has ended
}

func (s *subscription) start() {
	if s.direct {
		for range s.q.Concurrency {
			s.workers.Go(s.workDirectly)
		}
	} else {
		s.aside.Go(s.dispatch)
		for range s.q.Concurrency {
			s.workers.Go(s.work)
		}
	}
}

// drain ends the subscription: first new messages, then the running handlers, at most for grace, then the channel, then
// pending settlements.
func (s *subscription) drain(grace time.Duration) {
	s.cancel()
	deadline := time.AfterFunc(grace, func() { close(s.expired) })
	s.workers.Wait()
	deadline.Stop()
	if !s.part {
		close(s.out)
	}

	settled := make(chan struct{})
	go func() {
		defer close(settled)
		s.aside.Wait()
		s.giveBackReady() // deliveries that the dispatcher took in the meantime
		s.suspects.releaseWaiting(func(*delivery) bool { return true })
		s.aside.Wait() // those that got the turn of a returned one
		if last := s.source.session; last != nil {
			last.close()
		}
		s.unsettled.Wait()
		s.closings.Wait()
	}()
	timer := time.NewTimer(max(grace, closeTimeout))
	defer timer.Stop()
	select {
	case <-settled:
		return
	case <-timer.C:
	}
	close(s.abandoned)
	s.b.warn("closed before the broker had all acks, some messages will be redelivered", context.DeadlineExceeded,
		"topic", s.q.Topic, "queue", s.q.Names.Queue)
}

// workDirectly takes deliveries from the source, one worker at a time, and hands them out.
func (s *subscription) workDirectly() {
	for {
		select {
		case s.pull <- struct{}{}:
		case <-s.stop:
			return
		}
		h := s.source.next()
		<-s.pull
		if h == nil {
			return
		}
		if !s.admit(h) {
			continue
		}
		for h != nil {
			h = s.deliver(h)
		}
	}
}

// dispatch takes deliveries from the source as long as the window allows, even while all handlers are busy: deliveries
// that are early, or may not run now, are parked without waiting for a slow handler.
func (s *subscription) dispatch() {
	for {
		h := s.source.next()
		if h == nil {
			s.source.releaseBlocked()
			return
		}
		// After Next, not before: it notices the end of a session, even while the window is full.
		select {
		case s.window <- struct{}{}:
			h.windowed.Store(true)
		case <-h.session.gone: // Next returns why
			s.source.blocked = h
			continue
		case <-s.stop:
			h.settle(driver.Release, 0)
			return
		}
		if s.admit(h) && s.mayRun(h) {
			s.ready <- h // there is room for the whole window
		}
	}
}

// work dispatches what is ready.
func (s *subscription) work() {
	for {
		select {
		case <-s.stop:
			s.giveBackReady()
			return
		default:
		}
		select {
		case h := <-s.ready:
			_ = s.deliver(h)
		case <-s.stop:
		}
	}
}

// giveBackReady releases deliveries that have not reached a handler.
func (s *subscription) giveBackReady() {
	for {
		select {
		case h := <-s.ready:
			h.settle(driver.Release, 0)
		default:
			return
		}
	}
}

// dropLost releases deliveries of an ended session that are ready or waiting: their slots are for redeliveries.
func (s *subscription) dropLost() {
	for range len(s.ready) {
		select {
		case h := <-s.ready:
			if isClosed(h.session.lost) {
				h.settle(driver.Release, 0)
			} else {
				s.ready <- h
			}
		default:
		}
	}
	s.suspects.releaseWaiting(func(h *delivery) bool { return isClosed(h.session.lost) })
}

// deliver dispatches h and settles it with the handler's answer. With direct it returns the delivery to dispatch next,
// because it was nacked, or nil.
func (s *subscription) deliver(h *delivery) (again *delivery) {
	if isClosed(h.session.lost) {
		h.settle(driver.Release, 0)
		return nil
	}
	ctx, cancel := s.contextOf(h)
	defer cancel()
	if ctx.Err() != nil { // lost while it waited for its turn
		h.settle(driver.Release, 0)
		return nil
	}
	if !s.suspects.begin(h) {
		return nil
	}
	m := h.Message
	m.SetContext(ctx)

	select {
	case s.out <- m:
	case <-s.stop:
		h.settle(driver.Release, 0)
		return nil
	case <-h.Revoked:
		h.settle(driver.Release, 0)
		return nil
	case <-h.session.lost: // it is redelivered
		h.settle(driver.Release, 0)
		return nil
	}

	select {
	case <-m.Acked():
		h.settle(driver.Ack, 0)
	case <-m.Nacked():
		return s.nacked(h)
	case <-s.expired:
		select {
		case <-m.Acked(): // both were ready
			h.settle(driver.Ack, 0)
		default:
			h.settle(driver.Release, 0)
		}
	}
	return nil
}

// contextOf returns the handler's context.
func (s *subscription) contextOf(h *delivery) (context.Context, context.CancelFunc) {
	ctx, cancel := s.base, context.CancelFunc(nil)
	if c := h.session.contexts; c != nil {
		ctx, cancel = c.Context(ctx, &h.Delivery)
	}
	ctx = envelope.WithOrigin(context.WithValue(ctx, deliveryKey{}, h), &h.Origin)
	if cancel == nil {
		return context.WithCancel(ctx)
	}
	return ctx, cancel
}
