package memory

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
)

// subscription is one call of Subscribe: as many workers as may run handlers at once, each with one message at a time.
type subscription struct {
	broker       *Broker
	topic, group string
	queue        *queue
	base         context.Context // parent of the handlers' contexts; not cancelled before the drain is over
	out          chan *message.Message
	stop         chan struct{} // closed: hand out nothing more
	expired      chan struct{} // closed: wait for handlers no longer
	workers      sync.WaitGroup
}

func (s *subscription) work() {
	mailbox := make(chan *item, 1)
	for {
		it, ok := s.queue.receive(mailbox, s.stop)
		if !ok {
			return
		}
		s.deliver(it)
	}
}

// deliver hands it out and settles it by what becomes of the message.
func (s *subscription) deliver(it *item) {
	m := it.message()
	ctx, cancel := context.WithCancel(envelope.WithOrigin(s.base, s.origin(it)))
	defer cancel()
	m.SetContext(ctx)

	select {
	case s.out <- m:
		it.deliveries++
	case <-s.stop:
		s.queue.giveBack(it)
		return
	}

	select {
	case <-m.Acked():
		s.queue.ack()
	case <-m.Nacked():
		s.nacked(it)
	case <-s.expired:
		select {
		case <-m.Acked(): // both were ready
			s.queue.ack()
		default:
			s.queue.giveBack(it)
		}
	}
}

// nacked stores it for another delivery. A nack during the drain gives the message back to whoever comes next, and
// needs no pause: this subscription takes nothing more.
func (s *subscription) nacked(it *item) {
	select {
	case <-s.stop:
		s.queue.giveBack(it)
	default:
		s.queue.nack(it)
	}
}

func (s *subscription) origin(it *item) *envelope.Origin {
	o := &envelope.Origin{
		Broker:        Scheme,
		Topic:         s.topic,
		Consumer:      s.group,
		Timestamp:     it.stored,
		Position:      strconv.FormatInt(it.position, 10),
		Redelivered:   it.deliveries > 0,
		DeliveryCount: it.deliveries,
	}
	if it.topic != s.topic { // the subscription is to a pattern
		o.RoutingKey = it.topic
	}
	return o
}

// drain ends the subscription: no new messages, then the running handlers, at most for timeout, then the channel.
func (s *subscription) drain(timeout time.Duration) {
	close(s.stop)
	finished := make(chan struct{})
	go func() {
		s.workers.Wait()
		close(finished)
	}()
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	select {
	case <-finished:
	case <-deadline.C:
		close(s.expired)
		<-finished
	}
	close(s.out)
}
