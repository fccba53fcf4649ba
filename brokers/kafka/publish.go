package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/envelope"
)

// Publish implements driver.Transport.
func (b *transport) Publish(ctx context.Context, out []driver.Outgoing) []error {
	records := make([]outgoing, len(out))
	for i := range out {
		records[i] = b.render(&out[i])
	}
	faults := b.store(ctx, records)
	for i := range out {
		if faults[i] == nil {
			b.outcomes.note(&out[i])
		}
	}
	return faults
}

// outgoing is a record on its way to a topic.
type outgoing struct {
	*kgo.Record
	source       string        // the topic that its consumers subscribe to
	dead         bool          // it goes to a dead letter topic
	wait         time.Duration // in a retry topic, 0 for other topics
	retry        bool          // the first wait of a retry
	existingOnly bool
}

// render builds the record of a publication.
func (b *transport) render(o *driver.Outgoing) outgoing {
	to := o.To
	r := outgoing{source: to.Topic, dead: to.Kind == driver.ToDeadLetters, existingOnly: o.ExistingOnly}
	if to.Kind == driver.ToTopic {
		if o.Due.IsZero() {
			r.Record = newRecord(to.Topic, o)
			return r
		}
		// Every group reads the topic that it waits in for itself, so it must be a wait that every consumer expects
		// regardless of its configuration.
		b.counts(waiter{topic: to.Topic})
		r.wait = tiers(grid).pick(o.Delay, o.Delay)
		r.Record = newRecord(to.Names.Delayed(r.wait), o)
		r.Headers = append(withoutWait(r.Headers), header(headerWait, millis(o.Delay)), header(envelope.KeyTopic, to.Topic))
		return r
	}
	origin := *o.Origin
	origin.Topic, origin.Consumer = to.Topic, to.Consumer
	if r.dead {
		r.Record = newWaiting(to.Names.Dead, o, &origin)
		return r
	}
	r.wait, r.retry = b.tiers.pick(o.Delay, o.Delay), true
	name := b.retryName(to.Topic, to.Consumer, r.wait)
	if o.Delay == 0 && origin.RedriveTo != "" {
		name = origin.RedriveTo // its consumer may name topics differently
	}
	r.Record = newWaiting(name, o, &origin)
	r.Headers = append(r.Headers, header(headerWait, millis(o.Delay)))
	if !o.First {
		r.Headers = append(r.Headers, header(headerRetry, "1"))
	}
	return r
}

// store sends records, and once more those whose topic was deleted since its last use, or has a partition that the
// client does not know yet. It returns an error for each, nil for those that are stored.
func (b *transport) store(ctx context.Context, records []outgoing) []error {
	faults := b.storeOnce(ctx, records)
	var again []outgoing
	var indexes []int
	for i, r := range records {
		err := faults[i]
		switch by := b.producerOf(r); {
		case errors.Is(err, brokers.ErrUnroutable):
			b.topics.forget(r.Topic)
			by.client.PurgeTopicsFromProducing(r.Topic)
		case err == nil, errors.Is(err, errNoAnswer): // without an answer the client still uses the record
			continue
		case !by.learns(ctx, r.Record):
			continue
		}
		r.Record = renew(r.Record)
		records[i] = r
		again, indexes = append(again, r), append(indexes, i)
	}
	if len(again) > 0 {
		for n, err := range b.storeOnce(ctx, again) {
			faults[indexes[n]] = err
		}
	}
	for i, r := range records {
		if faults[i] == nil && r.wait > 0 {
			b.news.arrived(topicPartition{r.Topic, r.Partition})
		}
	}
	return faults
}

// renew copies a record to send it again: the client may still hold the other one.
func renew(r *kgo.Record) *kgo.Record {
	return &kgo.Record{Topic: r.Topic, Partition: r.Partition, Key: r.Key, Value: r.Value, Headers: r.Headers}
}

func (b *transport) producerOf(r outgoing) *producer {
	if r.dead || r.wait > 0 {
		return b.waits
	}
	return b.out
}

// storeOnce places and sends records.
func (b *transport) storeOnce(ctx context.Context, records []outgoing) []error {
	faults := make([]error, len(records))
	for i, r := range records {
		faults[i] = b.place(ctx, r)
	}
	for _, by := range [...]*producer{b.out, b.waits} {
		var mine []*kgo.Record
		for i, r := range records {
			if faults[i] != nil || b.producerOf(r) != by {
				continue
			}
			if mine == nil {
				mine = make([]*kgo.Record, len(records)) // nil ones are skipped
			}
			mine[i] = r.Record
		}
		if mine == nil {
			continue
		}
		for i, err := range by.send(ctx, mine) {
			faults[i] = cmp.Or(faults[i], err)
		}
	}
	return faults
}

// place creates the topic of a record, as far as it may, and chooses its partition there.
func (b *transport) place(ctx context.Context, r outgoing) (err error) {
	switch {
	case r.dead:
		return b.placeDead(ctx, r)
	case r.wait > 0:
		return b.placeWaiting(ctx, r)
	case r.existingOnly:
		_, err = b.topics.existing(ctx, b.source(r.Topic))
	default:
		_, _, err = b.topics.ensure(ctx, b.source(r.Topic))
	}
	return err
}

// placeWaiting chooses the partition of a retry topic that the record names, or that its key maps to on the source
// topic, because the owner of that partition reads it.
func (b *transport) placeWaiting(ctx context.Context, r outgoing) error {
	if limit := b.cfg.Params.Bytes("max-message-bytes"); r.retry && int64(len(r.Value)) > limit {
		// The headroom of retry topics is for headers: this message was never on the topic.
		return fmt.Errorf("%w: the payload has %d bytes, the limit is %d", brokers.ErrTooLarge, len(r.Value), limit)
	}
	partitions, err := b.topics.including(ctx, b.source(r.source), r.Partition)
	if err != nil {
		return err
	}
	var have int32
	tier := b.tier(r.Topic, r.wait, partitions)
	if r.existingOnly {
		have, err = b.topics.including(ctx, tier, r.Partition)
	} else {
		have, err = b.ensureTier(ctx, r.source, tier, r.wait)
	}
	if err != nil {
		return err
	}
	if r.Partition == anyPartition || r.Partition >= partitions {
		b.placeByKey(r.Record, partitions)
	}
	if r.Partition < have {
		return nil
	}
	// Partitions were added to the source, and may not be added here. Another partition's owner cannot keep the order.
	if group, ok := find(r.Headers, envelope.KeyConsumer); ok && r.Key != nil && b.isOrdered(r.source, group) {
		return tier.tooFew(have)
	}
	b.placeByKey(r.Record, have)
	return nil
}

// isOrdered reports whether a group on a topic uses order=key, as far as this process knows.
func (b *transport) isOrdered(topic, group string) bool {
	readers := slices.DeleteFunc(b.readersOf(topic), func(s *subscription) bool { return s.q.Group != group })
	if len(readers) == 0 {
		return b.cfg.Params.String("order") == "key"
	}
	return slices.ContainsFunc(readers, func(s *subscription) bool { return s.strict })
}

func (b *transport) placeByKey(r *kgo.Record, partitions int32) {
	byKey := partitioners[b.cfg.Params.String("partitioner")].ForTopic(r.Topic)
	r.Partition = int32(byKey.Partition(r, int(partitions))) //nolint:gosec // G115: below partitions
}

// placeDead keeps a dead letter on the partition that it came from.
func (b *transport) placeDead(ctx context.Context, r outgoing) error {
	partitions, err := b.topics.existing(ctx, b.source(r.source))
	if err != nil {
		return err
	}
	have, _, err := b.topics.ensure(ctx, b.forever(r.Topic, "the dead letter topic", partitions))
	if err == nil && (r.Partition == anyPartition || r.Partition >= have) {
		b.placeByKey(r.Record, have)
	}
	return err
}
