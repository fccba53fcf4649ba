package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/redrive-go/redrive/internal/wait"
)

// assigned is called with partitions that are new, before their positions are known.
func (s *subscription) assigned(_ context.Context, client *kgo.Client, added map[string][]int32) {
	s.mu.Lock()
	for _, id := range added[s.q.Topic] {
		s.owned[id] = newPartition(s, id, client)
	}
	none := len(s.owned) == 0
	s.mu.Unlock()
	if none {
		s.hasJoined()
	}
	s.findTiers()
}

// revoked is called with partitions that the group revokes, and returns when they are given up.
func (s *subscription) revoked(_ context.Context, _ *kgo.Client, lost map[string][]int32) {
	var ended []*partition
	s.mu.Lock()
	for _, id := range lost[s.q.Topic] {
		if p := s.owned[id]; p != nil {
			ended = append(ended, p)
		}
	}
	s.mu.Unlock()
	endAll(ended)
}

// begin starts partitions at the positions from which the client is about to read them. An error makes the client
// rejoin. A rebalance may interrupt a call; the next one has the partitions again.
func (s *subscription) begin(ctx context.Context,
	offsets map[string]map[int32]kgo.Offset,
) (map[string]map[int32]kgo.Offset, error) {
	topic, err := s.b.topics.describe(ctx, []string{s.q.Topic})
	if err != nil {
		return nil, fmt.Errorf("topic %s: %w", s.q.Topic, err)
	}
	id := topic[s.q.Topic].id
	var added []topicPartition
	for partition := range offsets[s.q.Topic] {
		added = append(added, topicPartition{s.q.Topic, partition})
	}
	positions, err := s.b.topics.committed(ctx, s.q.Group, added) // the client has no notes
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	finishPoll := s.finishPoll
	another := id.differs(s.id)
	if s.id == (topicID{}) {
		s.id = id
	}
	if s.first.partitions == 0 {
		s.first = topic[s.q.Topic]
	}
	s.mu.Unlock()
	finishPoll() // it may have records of a partition that was given up and is assigned again
	if another {
		s.renewLater(errMadeAgain)
		return nil, errMadeAgain
	}
	wanted := s.withoutPosition(id, positions)
	starts, err := s.b.topics.offsets(ctx, wanted)
	if err != nil {
		return nil, fmt.Errorf("where topic %s begins and ends: %w", s.q.Topic, err)
	}
	maps.DeleteFunc(wanted, func(_ topicPartition, which int64) bool { return which == offsetOldest })
	delayed := s.delayedEnds(ctx, wanted)
	for _, part := range added {
		at := positions[part].in(id)
		if at.offset < 0 {
			if positions[part].offset >= 0 {
				s.log.Warn("the topic was deleted and recreated: the group's position belongs to the old one, and all records "+
					"are handled", "partition", part.partition)
			}
			offsets[s.q.Topic][part.partition] = kgo.NewOffset().AtStart()
		}
		if start, ok := starts[part]; ok {
			at = position{offset: start, fresh: true} // a later member with offset=newest would begin at a newer one
			offsets[s.q.Topic][part.partition] = kgo.NewOffset().At(start)
		}
		s.mu.Lock()
		p := s.owned[part.partition]
		s.mu.Unlock()
		if p != nil {
			p.begin(at, id, delayed) //nolint:contextcheck // the deliveries of a partition outlive ctx
		}
	}
	s.hasJoined()
	return offsets, nil
}

// withoutPosition returns for the partitions without a position whether they begin at the oldest or the newest record.
func (s *subscription) withoutPosition(id topicID, positions map[topicPartition]position) map[topicPartition]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	newest, found := s.q.Params.String("offset") == "newest" && !id.differs(s.first.id), map[topicPartition]int64{}
	for part, at := range positions {
		if newest && part.partition < s.first.partitions && at.offset < 0 {
			found[part] = offsetNewest
		} else if at.in(id).offset < 0 {
			found[part] = offsetOldest
		}
	}
	return found
}

// delayedEnds returns where the topics for first deliveries end, in the partitions that begin at the newest record. It
// leaves out what it cannot find out: messages delivered needlessly are better than messages lost.
func (s *subscription) delayedEnds(ctx context.Context, newest map[topicPartition]int64) map[topicPartition]int64 {
	if len(newest) == 0 {
		return nil
	}
	found, err := s.b.topics.list(ctx, 0, s.tierPatterns[1])
	wanted := map[topicPartition]int64{}
	for name, t := range found {
		for at := range newest {
			if at.partition < t.partitions {
				wanted[topicPartition{name, at.partition}] = offsetNewest
			}
		}
	}
	ends, err2 := s.b.topics.offsets(ctx, wanted)
	if err := cmp.Or(err, err2); err != nil {
		s.log.Warn("delayed messages from before the group began are handled too", "err", err)
	}
	return ends
}

// tiers are the retry topics seen so far.
func (s *subscription) tiers() map[string]tier {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.seen)
}

func (s *subscription) partitions() []*partition {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.owned))
}

// errNoPartition means that a retry or parking topic has fewer partitions than its source.
var errNoPartition = errors.New("no such partition")

func (s spec) tooFew(have int32) error {
	return fmt.Errorf("%w: topic %s (%s) has %d partitions and its source has %d: add partitions to it, for order=key",
		errNoPartition, s.name, s.purpose, have, s.partitions)
}

// readTier makes every partition read a retry topic. Repeating it changes nothing.
func (s *subscription) readTier(topic string, t tier) {
	if _, ok := s.kind(topic); !ok {
		return
	}
	s.mu.Lock()
	s.seen[topic] = t
	s.mu.Unlock()
	for _, p := range s.partitions() {
		p.readTier(topic, t)
	}
}

func (s *subscription) kind(topic string) (time.Duration, bool) {
	for _, k := range s.tierPatterns {
		if wait, ok := k.delay(topic); ok {
			return wait, true
		}
	}
	return 0, false
}

// findTiers requests a look at the existing retry topics.
func (s *subscription) findTiers() { wait.Signal(s.look) }

// keepLooking finds retry topics created by others, and notices when the topic itself is gone.
func (s *subscription) keepLooking(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		age := time.Duration(0)
		select {
		case <-ctx.Done():
			return
		case <-s.look:
		case <-tick.C:
			age = lookEvery / 2
		}
		s.refreshTopic(ctx)
		tiers, err := s.b.topics.list(ctx, age, s.tierPatterns...)
		if err != nil {
			if ctx.Err() == nil {
				s.log.Warn("the retry topics cannot be listed; trying again", "err", err)
			}
			continue
		}
		for name, t := range tiers {
			s.readTier(name, t)
		}
	}
}

// refreshTopic requests another client if the topic is gone or was recreated, because a client sticks to the one that
// it knew.
func (s *subscription) refreshTopic(ctx context.Context) {
	found, err := s.b.topics.describe(ctx, []string{s.q.Topic})
	if err != nil {
		return // the cluster does not answer now
	}
	topic := found[s.q.Topic]
	s.mu.Lock()
	known := s.id
	s.mu.Unlock()
	switch {
	case isGone(topic.err):
		s.renewLater(topic.err)
	case topic.err != nil:
	case topic.id.differs(known):
		s.renewLater(errMadeAgain)
	default:
		s.b.topics.remember(s.q.Topic, topic.partitions)
		// The leader of the group reassigns added partitions, also on topics that only other members read.
		s.client.Load().ForceMetadataRefresh()
	}
}

// renewLater requests another client, and says why.
func (s *subscription) renewLater(why error) {
	select {
	case s.rejoin <- why:
	default: // already requested
	}
}

// has makes sure that a retry or parking topic has a partition.
func (s *subscription) has(ctx context.Context, at topicPartition) error {
	wait, _ := s.kind(at.topic)
	partitions, err := s.b.topics.including(ctx, s.b.source(s.q.Topic), at.partition)
	if err != nil {
		return err
	}
	wanted := s.b.tier(at.topic, wait, max(partitions, at.partition+1))
	have, _, err := s.b.topics.ensure(ctx, wanted)
	if err == nil && at.partition >= have {
		err = wanted.tooFew(have)
	}
	return err
}

// cloneRecord copies a record, so that it does not keep the whole answer of the broker in memory.
func cloneRecord(r *kgo.Record) *kgo.Record {
	c := *r
	c.Key, c.Value = slices.Clone(r.Key), slices.Clone(r.Value)
	c.Headers = slices.Clone(r.Headers)
	for i, h := range c.Headers {
		c.Headers[i] = kgo.RecordHeader{Key: string([]byte(h.Key)), Value: slices.Clone(h.Value)}
	}
	return &c
}
