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

// subscription dispatches the deliveries of one source: a queue, or with a driver.Sharer a part of one. It has as many
// workers as handlers may run at once, each with one message at a time.
type subscription struct {
	b      *Broker
	q      driver.Queue
	origin envelope.Origin // of its deliveries, as far as it is the same for all
	memory *memory
	source source
	base   context.Context // parent of the handlers' contexts: the values of Subscribe's context, which never ends
	out    chan *message.Message

	// direct workers take deliveries from the source themselves, because everything in flight is dispatched. For the
	// others dispatch does.
	direct      bool
	holdsNacked bool // nacked deliveries are held here and dispatched again
	keepsCopies bool // deliveries are needed unchanged after the handler
	nackPauses  wait.Backoff
	suspects    suspects
	order       order

	reading  chan struct{}           // held by the direct worker that reads the source
	ready    chan *delivery          // to be dispatched, unless direct
	slots    chan struct{}           // the window: one is held by each delivery in flight, unless direct
	resizing chan struct{}           // held while a window changes: no suspect is published to run then
	current  atomic.Pointer[session] // the latest one

	stopping  context.Context // ends when nothing more may be dispatched
	cancel    context.CancelFunc
	expired   chan struct{} // closed: wait for handlers no longer
	abandoned chan struct{} // closed: wait for the broker no longer

	workers    sync.WaitGroup
	background sync.WaitGroup // dispatch, and deliveries in flight that wait or are being published again
	unsettled  sync.WaitGroup // deliveries whose outcome the broker does not know
	closings   sync.WaitGroup // lost sessions that are being closed
}

// newSubscription returns a subscription to start. ctx only has the values of its handlers' contexts.
func newSubscription(ctx context.Context, b *Broker, q driver.Queue, out chan *message.Message) *subscription {
	s := &subscription{
		b:          b,
		q:          q,
		origin:     envelope.Origin{Broker: b.caps.Scheme, Topic: q.Topic, Consumer: b.consumerOf(&q)},
		memory:     b.consumers.memoryOf(&q),
		base:       context.WithoutCancel(ctx),
		out:        out,
		nackPauses: nackPauses(b, &q),
		order:      order{busy: map[string][]*delivery{}},
		resizing:   make(chan struct{}, 1),
		expired:    make(chan struct{}),
		abandoned:  make(chan struct{}),
	}
	if a, ok := b.transport.(driver.Addresser); ok {
		s.origin.RedriveTo = a.RedriveTo(b.destination(driver.ToConsumer, q.Topic, s.origin.Consumer))
	}
	s.source.sub = s
	s.stopping, s.cancel = context.WithCancel(s.base)
	t := &b.traits
	s.direct = !t.Early && !b.caps.DeliveryCount && q.Window <= q.Concurrency &&
		(t.NackPause && !t.Ordered || b.shares && q.Concurrency == 1)
	s.holdsNacked = !t.NackPause
	s.keepsCopies = s.holdsNacked || b.caps.DeliveryCount
	if s.direct {
		s.reading = make(chan struct{}, 1)
	} else {
		s.ready = make(chan *delivery, q.Window+maxOverflow)
		s.slots = make(chan struct{}, q.Window)
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

func (s *subscription) start() {
	if s.direct {
		for range s.q.Concurrency {
			s.workers.Go(s.workDirectly)
		}
	} else {
		s.background.Go(s.dispatch)
		for range s.q.Concurrency {
			s.workers.Go(s.work)
		}
	}
}

// finishHandlers ends the dispatching, and waits for the running handlers, at most for grace.
func (s *subscription) finishHandlers(grace time.Duration) {
	s.cancel()
	deadline := time.AfterFunc(grace, func() { close(s.expired) })
	s.workers.Wait()
	deadline.Stop()
}

// finishSettling follows finishHandlers: it releases what has not reached a handler, and waits until the broker knows
// how all deliveries ended.
func (s *subscription) finishSettling(grace time.Duration) {
	settled := make(chan struct{})
	go func() {
		defer close(settled)
		s.background.Wait()
		s.release()         // deliveries that the dispatcher took in the meantime
		s.background.Wait() // those that got the turn of a returned one
		if last := s.source.session; last != nil {
			last.close()
		}
		s.unsettled.Wait()
		s.closings.Wait()
	}()
	select {
	case <-settled:
		return
	case <-time.After(max(grace, closeTimeout)):
	}
	close(s.abandoned)
	s.b.warn("closed before the broker had all acks, some messages will be redelivered", context.DeadlineExceeded,
		"topic", s.q.Topic, "queue", s.q.Names.Queue)
}

// workDirectly takes deliveries from the source, one worker at a time, and hands them out.
func (s *subscription) workDirectly() {
	for {
		select {
		case s.reading <- struct{}{}:
		case <-s.stopping.Done():
			return
		}
		h := s.source.next()
		<-s.reading
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
		case s.slots <- struct{}{}:
			h.hasSlot.Store(true)
		case <-h.session.gone: // Next returns why
			s.source.blocked = h
			continue
		case <-s.stopping.Done():
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
		case <-s.stopping.Done():
			s.release()
			return
		default:
		}
		select {
		case h := <-s.ready:
			_ = s.deliver(h)
		case <-s.stopping.Done():
		}
	}
}

// release releases deliveries that have not reached a handler: those of ended sessions, whose slots are for
// redeliveries, or all when the subscription stops.
func (s *subscription) release() {
	for range len(s.ready) {
		select {
		case h := <-s.ready:
			if h.mayNotRun() {
				h.settle(driver.Release, 0)
			} else {
				s.ready <- h
			}
		default:
		}
	}
	s.suspects.releaseWaiting()
}

// mayNotRun reports whether h can only be released, because its session has ended or its subscription stops.
func (h *delivery) mayNotRun() bool { return h.sub.stopping.Err() != nil || isClosed(h.session.lost) }

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
		h.handed = true
	case <-s.stopping.Done():
	case <-h.session.lost: // it is redelivered
	}
	if !h.handed {
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
			h.abandon()
		}
	}
	return nil
}

func (s *subscription) contextOf(h *delivery) (context.Context, context.CancelFunc) {
	ctx, cancel := s.base, context.CancelFunc(nil)
	if c := h.session.contexts; c != nil {
		ctx, cancel = c.Context(ctx, &h.Delivery)
	}
	if cancel == nil {
		ctx, cancel = context.WithCancel(ctx)
	}
	return envelope.WithOrigin(context.WithValue(ctx, deliveryKey{}, h), &h.Origin), cancel
}

// order runs deliveries of one Order one after the other.
type order struct {
	mu   sync.Mutex
	busy map[string][]*delivery // the running one, followed by those that wait
}

// mayRun reports whether h may run now. Otherwise it is sent to ready in its turn.
func (s *subscription) mayRun(h *delivery) bool {
	return h.Order == "" || h.ordered || s.order.join(h)
}

func (o *order) join(h *delivery) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	h.ordered = true
	waiting, busy := o.busy[h.Order]
	if busy {
		o.busy[h.Order] = append(waiting, h)
		return false
	}
	o.busy[h.Order] = nil
	return true
}

// leave lets the next one run after an ack. Deliveries behind one that was not acked are released with it, because they
// must not overtake it.
func (o *order) leave(h *delivery, outcome driver.Answer) {
	if !h.ordered {
		return
	}
	o.mu.Lock()
	waiting := o.busy[h.Order]
	if outcome != driver.Ack || len(waiting) == 0 {
		delete(o.busy, h.Order)
	} else {
		o.busy[h.Order] = waiting[1:]
	}
	o.mu.Unlock()
	switch {
	case len(waiting) == 0:
	case outcome == driver.Ack:
		h.sub.ready <- waiting[0]
	default:
		for _, next := range waiting {
			next.ordered = false
			next.settle(driver.Release, 0)
		}
	}
}
