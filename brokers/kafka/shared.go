package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/redrive-go/redrive/envelope"
)

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
