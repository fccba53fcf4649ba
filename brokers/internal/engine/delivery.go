package engine

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/wait"
)

// delivery is a message in flight, until it is settled.
type delivery struct {
	driver.Delivery
	sub     *subscription
	session *session

	uuid      string // of the message, whose handler may change it
	stage     string // as delivered; empty if the message was not stamped
	naming    sync.Mutex
	name      string           // see stageName; empty until it is needed
	contents  string           // see content; empty until it is needed
	copy      *message.Message // as delivered, for transports that cannot renew it
	nacks     int              // in this process
	hasSlot   atomic.Bool      // it takes a slot in the window
	overflows bool             // it has given up its slot in the window
	handed    bool             // a handler has had the message
	doubtful  bool             // the engine may have published it again
	moved     bool             // the engine has published it again: nothing has been settled
	ordered   bool             // it has its turn within its Order, or waits for it
	suspect   *suspect         // nil unless it may have killed its process

	listed   *list.Element // among those in flight in the same session; nil if it is not
	survived bool          // it was in flight when the session ended
	held     bool          // copies of it wait for its answer
	answered chan struct{} // closed by the answer; nil unless another delivery may wait; guarded by the memory

	rescheduled atomic.Uint32 // publications that have followed it
	skipped     bool          // another copy of it has been settled
	settlement  [1]driver.Settlement
}

type deliveryKey struct{}

// deliveryOf returns the delivery of ctx if it is the one that m arrived with from origin, otherwise nil. A context
// with another origin has none: the message is going elsewhere.
func deliveryOf(ctx context.Context, origin *envelope.Origin, m *message.Message) *delivery {
	h, _ := ctx.Value(deliveryKey{}).(*delivery)
	if at, _ := envelope.OriginFrom(ctx); h == nil || at != &h.Origin || h.uuid != m.UUID ||
		h.Origin.Topic != origin.Topic || h.Origin.Consumer != origin.Consumer || h.Origin.Position != origin.Position {
		return nil
	}
	return h
}

func newDelivery(s *session, d driver.Delivery) *delivery {
	sub := s.sub
	h := &delivery{Delivery: d, sub: sub, session: s, uuid: d.Message.UUID}
	o := &h.Origin
	o.Broker = cmp.Or(o.Broker, sub.origin.Broker)
	o.Topic = cmp.Or(o.Topic, sub.origin.Topic)
	o.Consumer = cmp.Or(o.Consumer, sub.origin.Consumer)
	o.RedriveTo = sub.origin.RedriveTo
	h.identify()
	h.keep()
	sub.unsettled.Add(1)
	s.open.Add(1)
	s.list(h)
	return h
}

// list records that h is in flight. Only brokers that count deliveries need it.
func (s *session) list(h *delivery) {
	if !s.sub.b.caps.DeliveryCount {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h.listed = s.inFlight.PushFront(h)
}

// unlist records that h is no longer in flight.
func (s *session) unlist(h *delivery) {
	listed := false
	if s.sub.b.caps.DeliveryCount { // see list; handlers that share no list share no lock
		s.mu.Lock()
		if listed = h.listed != nil; listed {
			s.inFlight.Remove(h.listed)
			h.listed = nil
		}
		s.mu.Unlock()
	}
	if listed && h.survived || h.held {
		s.sub.memory.answered(h)
	}
}

// leaveWindow frees the slot of h in the window. It reports false if h has none.
func (h *delivery) leaveWindow() bool {
	left := h.hasSlot.CompareAndSwap(true, false)
	if left {
		<-h.sub.slots
	}
	return left
}

// survive marks everything in flight as having outlived the session in this process. The slots in the window are freed
// for redeliveries: for the broker, deliveries that are still in a handler are no longer in flight.
func (s *session) survive() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for e := s.inFlight.Front(); e != nil; e = e.Next() {
		h := e.Value.(*delivery)
		h.survived = true
		s.sub.memory.survive(h)
		h.leaveWindow()
	}
}

// keep remembers the message as delivered, before anything can change it.
func (h *delivery) keep() {
	if h.sub.keepsCopies && h.session.renewer == nil {
		h.copy = h.Message.Copy()
		h.copy.Payload = slices.Clone(h.Message.Payload)
	}
}

// repeat returns the same delivery, to be dispatched in place once more. Its handler gets a message unchanged by
// others.
func (h *delivery) repeat() *delivery {
	next := &delivery{
		Delivery: h.Delivery, doubtful: h.doubtful, sub: h.sub, session: h.session, stage: h.stage, name: h.stageName(),
		nacks: h.nacks + 1, copy: h.copy,
		ordered: h.ordered, suspect: h.suspect,
	}
	next.hasSlot.Store(h.hasSlot.Swap(false))
	next.overflows, h.overflows = h.overflows, false
	next.Origin.Redelivered = true
	next.Origin.DeliveryCount++
	next.restore()
	next.uuid = next.Message.UUID
	next.keep()
	h.session.replace(h, next)
	return next
}

// restore replaces the message by one as it was received: a handler may have changed the other.
func (h *delivery) restore() {
	if h.Message = h.received(); h.session.renewer != nil {
		h.identify()
	}
	delete(h.Message.Metadata, envelope.KeySuspect)
}

// replace lists next instead of h.
func (s *session) replace(h, next *delivery) {
	if !isClosed(s.lost) {
		s.sub.memory.pass(h, next)
	}
	s.unlist(h)
	if !isClosed(s.lost) {
		s.list(next)
	}
}

// settle reports how the delivery has ended, and forgets it.
func (h *delivery) settle(outcome driver.Answer, pause time.Duration) {
	if outcome != driver.Release || !h.sub.suspects.disarm(h) {
		h.end(outcome, pause)
	}
}

// abandon releases a delivery whose handler is still running: it may yet kill the process, so its mark stays, and it
// may be writing to the message.
func (h *delivery) abandon() { h.end(driver.Release, 0) }

func (h *delivery) end(outcome driver.Answer, pause time.Duration) {
	if outcome == driver.Ack && !h.moved {
		h.remember()
	}
	h.settlement[0] = driver.Settlement{
		Delivery: &h.Delivery, Answer: outcome, Pause: pause, Skipped: h.skipped,
	}
	if h.Order != "" {
		h.sub.order.leave(h, outcome)
	}
	h.leaveWindow()
	if h.overflows {
		h.overflows = false
		h.session.overflow.Add(-1)
		h.sub.narrow()
	}
	s := h.session
	if s.settles != nil && !s.ended.Load() {
		s.unlist(h)
		s.settles.add(h)
		return
	}
	s.report(h.settlement[:], h)
	s.unlist(h) // after the report: deliveries that wait for the answer of an ended session look up its result
}

// remember records that the consumer has settled the content of a stage, and clears its record of nacks.
func (h *delivery) remember() {
	m := h.sub.memory
	if h.isRetry() || h.doubtful && h.stage != "" {
		m.settle(h.content())
	}
	if h.doubtful {
		m.doubt.Store(true)
	}
	if h.nacks > 0 || m.anyNacked() {
		m.forget(h.stageName())
	}
}

// flush reports several settlements in one call.
func (s *session) flush(batch []*delivery) {
	settled := make([]driver.Settlement, len(batch))
	for i, h := range batch {
		settled[i] = h.settlement[0]
	}
	s.report(settled, batch...)
}

// report tells the transport how deliveries ended, and retries for as long as the session lasts.
func (s *session) report(settled []driver.Settlement, hands ...*delivery) {
	faults := s.try(settled)
	if faults == nil && settled[0].Answer == driver.Ack {
		s.worked.Store(true)
	}
	again, settledAgain := s.unfinished(settled, hands, faults)
	if len(again) == 0 || s.retry(func() { s.repeat(settledAgain, again) }) {
		return
	}
	for _, h := range again {
		h.lose()
	}
}

// retry runs f, and close waits for it. It reports false if close is already waiting.
func (s *session) retry(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.settled {
		return false
	}
	s.retrying.Go(f)
	return true
}

func (s *session) try(settled []driver.Settlement) []error {
	if s.ended.Load() {
		return all(len(settled), driver.ErrLost)
	}
	b := s.sub.b
	if b.traits.Local || b.traits.SettleLocal {
		return nonzero(s.stream.Settle(context.Background(), settled))
	}
	ctx, cancel := context.WithTimeout(context.Background(), b.cfg.PublishTimeout)
	defer cancel()
	if b.traits.Prompt {
		return nonzero(s.stream.Settle(ctx, settled))
	}
	settled = slices.Clone(settled)
	faults, late := boundedOf(ctx, &b.traits, func(ctx context.Context) ([]error, error) {
		return s.stream.Settle(ctx, settled), nil
	}, nil)
	if late != nil {
		return all(len(settled), late)
	}
	return nonzero(faults)
}

// known records that the broker knows the outcome of deliveries, or never will.
func (s *subscription) known(hands ...*delivery) {
	for _, h := range hands {
		s.suspects.done(h)
		h.session.open.Add(-1)
	}
	s.unsettled.Add(-len(hands))
}

// unfinished removes settlements that are final, and returns those to retry.
func (s *session) unfinished(settled []driver.Settlement, hands []*delivery, faults []error) (again []*delivery,
	settledAgain []driver.Settlement,
) {
	if faults == nil {
		s.sub.known(hands...)
		return nil, nil
	}
	for i, h := range hands {
		switch err := faults[i]; {
		case err == nil:
			s.sub.known(h)
		case errors.Is(err, driver.ErrLost):
			h.lose()
		default:
			again, settledAgain = append(again, h), append(settledAgain, settled[i])
		}
	}
	return again, settledAgain
}

var settling = wait.Backoff{First: 20 * time.Millisecond, Longest: time.Second}

// repeat retries until the transport has accepted the settlements or the session has ended.
func (s *session) repeat(settled []driver.Settlement, hands []*delivery) {
	for n := 1; len(hands) > 0; n++ {
		select {
		case <-time.After(settling.After(n)):
		case <-s.lost:
		case <-s.sub.abandoned:
			s.ended.Store(true)
		}
		faults := s.try(settled)
		if first := cmp.Or(faults...); n == 1 && first != nil { // that of the first settlement may be nil
			s.sub.b.warn("acks could not be stored, trying again", first, "topic", s.sub.q.Topic, "messages", len(hands))
		}
		hands, settled = s.unfinished(settled, hands, faults)
	}
}

// lose records that the outcome of a delivery has not reached the broker. If it was handled, it is acked when it is
// redelivered.
func (h *delivery) lose() {
	defer h.sub.known(h)
	if h.settlement[0].Answer != driver.Ack || h.moved {
		return
	}
	h.sub.b.acksLost.Add(1)
	h.sub.b.warn("a message that was handled could not be acked and will be redelivered", driver.ErrLost,
		"topic", h.sub.q.Topic, "queue", h.sub.q.Names.Queue)
	if name := h.content(); name != "" {
		h.sub.memory.settle(name)
		h.sub.memory.lost.Store(true)
	}
}
