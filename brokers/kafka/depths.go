package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/IBM/sarama"

	"github.com/redrive-go/redrive/brokers"
)

var _ brokers.DepthReporter = (*Broker)(nil)

// waiter is a group whose retry topics this broker has come to know; one without a group stands for first deliveries.
type waiter struct{ topic, group string }

// Depths implements brokers.DepthReporter, over the retry topics of the groups and topics that this Broker has come to know:
// by subscribing, rescheduling or publishing with a delay. It counts what waits for all members, in other processes too.
//
// The records of a retry topic all wait for the same time, and have the broker's stamps: those that wait are the ones
// behind the first that is younger than that. What the group has committed plays no part, so that nothing has to be read,
// and two requests to each broker answer for all topics. A message that is due within 1 % or 100 ms may count still, and
// so may records with which processes ask a broker for its time, when it leads no partition of a topic for short waits. A first-delivery delay that takes several topics counts as a retry from the second on.
//
// Messages that wait behind an earlier one of their key (order=key) are those that the group has not committed in its
// parking topic, and are of the kind brokers.DepthParked.
func (b *Broker) Depths(ctx context.Context) ([]brokers.Depth, error) {
	if b.isClosed() {
		return nil, fmt.Errorf("kafka: depths: %w", brokers.ErrClosed)
	}
	type answer struct {
		found []brokers.Depth
		err   error
	}
	answered := make(chan answer, 1)
	go func() { // sarama takes no context
		found, err := b.depths()
		answered <- answer{found, err}
	}()
	select {
	case a := <-answered:
		if a.err != nil {
			return nil, fmt.Errorf("kafka: depths: %w", classify(a.err))
		}
		return a.found, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("kafka: depths: %w", context.Cause(ctx))
	}
}

func (b *Broker) depths() ([]brokers.Depth, error) {
	tiers, lots, err := b.depthTopics()
	if err != nil {
		return nil, err
	}
	ends, err := b.ends(tiers, lots)
	if err != nil {
		return nil, err
	}
	sums := map[brokers.Depth]int64{} // by what they are of, without a number
	if err := b.countTiers(tiers, ends, sums); err != nil {
		return nil, err
	}
	if err := b.countLots(lots, ends, sums); err != nil {
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
	of   brokers.Depth // without a number
	wait time.Duration
}

// depthTopics lists the retry topics that exist, and the parking topics.
func (b *Broker) depthTopics() (tiers map[string]depthTier, lots map[string]waiter, err error) {
	if err := b.client.RefreshMetadata(); err != nil {
		return nil, nil, err
	}
	all, err := b.client.Topics()
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
		} else if lot := b.parkingName(of.topic, of.group); slices.Contains(all, lot) {
			lots[lot] = of
		}
		pattern, err := newNamed(template)
		if err != nil {
			return nil, nil, err
		}
		for _, topic := range all {
			if wait, ok := pattern.delay(topic); ok {
				if _, counted := tiers[topic]; !counted { // naming schemes may let groups share one
					tiers[topic] = depthTier{brokers.Depth{Topic: of.topic, Group: of.group, Kind: kind}, wait}
				}
			}
		}
	}
	return tiers, lots, nil
}

// offsets of partitions, as sarama asks for them and answers.
type offsets map[string]map[int32]int64

func (o offsets) put(topic string, partition int32, offset int64) {
	if o[topic] == nil {
		o[topic] = map[int32]int64{}
	}
	o[topic][partition] = offset
}

// ends returns where the partitions end.
func (b *Broker) ends(tiers map[string]depthTier, lots map[string]waiter) (offsets, error) {
	wanted := offsets{}
	for _, topic := range slices.AppendSeq(slices.Collect(maps.Keys(tiers)), maps.Keys(lots)) {
		partitions, err := b.client.Partitions(topic)
		if err != nil {
			return nil, err
		}
		for _, p := range partitions {
			wanted.put(topic, p, sarama.OffsetNewest)
		}
	}
	return b.listOffsets(wanted)
}

// listOffsets leaves out partitions that have no such record, and those of topics that somebody has just deleted.
func (b *Broker) listOffsets(wanted offsets) (offsets, error) {
	found := offsets{}
	if len(wanted) == 0 {
		return found, nil
	}
	answer, err := b.topics.admin.ListOffsets(wanted, nil)
	if err != nil {
		return nil, err
	}
	for topic, partitions := range answer {
		for p, a := range partitions {
			switch {
			case a.Err != nil && !errors.Is(a.Err, sarama.ErrNoError):
				if !errors.Is(a.Err, sarama.ErrUnknownTopicOrPartition) {
					return nil, fmt.Errorf("topic %s, partition %d: %w", topic, p, a.Err)
				}
			case a.Offset >= 0:
				found.put(topic, p, a.Offset)
			}
		}
	}
	return found, nil
}

// countTiers counts what is younger than its topic lets it wait.
func (b *Broker) countTiers(tiers map[string]depthTier, ends offsets, sums map[brokers.Depth]int64) error {
	wanted := offsets{}
	for topic, tier := range tiers {
		sums[tier.of] += 0
		for p, end := range ends[topic] {
			if end == 0 {
				continue
			}
			wanted.put(topic, p, b.stampedNow(topic, p).Add(-tier.wait).UnixMilli())
		}
	}
	first, err := b.listOffsets(wanted)
	if err != nil {
		return err
	}
	for topic, partitions := range first {
		for p, offset := range partitions {
			sums[tiers[topic].of] += max(ends[topic][p]-offset, 0)
		}
	}
	return nil
}

// stampedNow is the time on the clock that stamps the records of a partition. Of a broker that has not been heard of
// lately it is this process's own: nothing is written only to be counted.
func (b *Broker) stampedNow(topic string, partition int32) time.Time {
	if leader, err := b.client.Leader(topic, partition); err == nil {
		if now, ok := b.clocks.now(leader.ID()); ok {
			return now
		}
	}
	return time.Now()
}

// countLots counts what has not been handled of the parking topics: what is behind the group's position, without what its
// note says is done.
func (b *Broker) countLots(lots map[string]waiter, ends offsets, sums map[brokers.Depth]int64) error {
	for topic, of := range lots {
		var partitions []int32
		for p := range ends[topic] {
			partitions = append(partitions, p)
		}
		answer, err := b.topics.admin.ListConsumerGroupOffsets(of.group, map[string][]int32{topic: partitions})
		if err != nil {
			return err
		}
		kind := brokers.Depth{Topic: of.topic, Group: of.group, Kind: brokers.DepthParked}
		for p, end := range ends[topic] {
			at := position{}
			if block := answer.GetBlock(topic, p); block != nil {
				if block.Err != sarama.ErrNoError {
					return fmt.Errorf("topic %s, partition %d: %w", topic, p, block.Err)
				}
				at = position{offset: max(block.Offset, 0), note: block.Metadata}
			}
			waiting, noted := unpackNote(at)
			sums[kind] += int64(len(waiting)) + max(end-noted, 0)
		}
	}
	return nil
}
