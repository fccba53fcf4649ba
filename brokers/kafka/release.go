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
	ctx, cancel := context.WithTimeoutCause(ctx, max(b.cfg.PublishTimeout, time.Millisecond), b.overdue)
	defer cancel()
	r := &kgo.Record{
		Topic: b.retryName(topic, group, nowTier), Partition: anyPartition, Key: key,
		Headers: []kgo.RecordHeader{header(headerControl, controlRelease), header(envelope.KeyConsumer, group)},
	}
	if err := b.park(ctx, topic, waitingRecord{r, nowTier}); err != nil {
		return fail(err)
	}
	return nil
}
