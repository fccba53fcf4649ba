package rabbitmq

import (
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers/internal/crash"
	"github.com/redrive-go/redrive/envelope"
)

// crashed tells whether d was under way each time a consumer died. RabbitMQ counts lost connections and consumer
// timeouts as well, of which a stormy network makes many: those that this subscription has lived through are taken off.
// A process that dies forgets them, so that a message that kills is found out all the same. Losses of other processes
// cannot be told from crashes.
func (s *session) crashed(d *amqp.Delivery) bool {
	limit := s.broker.design.crashLimit
	return limit > 0 && deliveryCount(d.Headers)-s.losses >= limit
}

// worn tells whether RabbitMQ is about to dead-letter d itself, at its delivery limit, although nobody has failed: every
// lost connection counts for every message that was sent ahead on it. Such a message is published anew, which counts from
// 0. Not in a process that has lost no connection: there it may be a message that kills.
func (s *session) worn(d *amqp.Delivery) bool {
	return s.losses > 0 && deliveryCount(d.Headers) >= max(1, s.broker.design.deliveryLimit/2)
}

// bury dead-letters a message that was under way each time its consumer died.
func (s *session) bury(m *message.Message, origin *envelope.Origin) error {
	letter := crash.Letter(m, *origin, origin.DeliveryCount, s.broker.design.crashLimit, time.Now())
	s.broker.logger.Error("rabbitmq: message dead-lettered before its handler",
		"queue", s.names.Queue, "message_id", m.UUID, "reason", letter.Err.Message)
	return crash.Keep(s.base, s.broker.cfg, letter, s.broker.DeadLetter)
}
