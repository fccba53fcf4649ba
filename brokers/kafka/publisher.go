package kafka

import (
	"context"
	"errors"
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
	return envelope.PublishProduced(func(messages ...*message.Message) error {
		return p.publish(topic, messages...)
	}, messages...)
}

func (p *publisher) publish(topic string, messages ...*message.Message) error {
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
	now := make([]*kgo.Record, 0, len(messages))
	var later []waitingRecord
	for _, m := range messages {
		delay, delayed := time.Duration(0), false
		if asksForDelay(m) {
			m = m.Copy() // the caller keeps its message as it is
			delay, delayed = envelope.TakeDelay(m)
		}
		if !delayed || delay == 0 {
			now = append(now, newRecord(topic, m, anyPartition))
		} else {
			later = append(later, b.delayed(topic, m, delay))
		}
	}
	if err := b.sendTo(ctx, b.source(topic), b.out, now); err != nil {
		return err
	}
	return b.park(ctx, topic, later...)
}

// sendTo sends records to a topic, which is made if it is missing, also when it was deleted since it was last used.
func (b *Broker) sendTo(ctx context.Context, to spec, by *producer, records []*kgo.Record) error {
	for again := false; ; again = true {
		if _, _, err := b.topics.ensure(ctx, to); err != nil {
			return err
		}
		err := by.send(ctx, records...)
		if again || !errors.Is(err, brokers.ErrUnroutable) {
			return err
		}
		b.topics.forget(to.name)
		by.client.PurgeTopicsFromProducing(to.name)
		for i, r := range records { // the client may still hold the old ones
			records[i] = &kgo.Record{Topic: r.Topic, Partition: r.Partition, Key: r.Key, Value: r.Value, Headers: r.Headers}
		}
	}
}

func asksForDelay(m *message.Message) bool {
	for _, name := range [...]string{envelope.KeyDelay, envelope.KeyWatermillDelayedFor, envelope.KeyWatermillDelayedUntil} {
		if _, ok := m.Metadata[name]; ok {
			return true
		}
	}
	return false
}

// delayed renders a message that waits for its first delivery. Every group reads the topic it waits in for itself.
func (b *Broker) delayed(topic string, m *message.Message, delay time.Duration) waitingRecord {
	b.waiters.Store(waiter{topic: topic}, nil)
	wait := tiers(grid).pick(delay, delay) // only what every consumer expects, however it is configured
	r := newRecord(b.cfg.Naming.For(topic, "").Delayed(wait), m, anyPartition)
	r.Headers = append(r.Headers, header(headerWait, millis(delay)))
	return waitingRecord{r, wait}
}

// placeByKey chooses the partition that the record's key has on its source topic, which is whose owner reads it here.
func (b *Broker) placeByKey(r *kgo.Record, partitions int32) {
	byKey := partitioners[b.cfg.Params.String("partitioner")].ForTopic(r.Topic)
	r.Partition = int32(byKey.Partition(r, int(partitions))) //nolint:gosec // G115: below partitions
}
