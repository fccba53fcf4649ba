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

// maxWaiters bounds those that are known only from publishing, because their names may come from messages.
const maxWaiters = 1000

// counts makes Depths count a waiter that something was published for.
func (b *transport) counts(w waiter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.waiters) < maxWaiters {
		b.waiters[w] = struct{}{}
	}
}

// Depths implements brokers.DepthReporter, over the retry topics of the groups and topics that this Broker has used: by
// subscribing, rescheduling or publishing with a delay; of those that it has only published for, the first 1,000. It
// counts the messages that wait for all members, including those in other processes.
//
// All records of a retry topic wait for the same time and carry the broker's timestamps: those that still wait are the
// ones behind the first that is younger than that time. The group's commits play no part, so nothing has to be read,
// and two requests to each broker answer for all topics. A message that is due within 1 % or 100 ms may still be
// counted, and so may the control records with which processes probe a broker's clock, if it leads no partition of a
// topic for short waits. A first-delivery delay that spans several topics counts as a retry from the second on.
//
// Messages that wait behind an earlier one of their key (order=key) are those that the group has not committed in its
// parking topic, with the kind brokers.DepthParked. A key that a dead letter blocks (order-dead=block) counts as one.
func (b *Broker) Depths(ctx context.Context) ([]brokers.Depth, error) {
	return b.Broker.Depths(ctx, b.t)
}

// Depths implements [Broker.Depths] in the transport.
func (b *transport) Depths(ctx context.Context) ([]brokers.Depth, error) {
	found, err := b.depths(ctx)
	return found, failure(ctx, "depths", err)
}

// failure is the error of a request that ended with err, or nil. It gives the reason if ctx ended.
func failure(ctx context.Context, what string, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	}
	return fmt.Errorf("kafka: %s: %w", what, classify(err))
}

func (b *transport) depths(ctx context.Context) ([]brokers.Depth, error) {
	topics, err := b.depthTopics(ctx)
	if err != nil {
		return nil, err
	}
	ends, err := b.ends(ctx, topics)
	if err != nil {
		return nil, err
	}
	sums := map[brokers.Depth]int64{} // by description, without a count
	dueAfter, parked := map[topicPartition]int64{}, map[string][]topicPartition{}
	for at, end := range ends {
		sums[topics[at.topic].of] += 0
		switch topic := topics[at.topic]; {
		case topic.wait == 0:
			parked[topic.of.Group] = append(parked[topic.of.Group], at)
		case end > 0:
			dueAfter[at] = b.stampedNow(ctx, at).Add(-topic.wait).UnixMilli()
		}
	}
	first, err := b.topics.offsets(ctx, dueAfter)
	if err != nil {
		return nil, err
	}
	for at, offset := range first {
		sums[topics[at.topic].of] += max(ends[at]-offset, 0)
	}
	for group, wanted := range parked {
		positions, err := b.topics.committed(ctx, group, wanted)
		if err != nil {
			return nil, err
		}
		for at, stands := range positions { // those behind the position, except those that its note marks as done
			stands.offset = max(stands.offset, 0)
			waiting, noted := unpackNote(stands)
			sums[topics[at.topic].of] += int64(len(waiting)) + max(ends[at]-noted, 0)
		}
	}
	found := make([]brokers.Depth, 0, len(sums))
	for of, messages := range sums {
		of.Messages = messages
		found = append(found, of)
	}
	return found, nil
}

// depthTopic is a retry topic to count, or with no wait a parking topic.
type depthTopic struct {
	of   brokers.Depth // without a count
	wait time.Duration
}

// depthTopics lists the retry and parking topics that exist, by name.
func (b *transport) depthTopics(ctx context.Context) (map[string]depthTopic, error) {
	all, err := b.topics.all(ctx, 0)
	if err != nil {
		return nil, err
	}
	found := map[string]depthTopic{}
	b.mu.Lock()
	waiters := maps.Clone(b.waiters)
	b.mu.Unlock()
	for who := range waiters {
		of := brokers.Depth{Topic: who.topic, Group: who.group, Kind: brokers.DepthRetry}
		template := b.cfg.Naming.For(who.topic, who.group).Retry
		if who.group == "" {
			of.Kind, template = brokers.DepthDelayed, b.cfg.Naming.For(who.topic, "").Delayed
		} else if lot := b.parkingName(who.topic, who.group); all[lot].partitions > 0 {
			found[lot] = depthTopic{of: brokers.Depth{Topic: who.topic, Group: who.group, Kind: brokers.DepthParked}}
		}
		pattern, _ := newTierPattern(template) // checked when the broker was opened
		for topic := range all {
			wait, ok := pattern.delay(topic)
			if _, counted := found[topic]; ok && !counted { // naming schemes may let groups share one
				found[topic] = depthTopic{of, wait}
			}
		}
	}
	return found, nil
}

func (b *transport) ends(ctx context.Context, topics map[string]depthTopic) (map[topicPartition]int64, error) {
	found, err := b.topics.describe(ctx, slices.Collect(maps.Keys(topics)))
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
