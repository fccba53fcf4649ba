package rabbitmq

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

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

// bury dead-letters a message that was under way each time its consumer died.
func (s *session) bury(m *message.Message, origin *envelope.Origin) error {
	now := time.Now()
	text := fmt.Sprintf("delivered %d times without an answer: its handler seems to end the process (crash-limit %d)",
		origin.DeliveryCount, s.broker.design.crashLimit)
	s.broker.logger.Error("rabbitmq: message dead-lettered before its handler", "queue", s.names.Queue, "message_id", m.UUID, "reason", text)
	dead, err := recordCrash(m, text, now)
	if err != nil {
		dead = m // a body that claims to be an envelope and is not one: its bytes stay as they are
	}
	return s.broker.keepCrashed(s.base, &envelope.DeadLetter{
		Message: dead,
		Reason:  envelope.ReasonCrash,
		Err:     envelope.Error{Message: text, Code: "crash"},
		Rule:    "crash-limit",
		Origin:  *origin,
		At:      now,
	})
}

// keepCrashed puts d where the program wants its dead letters, and into the dead letter queue when that fails: somebody
// who looks for it finds it late, which beats a message that goes on ending processes.
func (b *Broker) keepCrashed(ctx context.Context, d *envelope.DeadLetter) error {
	if b.cfg.DeadLetters == nil {
		return b.DeadLetter(ctx, d)
	}
	err := b.offer(ctx, d)
	if err == nil {
		return nil
	}
	b.logger.Error("rabbitmq: Config.DeadLetters did not take a dead letter, which goes to the dead letter queue",
		"queue", d.Origin.Consumer, "message_id", d.Message.UUID, "error", err)
	return b.DeadLetter(ctx, d)
}

// offer calls Config.DeadLetters with a copy, which it may still hold when its time is over, and contains its panics: they
// would end the process once more.
func (b *Broker) offer(ctx context.Context, d *envelope.DeadLetter) error {
	ctx, cancel := context.WithTimeoutCause(ctx, b.cfg.PublishTimeout,
		fmt.Errorf("no answer within %s: %w", b.cfg.PublishTimeout, context.DeadlineExceeded))
	defer cancel()
	mine := *d
	mine.Message = d.Message.Copy()
	answer := make(chan error, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				answer <- fmt.Errorf("panic: %v", r)
			}
		}()
		answer <- b.cfg.DeadLetters(ctx, &mine)
	}()
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
