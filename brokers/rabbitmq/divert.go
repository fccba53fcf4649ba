package rabbitmq

import (
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/envelope"
)

// divert takes care of deliveries that must not reach the handler now, and reports whether d is one.
func (s *session) divert(d *amqp.Delivery) bool {
	if s.crashed(d) {
		s.sendAside(d, func(m *message.Message, origin *envelope.Origin) error { return s.bury(m, origin) })
		return true
	}
	wait := max(0, remaining(d.Headers, time.Now()))
	if wait <= holdLimit && !s.worn(d) {
		if wait > 0 { // another round through a queue would take longer
			select {
			case <-time.After(wait):
			case <-s.stop:
			}
		}
		return false
	}
	due := time.Now().Add(wait)
	s.sendAside(d, func(m *message.Message, origin *envelope.Origin) error {
		o, err := s.broker.retry(s.names, origin, m, max(0, time.Until(due)))
		if err != nil {
			return err
		}
		return s.broker.sender.send(s.base, o)
	})
	return true
}

// sendAside publishes d elsewhere and acks it, beside the deliveries that follow. The prefetch bounds how many.
func (s *session) sendAside(d *amqp.Delivery, publish func(*message.Message, *envelope.Origin) error) {
	m := unmarshal(d)
	origin := s.originOf(d, m)
	tag := d.DeliveryTag
	s.flying.Go(func() {
		err := publish(m, origin)
		if err == nil {
			s.acks.ack(tag)
			return
		}
		s.broker.logger.Error("rabbitmq: cannot send a message aside, it is given back",
			"queue", s.names.Queue, "message_id", m.UUID, "error", err)
		select {
		case <-time.After(s.pauseBefore(origin)):
		case <-s.stop:
		case <-s.lost:
		}
		s.acks.nack(tag)
	})
}
