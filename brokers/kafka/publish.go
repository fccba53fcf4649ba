package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/envelope"
)

// Publish implements driver.Transport. Different topics are published concurrently.
func (b *transport) Publish(ctx context.Context, out []driver.Outgoing) []error {
	faults := b.publishGroups(ctx, out)
	for i := range out {
		if faults[i] == nil {
			b.flights.note(&out[i])
		}
	}
	return faults
}

func (b *transport) publishGroups(ctx context.Context, out []driver.Outgoing) []error {
	groups := groupsOf(out)
	if len(groups) == 1 {
		return b.publish(ctx, out)
	}
	faults := make([]error, len(out))
	var sending sync.WaitGroup
	for _, indexes := range groups {
		sending.Go(func() {
			part := make([]driver.Outgoing, len(indexes))
			for n, i := range indexes {
				part[n] = out[i]
			}
			for n, err := range b.publish(ctx, part) {
				faults[indexes[n]] = err
			}
		})
	}
	sending.Wait()
	return faults
}

// groupsOf returns the indexes of publications of the same kind to the same destination.
func groupsOf(out []driver.Outgoing) [][]int {
	type way struct {
		to  *driver.Destination
		now bool
	}
	known := map[way]int{}
	var groups [][]int
	for i := range out {
		key := way{out[i].To, out[i].Due.IsZero()}
		n, ok := known[key]
		if !ok {
			n = len(groups)
			known[key], groups = n, append(groups, nil)
		}
		groups[n] = append(groups[n], i)
	}
	return groups
}

// publish is Publish for one group.
func (b *transport) publish(ctx context.Context, out []driver.Outgoing) []error {
	to, now := out[0].To, out[0].Due.IsZero()
	records := make([]waitingRecord, len(out))
	for i := range out {
		records[i] = b.render(&out[i])
	}
	switch {
	case to.Kind == driver.ToDeadLetters:
		return b.store(ctx, b.waits, records, func(r waitingRecord) error { return b.placeDead(ctx, to.Topic, r.Record) })
	case to.Kind == driver.ToTopic && now:
		topic := b.source(to.Topic)
		return b.store(ctx, b.out, records, func(waitingRecord) error {
			if envelope.ExistingOnly(ctx) {
				_, err := b.topics.existing(ctx, topic)
				return err
			}
			_, _, err := b.topics.ensure(ctx, topic)
			return err
		})
	}
	return b.park(ctx, to.Topic, records...)
}

// render builds the record of a publication.
func (b *transport) render(o *driver.Outgoing) waitingRecord {
	to := o.To
	if to.Kind == driver.ToTopic {
		if o.Due.IsZero() {
			return waitingRecord{Record: newRecord(to.Topic, o)}
		}
		// Every group reads the topic that it waits in for itself, so it must be a wait that every consumer expects
		// regardless of its configuration.
		b.waiters.Store(waiter{topic: to.Topic}, nil)
		wait := tiers(grid).pick(o.Delay, o.Delay)
		r := newRecord(to.Names.Delayed(wait), o)
		r.Headers = append(r.Headers, header(headerWait, millis(o.Delay)))
		return waitingRecord{Record: r, wait: wait}
	}
	origin := *o.Origin
	origin.Topic, origin.Consumer = to.Topic, to.Consumer
	if to.Kind == driver.ToDeadLetters {
		return waitingRecord{Record: newWaiting(to.Names.Dead, o, &origin)}
	}
	wait := b.tiers.pick(o.Delay, o.Delay)
	name := b.retryName(to.Topic, to.Consumer, wait)
	if o.Delay == 0 && origin.RedriveTo != "" {
		name = origin.RedriveTo // its consumer may name topics differently
	}
	r := newWaiting(name, o, &origin)
	r.Headers = append(r.Headers, header(headerWait, millis(o.Delay)))
	if !o.First {
		r.Headers = append(r.Headers, header(headerRetry, "1"))
	}
	return waitingRecord{r, wait, true}
}

// waitingRecord is a record on its way to a topic, and how long it waits there.
type waitingRecord struct {
	*kgo.Record
	wait  time.Duration
	retry bool // the first wait of a retry
}

// store sends records, each after prepare has created its topic and chosen its partition, and once more those whose
// topic was deleted since its last use, or has a partition that the client does not know yet. It returns an error for
// each, nil for those that are stored.
func (b *transport) store(ctx context.Context, by *producer, records []waitingRecord,
	prepare func(waitingRecord) error,
) []error {
	faults := storeOnce(ctx, by, records, prepare)
	var again []waitingRecord
	var indexes []int
	for i, err := range faults {
		r := records[i]
		switch {
		case errors.Is(err, brokers.ErrUnroutable):
			b.topics.forget(r.Topic)
			by.client.PurgeTopicsFromProducing(r.Topic)
		case err == nil || !by.learns(ctx, r.Record):
			continue
		}
		r.Record = &kgo.Record{ // the client may still hold the other one
			Topic: r.Topic, Partition: r.Partition, Key: r.Key, Value: r.Value, Headers: r.Headers,
		}
		records[i] = r
		again, indexes = append(again, r), append(indexes, i)
	}
	if len(again) == 0 {
		return faults
	}
	for n, err := range storeOnce(ctx, by, again, prepare) {
		faults[indexes[n]] = err
	}
	return faults
}

func storeOnce(ctx context.Context, by *producer, records []waitingRecord, prepare func(waitingRecord) error) []error {
	faults := make([]error, len(records))
	send := make([]*kgo.Record, len(records))
	for i, r := range records {
		if faults[i] = prepare(r); faults[i] == nil {
			send[i] = r.Record
		}
	}
	for i, err := range by.send(ctx, send) {
		faults[i] = cmp.Or(faults[i], err)
	}
	return faults
}

// park stores records in retry topics, on the partitions that they name or that their keys map to on the source topic,
// because the owner of that partition reads them. Missing topics are created.
func (b *transport) park(ctx context.Context, source string, records ...waitingRecord) []error {
	faults := b.store(ctx, b.waits, records, func(r waitingRecord) error { return b.place(ctx, source, r) })
	for i, r := range records {
		if faults[i] == nil {
			b.news.arrived(topicPartition{r.Topic, r.Partition})
		}
	}
	return faults
}

// place creates the retry topic of a record, unless ctx allows only existing ones, and chooses its partition.
func (b *transport) place(ctx context.Context, source string, r waitingRecord) error {
	if limit := b.cfg.Params.Bytes("max-message-bytes"); r.retry && int64(len(r.Value)) > limit {
		// The headroom of retry topics is for headers: this message was never on the topic.
		return fmt.Errorf("%w: the payload has %d bytes, the limit is %d", brokers.ErrTooLarge, len(r.Value), limit)
	}
	partitions, err := b.topics.including(ctx, b.source(source), r.Partition)
	if err != nil {
		return err
	}
	var have int32
	if tier := b.tier(r.Topic, r.wait, partitions); envelope.ExistingOnly(ctx) {
		have, err = b.topics.existing(ctx, tier)
	} else {
		have, err = b.ensureTier(ctx, source, tier, r.wait)
	}
	if err != nil {
		return err
	}
	if r.Partition == anyPartition || r.Partition >= partitions {
		b.placeByKey(r.Record, partitions)
	}
	if r.Partition >= have { // partitions were added to the source, and may not be added here
		b.placeByKey(r.Record, have)
	}
	return nil
}

// placeByKey chooses the partition to which the record's key maps on its source topic, because its owner reads it here.
func (b *transport) placeByKey(r *kgo.Record, partitions int32) {
	byKey := partitioners[b.cfg.Params.String("partitioner")].ForTopic(r.Topic)
	r.Partition = int32(byKey.Partition(r, int(partitions))) //nolint:gosec // G115: below partitions
}

// placeDead creates the dead letter topic of a record, which stays on the partition that it came from.
func (b *transport) placeDead(ctx context.Context, source string, r *kgo.Record) error {
	partitions, err := b.topics.existing(ctx, b.source(source))
	if err != nil {
		return err
	}
	have, _, err := b.topics.ensure(ctx, b.forever(r.Topic, "the dead letter topic", partitions))
	if err == nil && r.Partition >= have {
		r.Partition = anyPartition
	}
	return err
}
