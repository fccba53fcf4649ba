package kafka

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

// waiter is a group whose retry topics this broker knows; one without a group stands for first deliveries.
type waiter struct{ topic, group string }

// Depths implements brokers.DepthReporter, over the retry topics of the groups and topics that this Broker has used: by
// subscribing, rescheduling or publishing with a delay. It counts the messages that wait for all members, including
// those in other processes.
//
// All records of a retry topic wait for the same time and carry the broker's timestamps: those that still wait are the
// ones behind the first that is younger than that time. The group's commits play no part, so nothing has to be read,
// and two requests to each broker answer for all topics. A message that is due within 1 % or 100 ms may still be
// counted, and so may the control records with which processes probe a broker's clock, if it leads no partition of a
// topic for short waits. A first-delivery delay that spans several topics counts as a retry from the second on.
//
// Messages that wait behind an earlier one of their key (order=key) are those that the group has not committed in its
// parking topic, with the kind brokers.DepthParked.
func (b *Broker) Depths(ctx context.Context) ([]brokers.Depth, error) {
	return b.Broker.Depths(ctx, b.t)
}

// Depths implements [Broker.Depths] in the transport.
func (b *transport) Depths(ctx context.Context) ([]brokers.Depth, error) {
	found, err := b.depths(ctx)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("kafka: depths: %w", classify(err))
	}
	return found, nil
}

func (b *transport) depths(ctx context.Context) ([]brokers.Depth, error) {
	tiers, lots, err := b.depthTopics(ctx)
	if err != nil {
		return nil, err
	}
	ends, err := b.ends(ctx, tiers, lots)
	if err != nil {
		return nil, err
	}
	sums := map[brokers.Depth]int64{} // by description, without a count
	if err := b.countTiers(ctx, tiers, ends, sums); err != nil {
		return nil, err
	}
	if err := b.countParked(ctx, lots, ends, sums); err != nil {
		return nil, err
	}
	found := make([]brokers.Depth, 0, len(sums))
	for of, messages := range sums {
		of.Messages = messages
		found = append(found, of)
	}
	return found, nil
}

// depthTier is a retry topic to count.
type depthTier struct {
	of   brokers.Depth // without a count
	wait time.Duration
}

// depthTopics lists the retry topics that exist, and the parking topics.
func (b *transport) depthTopics(ctx context.Context) (tiers map[string]depthTier, lots map[string]waiter, err error) {
	all, err := b.topics.all(ctx, 0)
	if err != nil {
		return nil, nil, err
	}
	tiers, lots = map[string]depthTier{}, map[string]waiter{}
	for key := range b.waiters.Range {
		of := key.(waiter)
		names := b.cfg.Naming.For(of.topic, of.group)
		template, kind := names.Retry, brokers.DepthRetry
		if of.group == "" {
			template, kind = names.Delayed, brokers.DepthDelayed
		} else if lot := b.parkingName(of.topic, of.group); hasTopic(all, lot) {
			lots[lot] = of
		}
		pattern, err := newNamed(template)
		if err != nil {
			return nil, nil, err
		}
		for topic := range all {
			if wait, ok := pattern.delay(topic); ok {
				if _, counted := tiers[topic]; !counted { // naming schemes may let groups share one
					tiers[topic] = depthTier{brokers.Depth{Topic: of.topic, Group: of.group, Kind: kind}, wait}
				}
			}
		}
	}
	return tiers, lots, nil
}

func hasTopic(all map[string]described, name string) bool {
	_, ok := all[name]
	return ok
}

// ends returns the end offsets of the partitions.
func (b *transport) ends(
	ctx context.Context, tiers map[string]depthTier, lots map[string]waiter,
) (map[topicPartition]int64, error) {
	found, err := b.topics.describe(ctx, slices.AppendSeq(slices.Collect(maps.Keys(tiers)), maps.Keys(lots)))
	if err != nil {
		return nil, err
	}
	wanted := map[topicPartition]int64{}
	for name, topic := range found {
		for p := range topic.partitions {
			wanted[topicPartition{name, p}] = offsetNewest
		}
	}
	return b.topics.offsets(ctx, wanted)
}

// countTiers counts the records that are younger than their topic's wait.
func (b *transport) countTiers(ctx context.Context, tiers map[string]depthTier, ends map[topicPartition]int64,
	sums map[brokers.Depth]int64,
) error {
	wanted := map[topicPartition]int64{}
	for _, tier := range tiers {
		sums[tier.of] += 0
	}
	for at, end := range ends {
		if tier, ok := tiers[at.topic]; ok && end > 0 {
			wanted[at] = b.stampedNow(ctx, at).Add(-tier.wait).UnixMilli()
		}
	}
	first, err := b.topics.offsets(ctx, wanted)
	if err != nil {
		return err
	}
	for at, offset := range first {
		sums[tiers[at.topic].of] += max(ends[at]-offset, 0)
	}
	return nil
}

// stampedNow is the current time on the clock that timestamps the records of a partition. If the broker has not been
// observed lately, it is this process's own clock: nothing is written only to count.
func (b *transport) stampedNow(ctx context.Context, at topicPartition) time.Time {
	if leader, err := b.topics.leader(ctx, at, anyAge); err == nil {
		if now, ok := b.clocks.now(leader.id); ok {
			return now
		}
	}
	return time.Now()
}

// countParked counts unhandled records in the parking topics: those behind the group's position, except those that its
// note marks as done.
func (b *transport) countParked(ctx context.Context, lots map[string]waiter, ends map[topicPartition]int64,
	sums map[brokers.Depth]int64,
) error {
	byGroup := map[string][]topicPartition{}
	for at := range ends {
		if of, ok := lots[at.topic]; ok {
			byGroup[of.group] = append(byGroup[of.group], at)
		}
	}
	for group, wanted := range byGroup {
		positions, err := committed(ctx, b.own, group, wanted)
		if err != nil {
			return err
		}
		for at, stands := range positions {
			stands.offset = max(stands.offset, 0)
			waiting, noted := unpackNote(stands)
			of := lots[at.topic]
			sums[brokers.Depth{Topic: of.topic, Group: group, Kind: brokers.DepthParked}] += int64(len(waiting)) +
				max(ends[at]-noted, 0)
		}
	}
	return nil
}
