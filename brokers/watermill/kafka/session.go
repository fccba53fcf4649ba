package kafka

import (
	"context"

	"github.com/IBM/sarama"
	wkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
)

// lateAcks lets a handler that was running when a rebalance began have its offset committed. watermill-kafka v3.1.2
// drops an ack when the session's context has ended, although sarama commits what is marked until every claim has
// returned: each rebalance then redelivered messages in flight. A tracer is where its group's handler can be wrapped.
type lateAcks struct{ wkafka.SaramaTracer }

// WrapConsumerGroupHandler implements watermill-kafka's SaramaTracer.
func (t lateAcks) WrapConsumerGroupHandler(handler sarama.ConsumerGroupHandler) sarama.ConsumerGroupHandler {
	if t.SaramaTracer != nil {
		handler = t.SaramaTracer.WrapConsumerGroupHandler(handler)
	}
	return lateHandler{handler}
}

type lateHandler struct{ sarama.ConsumerGroupHandler }

// ConsumeClaim implements sarama.ConsumerGroupHandler.
func (h lateHandler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	return h.ConsumerGroupHandler.ConsumeClaim(lateSession{session}, claim)
}

type lateSession struct{ sarama.ConsumerGroupSession }

// Context implements sarama.ConsumerGroupSession.
func (s lateSession) Context() context.Context { return lateContext{s.ConsumerGroupSession.Context()} }

// lateContext is done when the session is, which ends the claim after the message in flight, but has no error:
// watermill-kafka checks for that before it passes an ack on.
type lateContext struct{ context.Context }

// Err implements context.Context.
func (lateContext) Err() error { return nil }
