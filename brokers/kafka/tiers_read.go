package kafka

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// errNoPartition means that a retry topic has fewer partitions than its source.
var errNoPartition = errors.New("the retry topic has no such partition")

// readTier makes every partition read a retry topic. Repeating it changes nothing.
func (s *subscription) readTier(topic string, t tier) {
	s.mu.Lock()
	if _, ok := s.kind(topic); !ok {
		s.mu.Unlock()
		return
	}
	s.seen[topic] = t
	s.mu.Unlock()
	for _, p := range s.partitions() {
		p.readTier(topic, t)
	}
}

func (s *subscription) kind(topic string) (time.Duration, bool) {
	for _, k := range s.kinds {
		if wait, ok := k.delay(topic); ok {
			return wait, true
		}
	}
	return 0, false
}

// findTiers requests a look at the existing retry topics.
func (s *subscription) findTiers() {
	select {
	case s.look <- struct{}{}:
	default:
	}
}

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
		tiers, err := s.b.topics.list(ctx, age, s.kinds...)
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
	another := topic.err == nil && topic.id.another(s.id)
	grown := topic.err == nil && topic.partitions > s.partitionCount
	if topic.err == nil {
		s.partitionCount = topic.partitions
	}
	s.mu.Unlock()
	if grown {
		s.b.topics.remember(s.q.Topic, topic.partitions)
		s.client.Load().ForceMetadataRefresh() // and then the group reassigns them
	}
	switch {
	case another:
		s.renewLater(errMadeAgain)
	case isGone(topic.err):
		s.renewLater(topic.err)
	}
}

// renewLater requests another client, and says why.
func (s *subscription) renewLater(why error) {
	select {
	case s.rejoin <- why:
	default: // already requested
	}
}

// has makes sure that a retry topic has a partition.
func (s *subscription) has(ctx context.Context, at topicPartition) error {
	wait, _ := s.kind(at.topic)
	partitions, err := s.b.topics.existing(ctx, s.b.source(s.q.Topic))
	if err != nil {
		return err
	}
	have, _, err := s.b.topics.ensure(ctx, s.b.tier(at.topic, wait, max(partitions, at.partition+1)))
	if err != nil {
		return err
	}
	if at.partition >= have {
		return errNoPartition
	}
	return nil
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
