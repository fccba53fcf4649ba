package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/redrive-go/redrive/envelope"
)

// Naming schemes may let consumers share the topics in which their messages wait, and names with dots may meet: group eu
// of topic orders retries in orders.eu_retry.100, where messages of topic orders.eu wait for their first delivery. Each
// consumer takes its own messages there, and deletes none.

// add refuses another topic of a group that would share waiting topics, in which the group has one position.
func (b *transport) add(s *subscription) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for other := range b.subscriptions {
		if s.q.Group == other.q.Group && s.sharesWith(other.q.Topic) {
			return s.sharingFault(other.q.Topic, "")
		}
	}
	b.subscriptions[s] = struct{}{}
	b.waiters[waiter{topic: s.q.Topic}], b.waiters[waiter{s.q.Topic, s.q.Group}] = struct{}{}, struct{}{}
	return nil
}

// sharesElsewhere refuses what add refuses for other processes: the group has positions on the other topic.
func (s *subscription) sharesElsewhere(ctx context.Context) error {
	positions, _ := s.b.topics.admin.FetchOffsets(ctx, s.q.Group) // a group that is new has none
	for topic := range positions {
		if s.sharesWith(topic) {
			return s.sharingFault(topic, ". If the group no longer reads "+topic+", delete its offsets there")
		}
	}
	return nil
}

// sharesWith reports whether messages of the group on another topic would wait in our topics.
func (s *subscription) sharesWith(topic string) bool {
	patterns, _ := s.b.tierPatterns(topic, s.q.Group)
	return topic != s.q.Topic && share(s.tierPatterns, patterns)
}

func (s *subscription) sharingFault(topic, hint string) error {
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
		if wait, ok := s.kind(topic); ok {
			anyGroup = s.b.cfg.Naming.For(name, group).Retry(wait)
		}
		before, after, _ := strings.Cut(anyGroup, group)
		reader := strings.TrimSuffix(strings.TrimPrefix(topic, before), after)
		if s.b.waitsIn(topic, name, other) || s.b.waitsIn(topic, name, reader) && s.b.hasRead(ctx, name, reader) {
			return false
		}
	}
	return true
}

// hasRead reports whether a group has, or may have, positions on a topic.
func (b *transport) hasRead(ctx context.Context, topic, group string) bool {
	positions, err := b.topics.admin.FetchOffsets(ctx, group)
	return err != nil && !errors.Is(err, kerr.GroupIDNotFound) || len(positions[topic]) > 0
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
