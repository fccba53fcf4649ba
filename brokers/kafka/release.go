package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/redrive-go/redrive/envelope"
)

// Release lets a key continue that a dead letter blocks under order-dead=block, if the dead letter will not be
// redriven. It returns when the request is durable.
func (b *Broker) Release(ctx context.Context, topic, group string, key []byte) error {
	fail := func(err error) error {
		return fmt.Errorf("kafka: release a key of group %s on topic %s: %w", group, topic, err)
	}
	t := b.t
	ctx, cancel := context.WithTimeoutCause(ctx, max(t.cfg.PublishTimeout, time.Millisecond), t.overdue)
	defer cancel()
	r := &kgo.Record{
		Topic: t.retryName(topic, group, nowTier), Partition: anyPartition, Key: key,
		Headers: []kgo.RecordHeader{header(headerControl, controlRelease), header(envelope.KeyConsumer, group)},
	}
	if err := errors.Join(t.park(ctx, topic, waitingRecord{Record: r, wait: nowTier})...); err != nil {
		return fail(err)
	}
	return nil
}
