package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/envelope"
)

// session is one channel that consumes. It ends with the channel, the connection, or the consumer (the queue was
// deleted or has moved).
type session struct {
	*subscription
	conn       *amqp.Connection
	ch         *amqp.Channel
	deliveries <-chan amqp.Delivery
	lost       chan struct{} // closed when the channel has ended
	acks       *acker
	cautious   bool // one message at a time, see openSession
}

// closeTimeout bounds the orderly end of a channel.
const closeTimeout = 5 * time.Second

// Consumers of one channel, one after the other.
const (
	cautiousTag = "redrive-cautious"
	consumerTag = "redrive"
)

// openSession begins to consume.
//
// When a process dies RabbitMQ counts a delivery for every message that it had been sent ahead, not only for the one
// that killed it. Those that were counted come first. So the first session of a subscription that could be sent many
// begins with one at a time, until a message comes that was never delivered before: the second crash, and any later one,
// counts for the killer alone. Later sessions know that this process lived, and need not be so slow.
func openSession(ctx context.Context, sub *subscription) (*session, error) {
	l := sub.broker.consuming
	conn, err := l.connection(ctx)
	if err != nil {
		return nil, err
	}
	ch, err := l.channel(ctx)
	if err != nil {
		return nil, err
	}
	s := &session{
		subscription: sub,
		conn:         conn,
		ch:           ch,
		lost:         make(chan struct{}),
		acks:         newAcker(ch, sub.prefetch, sub.acksFailed),
		cautious:     sub.broker.design.crashLimit > 0 && sub.prefetch > 1 && sub.losses == 0,
	}
	ended := ch.NotifyClose(make(chan *amqp.Error, 1))
	go func() {
		defer close(s.lost)
		if e := <-ended; e != nil { // a consumer timeout says here that it was one
			sub.broker.logger.Warn("rabbitmq: consuming channel ended", "queue", sub.names.Queue, "error", e)
		}
	}()
	if s.cautious {
		err = s.consume(ctx, cautiousTag, 1)
	} else {
		err = s.consume(ctx, consumerTag, sub.prefetch)
	}
	if err != nil {
		s.close(ctx)
		return nil, err
	}
	return s, nil
}

func (s *session) consume(ctx context.Context, tag string, prefetch int) (err error) {
	s.deliveries, err = call(ctx, s.conn, func() (<-chan amqp.Delivery, error) {
		if err := s.ch.Qos(prefetch, 0, false); err != nil {
			return nil, err
		}
		return s.ch.Consume(s.names.Queue, tag, false, false, false, false, nil)
	})
	if err != nil {
		return fmt.Errorf("rabbitmq: consume from queue %q: %w", s.names.Queue, err)
	}
	return nil
}

// relax goes on with the full prefetch. Nothing is waiting in s.deliveries: the one message that the broker may send
// ahead is in the caller's hand.
func (s *session) relax() error {
	ctx, cancel := context.WithTimeout(s.base, closeTimeout)
	defer cancel()
	s.cautious = false
	if _, err := call(ctx, s.conn, func() (struct{}, error) { return struct{}{}, s.ch.Cancel(cautiousTag, false) }); err != nil {
		return err
	}
	return s.consume(ctx, consumerTag, s.prefetch)
}

func isNotFound(err error) bool {
	var e *amqp.Error
	return errors.As(err, &e) && e.Code == amqp.NotFound
}

// pump hands deliveries out. It returns true when the subscription is to stop, false when the session is lost.
//
// It looks at what was sent ahead before there is a slot for it: what has come early, or too often, is sent aside without
// waiting for a slow handler.
func (s *session) pump() (stopped bool) {
	var ahead []amqp.Delivery // at most the prefetch
	for {
		slots := s.slots
		if len(ahead) == 0 {
			slots = nil
		}
		select {
		case slots <- struct{}{}:
			if !s.handOut(&ahead[0]) {
				<-s.slots
				return true
			}
			ahead = ahead[1:]
		case d, ok := <-s.deliveries:
			if !ok { // the broker cancelled the consumer, or the channel ended
				return false
			}
			if s.cautious && deliveryCount(d.Headers) == 0 && s.relax() != nil {
				return false
			}
			if !s.divert(&d) {
				ahead = append(ahead, d)
			}
		case <-s.stop:
			return true
		case <-s.lost:
			return false
		}
	}
}

// handOut gives d to the handler. It reports false when the subscription is to stop; d then returns to the queue with
// the end of the channel.
func (s *session) handOut(d *amqp.Delivery) bool {
	m := unmarshal(d)
	origin := s.originOf(d, m)
	if consumer := m.Metadata[envelope.KeyConsumer]; consumer == "" || consumer == origin.Consumer {
		m.Metadata[envelope.KeyRoutingKey], m.Metadata[envelope.KeyExchange] = origin.RoutingKey, origin.Exchange
	} // else it is another consumer's dead letter, read by a collector, and says how it came to that consumer
	delete(m.Metadata, envelope.KeyNotBefore) // it has come
	ctx, cancel := context.WithCancel(envelope.WithOrigin(s.base, origin))
	m.SetContext(ctx)
	s.flying.Add(1)
	select {
	case s.out <- m:
		go s.await(m, d.DeliveryTag, origin, cancel)
		return true
	case <-s.stop:
		cancel()
		s.flying.Done()
		return false
	}
}

// await waits for the handler's answer and passes it on to the broker.
func (s *session) await(m *message.Message, tag uint64, origin *envelope.Origin, cancel context.CancelFunc) {
	defer s.flying.Done()
	defer cancel()
	defer func() { <-s.slots }()
	select {
	case <-m.Acked():
		s.acks.ack(tag)
	case <-m.Nacked():
		s.giveBack(m, tag, origin)
	case <-s.expired: // unanswered, it returns to the queue with the end of the channel
	}
}

// giveBack returns a nacked message to the queue after a pause: RabbitMQ would deliver it again at once, some ten
// thousand times a second.
//
// Before 4.3 RabbitMQ counts nacks like crashes. A nack is an answer, and must not bring the message nearer to the
// crash limit: before that happens the message is published anew instead, which counts from 0.
func (s *session) giveBack(m *message.Message, tag uint64, origin *envelope.Origin) {
	select {
	case <-time.After(s.pauseBefore(origin)):
	case <-s.stop:
		s.acks.nack(tag)
		return
	case <-s.lost:
		return
	}
	limit := s.broker.design.crashLimit
	if limit > 0 && origin.DeliveryCount+2 >= limit {
		o, err := s.broker.retry(s.names, origin, m, 0)
		if err == nil {
			err = s.broker.sender.send(s.base, o)
		}
		if err == nil {
			s.acks.ack(tag)
			return
		}
		s.broker.logger.Warn("rabbitmq: cannot publish a nacked message anew, the broker counts the nack",
			"queue", s.names.Queue, "message_id", m.UUID, "error", err)
	}
	s.acks.nack(tag)
}

// pauseBefore grows with the deliveries of the message; classic queues count only to one.
func (s *session) pauseBefore(origin *envelope.Origin) time.Duration {
	n := origin.DeliveryCount
	if n == 0 && origin.Redelivered {
		n = 1
	}
	return min(s.nackPause<<min(n, 10), max(5*time.Second, s.nackPause))
}

// originOf says where d came from. A retry came through its delay queue; then the routing key and exchange of the first
// publication are in its headers, which count only when they were written for this queue.
func (s *session) originOf(d *amqp.Delivery, m *message.Message) *envelope.Origin {
	o := &envelope.Origin{
		Broker:        Scheme,
		Topic:         s.topic,
		Consumer:      s.names.Queue,
		Exchange:      d.Exchange,
		RoutingKey:    d.RoutingKey,
		Timestamp:     d.Timestamp,
		Redelivered:   d.Redelivered,
		DeliveryCount: deliveryCount(d.Headers),
	}
	if key := m.Metadata[envelope.KeyRoutingKey]; key != "" && m.Metadata[envelope.KeyConsumer] == s.names.Queue {
		o.RoutingKey = key
		o.Exchange = m.Metadata[envelope.KeyExchange]
	}
	if s.broker.design.transport == transportReject {
		countRejections(d.Headers, s.names.Queue, m.Metadata)
	}
	return o
}

// close ends the session. What is not acked by now is delivered again.
//
// The consumer is cancelled although its channel ends next. A channel passes acks on to a quorum queue without waiting,
// and when it ends, RabbitMQ 3.10 forgets those that it has not passed on yet: ten or so messages would be handled
// again after every shutdown. The answer to the cancel comes from the queue, after the acks have.
func (s *session) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	_, _ = call(ctx, s.conn, func() (struct{}, error) { // an error means that the channel is gone, which is what we want
		s.acks.close()
		tag := consumerTag
		if s.cautious {
			tag = cautiousTag
		}
		if err := s.ch.Cancel(tag, false); err != nil {
			return struct{}{}, err
		}
		return struct{}{}, s.ch.Close()
	})
}
