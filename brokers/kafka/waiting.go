package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/IBM/sarama"
)

// errNoPartition says that a retry topic has fewer partitions than its source.
var errNoPartition = errors.New("the retry topic has no such partition")

// readTier lets every partition read a retry topic. Doing it again changes nothing.
func (s *subscription) readTier(topic string, wait time.Duration) {
	s.mu.Lock()
	if _, ok := s.kind(topic); !ok {
		s.mu.Unlock()
		return
	}
	s.seen[topic] = wait
	s.mu.Unlock()
	for _, p := range s.partitions() {
		p.readTier(topic, wait)
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

// lookForTiers asks for a look at the retry topics that exist.
func (s *subscription) lookForTiers() {
	select {
	case s.look <- struct{}{}:
	default:
	}
}

func (s *subscription) keepLooking() {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.closing.Done():
			return
		case <-s.look:
		case <-tick.C:
		}
		tiers, err := s.b.topics.list(s.kinds...)
		if err != nil {
			s.log.Warn("the retry topics cannot be listed; trying again", "err", err)
			continue
		}
		for name, wait := range tiers {
			s.readTier(name, wait)
		}
	}
}

// brokerTime returns what the clock of the broker that stamps a retry topic shows. When it has not been heard of for a
// while, a record without meaning is sent there to get a stamp; without an answer the wait goes on.
func (s *subscription) brokerTime(ctx context.Context, topic string, partition int32) time.Time {
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		leader, err := s.b.own.Leader(topic, partition)
		if err == nil {
			if now, ok := s.b.clocks.now(leader.ID()); ok {
				return now
			}
			at := s.shortest(leader, place{topic, partition})
			err = s.b.probe(leader, at)
			if err == nil {
				continue
			}
			_ = s.b.own.RefreshMetadata(topic, at.topic)
		}
		if ctx.Err() != nil {
			return time.Time{}
		}
		s.log.Warn("the broker's clock cannot be read; waiting records wait longer", "retry_topic", topic, "err", err)
		if !sleep(ctx, pause) {
			return time.Time{}
		}
	}
}

// shortest returns a partition that a broker leads, of the retry topic with the shortest wait that has one: a record
// without meaning is in nobody's way there, and not for long among what Depths counts.
func (s *subscription) shortest(leader *sarama.Broker, otherwise place) place {
	s.mu.Lock()
	tiers := maps.Clone(s.seen)
	s.mu.Unlock()
	for _, topic := range slices.SortedFunc(maps.Keys(tiers), func(a, b string) int { return cmp.Compare(tiers[a], tiers[b]) }) {
		partitions, err := s.b.own.Partitions(topic)
		if err != nil {
			continue
		}
		for _, p := range partitions {
			if l, err := s.b.own.Leader(topic, p); err == nil && l.ID() == leader.ID() {
				return place{topic, p}
			}
		}
	}
	return otherwise
}

// hop sends a waiting record to the retry topic of its group for the rest of its wait.
func (b *Broker) hop(ctx context.Context, d *delivery, due time.Time, rest, delay time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, b.cfg.PublishTimeout, b.overdue)
	defer cancel()
	wait := b.tiers.pick(rest, delay)
	name := b.retryName(d.origin.Topic, d.origin.Consumer, wait)
	partitions, err := b.topics.existing(ctx, b.source(d.origin.Topic))
	if err != nil {
		return err
	}
	if err := b.ensureTier(ctx, d.origin.Topic, name, wait, partitions); err != nil {
		return err
	}
	r := next(d.record, d.origin, name, due)
	if err := b.waits.send(ctx, r); err != nil {
		return fmt.Errorf("topic %s: %w", name, err)
	}
	b.ring(r)
	return nil
}

// has makes sure that a retry topic has a partition.
func (s *subscription) has(topic string, partition int32) error {
	wait, _ := s.kind(topic)
	partitions, err := s.b.topics.existing(s.closing, s.b.source(s.topic))
	if err != nil {
		return err
	}
	have, _, err := s.b.topics.ensure(s.closing, s.b.tier(topic, wait, max(partitions, partition+1)))
	if err != nil {
		return err
	}
	if partition >= have {
		return errNoPartition
	}
	return nil
}
