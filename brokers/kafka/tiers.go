package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
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

// Naming schemes may let consumers share the topics in which their messages wait, and names with dots may meet: group
// eu of topic orders retries in orders.eu_retry.100, where messages of topic orders.eu wait for their first delivery.
// Each consumer takes its own messages there, and deletes none.

// add refuses another topic of a group that would share waiting topics, in which the group has one position. Other
// processes' topics are those on which the group has positions.
func (b *transport) add(ctx context.Context, s *subscription) error {
	positions, err := b.positionsOf(ctx, s.q.Group)
	if err != nil {
		return err
	}
	for topic := range positions {
		if err := s.sharesWith(topic, ". If the group no longer reads "+topic+", delete its offsets there"); err != nil {
			return err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for other := range b.subscriptions {
		if err := s.sharesWith(other.q.Topic, ""); err != nil && s.q.Group == other.q.Group {
			return err
		}
	}
	b.subscriptions[s] = struct{}{}
	b.waiters[waiter{topic: s.q.Topic}], b.waiters[waiter{s.q.Topic, s.q.Group}] = struct{}{}, struct{}{}
	return nil
}

// sharesWith fails if messages of the group on another topic would wait in our topics.
func (s *subscription) sharesWith(topic, hint string) error {
	patterns, _ := s.b.tierPatterns(topic, s.q.Group)
	if topic == s.q.Topic || !share(s.tierPatterns, patterns) {
		return nil
	}
	return fmt.Errorf("the topics %s and %s of group %s would share their waiting messages: rename the group, or name "+
		"the topics for first deliveries in another way, such as delayed={topic}_delayed.{delay}%s", topic, s.q.Topic,
		s.q.Group, hint)
}

// share reports whether messages of two consumers would wait in the same topics.
func share(one, other []tierPattern) bool {
	return slices.ContainsFunc(one, func(n tierPattern) bool { return slices.Contains(other, n) })
}

func (b *transport) tierPatterns(topic, group string) ([]tierPattern, error) {
	retry, err := newTierPattern(b.cfg.Naming.For(topic, group).Retry)
	delayed, err2 := newTierPattern(b.cfg.Naming.For(topic, "").Delayed)
	return []tierPattern{retry, delayed}, cmp.Or(err, err2)
}

// isOurs reports whether a topic is for retries of this group and this topic only, as far as all topics of the cluster,
// the records read so far, and the positions of other groups show.
func (s *subscription) isOurs(ctx context.Context, topic string, all map[string]topicInfo) bool {
	const other, group = "another", "\x01"
	if _, mixed := s.mixed.Load(topic); mixed || topic == s.q.Topic || s.b.waitsIn(topic, s.q.Topic, other) ||
		s.b.waitsIn(topic, other, s.q.Group) {
		return false
	}
	for name := range all {
		if name == s.q.Topic || !strings.Contains(topic, name) {
			continue
		}
		anyGroup := s.b.parkingName(name, group)
		if wait, _ := s.kind(topic); wait > 0 {
			anyGroup = s.b.cfg.Naming.For(name, group).Retry(wait)
		}
		before, after, _ := strings.Cut(anyGroup, group)
		reader := strings.TrimSuffix(strings.TrimPrefix(topic, before), after)
		if s.b.waitsIn(topic, name, other) {
			return false
		}
		if s.b.waitsIn(topic, name, reader) {
			if positions, err := s.b.positionsOf(ctx, reader); err != nil || len(positions[name]) > 0 {
				return false
			}
		}
	}
	return true
}

// positionsOf returns the positions of a group by topic; a group that does not exist has none.
func (b *transport) positionsOf(ctx context.Context, group string) (positions kadm.OffsetResponses, err error) {
	err = patiently(ctx, temporary, func(ctx context.Context) error {
		positions, err = b.topics.admin.FetchOffsets(ctx, group)
		return err
	})
	if errors.Is(err, kerr.GroupIDNotFound) {
		err = nil
	}
	return positions, err
}

// waitsIn reports whether messages of a consumer wait in a topic, or any for their first delivery.
func (b *transport) waitsIn(waiting, topic, group string) bool {
	patterns, _ := b.tierPatterns(topic, group)
	return waiting == b.parkingName(topic, group) || slices.ContainsFunc(patterns, func(n tierPattern) bool {
		_, ok := n.delay(waiting)
		return ok
	})
}

// isForeign reports whether a waiting record is for another consumer. If the record's topic does not lead there, an
// operator has moved it to us.
func (s *subscription) isForeign(r *kgo.Record) bool {
	whose, ok := find(r.Headers, envelope.KeyConsumer)
	foreign := ok && whose != s.q.Group
	if source, ok := find(r.Headers, envelope.KeyTopic); ok && source != s.q.Topic {
		foreign = foreign || s.b.waitsIn(r.Topic, source, whose)
	}
	if foreign {
		s.mixed.Store(r.Topic, nil)
	}
	return foreign
}
