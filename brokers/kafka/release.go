package kafka

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/redrive-go/redrive/envelope"
)

// Release lets a key go on that a dead letter blocks under order-dead=block, when the dead letter is not going to be
// redriven. It returns when the request is durable.
func (b *Broker) Release(ctx context.Context, topic, group string, key []byte) error {
	fail := func(err error) error {
		return fmt.Errorf("kafka: release a key of group %s on topic %s: %w", group, topic, err)
	}
	partitions, err := b.topics.existing(ctx, b.source(topic))
	if err != nil {
		return fail(err)
	}
	name := b.cfg.Naming.For(topic, group).Retry(nowTier)
	if err := b.ensureTier(ctx, topic, name, nowTier, partitions); err != nil {
		return fail(err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, max(b.cfg.PublishTimeout, time.Millisecond), b.overdue)
	defer cancel()
	r := &kgo.Record{
		Topic: name, Key: key,
		Headers: []kgo.RecordHeader{header(headerControl, controlRelease), header(envelope.KeyConsumer, group)},
	}
	b.placeByKey(r, partitions)
	if err := b.waits.send(ctx, r); err != nil {
		return fail(err)
	}
	b.ring(r)
	return nil
}
