package kafka

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
)

// publisher is one handle on the broker's producers.
type publisher struct {
	b      *Broker
	closed atomic.Bool
}

// Publish sends all messages at once and waits until the cluster has stored them. The context of the first message
// bounds the wait, and so does Config.PublishTimeout.
func (p *publisher) Publish(topic string, messages ...*message.Message) error {
	if p.closed.Load() || p.b.isClosed() {
		return fmt.Errorf("kafka: publish to %s: %w", topic, brokers.ErrClosed)
	}
	if len(messages) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(messages[0].Context(), p.b.cfg.PublishTimeout, p.b.overdue)
	defer cancel()
	if err := p.b.publish(ctx, topic, messages); err != nil {
		return fmt.Errorf("kafka: publish to %s: %w", topic, err)
	}
	return nil
}

// Close makes further publishes on this handle fail. The broker stays open.
func (p *publisher) Close() error {
	p.closed.Store(true)
	return nil
}

func (b *Broker) publish(ctx context.Context, topic string, messages []*message.Message) error {
	partitions, _, err := b.topics.ensure(ctx, b.source(topic))
	if err != nil {
		return err
	}
	now := make([]*kgo.Record, 0, len(messages))
	var later []*kgo.Record
	for _, m := range messages {
		delay, delayed := time.Duration(0), false
		if asksForDelay(m) {
			m = m.Copy() // the caller keeps its message as it is
			delay, delayed = envelope.TakeDelay(m)
		}
		if !delayed || delay == 0 {
			now = append(now, newRecord(topic, m, anyPartition))
			continue
		}
		r, err := b.delayed(ctx, topic, m, delay, partitions)
		if err != nil {
			return err
		}
		later = append(later, r)
	}
	if err := b.out.send(ctx, now...); err != nil {
		return err
	}
	if err := b.waits.send(ctx, later...); err != nil {
		return err
	}
	for _, r := range later {
		b.ring(r)
	}
	return nil
}

func asksForDelay(m *message.Message) bool {
	for _, name := range [...]string{envelope.KeyDelay, envelope.KeyWatermillDelayedFor, envelope.KeyWatermillDelayedUntil} {
		if _, ok := m.Metadata[name]; ok {
			return true
		}
	}
	return false
}

// delayed renders a message that waits for its first delivery. Every group reads the topic it waits in, each by itself.
func (b *Broker) delayed(ctx context.Context, topic string, m *message.Message, delay time.Duration, partitions int32) (*kgo.Record, error) {
	names := b.cfg.Naming.For(topic, "")
	b.waiters.Store(waiter{topic: topic}, nil)
	wait := tiers(grid).pick(delay, delay) // only what every consumer expects, however it is configured
	name := names.Delayed(wait)
	if err := b.ensureTier(ctx, topic, name, wait, partitions); err != nil {
		return nil, err
	}
	r := newRecord(name, m, anyPartition)
	r.Headers = append(r.Headers, header(headerWait, millis(delay)))
	b.placeByKey(r, partitions)
	return r, nil
}

// placeByKey chooses the partition that the record's key has on its source topic, which is whose owner reads it here.
func (b *Broker) placeByKey(r *kgo.Record, partitions int32) {
	byKey := partitioners[b.cfg.Params.String("partitioner")].ForTopic(r.Topic)
	r.Partition = int32(byKey.Partition(r, int(partitions))) //nolint:gosec // G115: below partitions
}
