package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
)

// Reschedule implements brokers.Broker. Delay queues that are missing, because the message comes from another
// environment or somebody deleted them, are declared.
func (b *Broker) Reschedule(ctx context.Context, origin envelope.Origin, m *message.Message, delay time.Duration) error {
	o, n, err := b.again(&origin, m, delay)
	if err != nil {
		return err
	}
	err = b.sender.send(ctx, o)
	if errors.Is(err, brokers.ErrUnroutable) && delay > 0 && b.design.declare != declareNone {
		if err := declare(ctx, b.publishing, b.design.waiting(n, origin.Topic)); err != nil {
			return fmt.Errorf("rabbitmq: reschedule: %w", err)
		}
		err = b.sender.send(ctx, o)
	}
	return err
}

// RescheduleAll puts each message in front of the consumer of its origin, now, as Reschedule does without a delay. All are
// under way together, and it returns when RabbitMQ has confirmed or refused every one: an error for each, nil for
// confirmed, in their order. Package dlq redrives whole batches through it.
func (b *Broker) RescheduleAll(ctx context.Context, origins []envelope.Origin, messages []*message.Message) []error {
	faults := make([]error, len(messages))
	if len(origins) != len(messages) {
		for i := range faults {
			faults[i] = fmt.Errorf("rabbitmq: reschedule: %d origins for %d messages", len(origins), len(messages))
		}
		return faults
	}
	batch, indexes := make([]outgoing, 0, len(messages)), make([]int, 0, len(messages))
	for i, m := range messages {
		o, _, err := b.again(&origins[i], m, 0)
		if err != nil {
			faults[i] = err
			continue
		}
		batch, indexes = append(batch, o), append(indexes, i)
	}
	for i, err := range b.sender.sendEach(ctx, batch) {
		faults[indexes[i]] = err
	}
	return faults
}

// again makes the publication that brings m back to the consumer that origin names.
func (b *Broker) again(origin *envelope.Origin, m *message.Message, delay time.Duration) (outgoing, brokers.Names, error) {
	n, err := b.namesOf(origin)
	if err != nil {
		return outgoing{}, n, fmt.Errorf("rabbitmq: reschedule: %w", err)
	}
	if err := b.checkPayload(m); err != nil {
		return outgoing{}, n, fmt.Errorf("rabbitmq: reschedule to %s: %w", n.Queue, err)
	}
	o, err := b.retry(n, origin, m, delay)
	return o, n, err
}

// retry makes the publication that brings m back to the consumer of n.
func (b *Broker) retry(n brokers.Names, origin *envelope.Origin, m *message.Message, delay time.Duration) (outgoing, error) {
	r, err := b.design.retry(n, origin, delay)
	if err != nil {
		return outgoing{}, err
	}
	o := b.outgoing(m, r, time.Now().Add(delay))
	if origin.Exchange != "" || origin.RoutingKey != n.Queue && origin.RoutingKey != "" { // else the way back restores it
		o.msg.Headers[envelope.KeyConsumer] = n.Queue
		o.msg.Headers[envelope.KeyRoutingKey] = origin.RoutingKey
		o.msg.Headers[envelope.KeyExchange] = origin.Exchange
	}
	return o, nil
}
