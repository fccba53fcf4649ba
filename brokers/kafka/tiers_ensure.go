package kafka

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/redrive-go/redrive/envelope"
)

// ensureTier creates a retry topic, and notifies its readers if it is new. It returns its number of partitions.
func (b *transport) ensureTier(ctx context.Context, source string, retries spec, wait time.Duration) (int32, error) {
	have, created, err := b.topics.ensure(ctx, retries)
	if err != nil {
		return 0, err
	}
	if created {
		for _, s := range b.readersOf(source) {
			s.readTier(retries.name, tier{wait: wait})
			s.findTiers() // if it was recreated, its readers learn of it
		}
		b.announce(ctx, source, retries.partitions)
	}
	return have, nil
}

// announce makes consumers in other processes look for new retry topics, through one that they already read. They also
// look from time to time, so nothing depends on its success.
func (b *transport) announce(ctx context.Context, source string, partitions int32) {
	shared := b.cfg.Naming.For(source, "").Delayed(nowTier)
	if _, err := b.topics.existing(ctx, spec{name: shared}); err != nil {
		return // no consumer has ever subscribed
	}
	var records []*kgo.Record
	for p := range partitions {
		records = append(records, &kgo.Record{
			Topic: shared, Partition: p, Headers: []kgo.RecordHeader{header(headerControl, controlTiers)},
		})
	}
	if err := errors.Join(b.waits.send(ctx, records)...); err != nil {
		b.log.DebugContext(ctx, "a new retry topic could not be announced", "topic", source, "err", err)
	}
}

// The kinds of control records.
const (
	controlTiers   = "tiers"   // there are new retry topics
	controlProbe   = "probe"   // nothing; it is written to obtain the broker's timestamp
	controlRelease = "release" // a key blocked by a dead letter may continue
	controlLock    = "lock"    // in a parking topic: a dead letter blocks the key
)

// nextWait renders a waiting record for its next wait: the same bytes, with its due time on the broker's clock.
func nextWait(r *kgo.Record, origin *envelope.Origin, topic string, due time.Time) *kgo.Record {
	to := &kgo.Record{Topic: topic, Partition: r.Partition, Key: r.Key, Value: r.Value}
	for _, h := range r.Headers {
		switch h.Key {
		case envelope.KeyNotBefore, envelope.KeyConsumer, envelope.KeyTopic,
			headerPartition, headerOffset, headerTimestamp, headerSource, headerIncarnation:
			continue // written below
		}
		to.Headers = append(to.Headers, h)
	}
	to.Headers = append(to.Headers, originHeaders(origin)...)
	to.Headers = append(to.Headers, header(envelope.KeyNotBefore, strconv.FormatInt(due.UnixMilli(), 10)))
	return to
}
