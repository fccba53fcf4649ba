package kafka

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/envelope"
)

// grid is the set of waits for retry topics, in addition to those in Config.Delays. It contains the usual steps of a
// backoff, so that most delays need one topic; any other is split over several of them.
var grid = []time.Duration{
	nowTier,
	200 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 20 * time.Second, 30 * time.Second,
	time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 20 * time.Minute, 30 * time.Minute,
	time.Hour, 2 * time.Hour, 4 * time.Hour, 8 * time.Hour,
	24 * time.Hour, 2 * 24 * time.Hour, 5 * 24 * time.Hour, 10 * 24 * time.Hour,
}

// nowTier is the shortest wait. Messages that are due at once go through it too: no record in its topic is held up for
// longer by the one before it.
const nowTier = 100 * time.Millisecond

// tiers is the sorted set of waits that one topic's retries can use.
type tiers driver.Steps

// newTiers adds the configured delays to the grid.
func newTiers(named []time.Duration) tiers {
	all := slices.Clone(grid)
	for _, d := range named {
		if d > nowTier {
			all = append(all, d)
		}
	}
	return tiers(driver.NewSteps(all...))
}

// pick chooses the topic for the next wait of a message that is due in remaining. delay is the whole requested delay; 1
// % of it, or 100 ms, is the lateness allowed.
//
// A record is held for min(remaining, tier). So a tier at least as long as the rest ends the wait, late by at most the
// difference, even behind a record that waits for the full tier; a shorter one leaves a rest for the next topic. A
// delay of 30 days needs at most a dozen topics.
func (t tiers) pick(remaining, delay time.Duration) time.Duration {
	rounded := driver.CeilMillis(remaining) // as Pick does, which is late too
	tier, _ := driver.Steps(t).Pick(rounded, max(nowTier, delay/125)-(rounded-remaining))
	return tier
}

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
	controlRelease = "release" // a key that a dead letter blocks may continue
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
