package nats

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/redrive-go/redrive/brokers"
)

var _ brokers.DepthReporter = (*transport)(nil)

// maxCounted bounds the counted topics, whose names may come from messages.
const maxCounted = 1000

// counts registers a topic whose messages Depths counts.
func (t *transport) counts(topic string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.counted) < maxCounted {
		t.counted[topic] = struct{}{}
	}
}

// Depths implements brokers.DepthReporter for the topics that this broker knows from subscribing, rescheduling or
// publishing with a delay. For each it counts the delayed messages, those in retry and ready for every group, including
// other processes' groups, and those in the dead letter queue.
func (t *transport) Depths(ctx context.Context) ([]brokers.Depth, error) {
	t.mu.Lock()
	topics := slices.Collect(maps.Keys(t.counted))
	t.mu.Unlock()
	var found []brokers.Depth
	for _, topic := range topics {
		of, err := t.depths(ctx, topic)
		if err != nil && !errors.Is(missing(err), brokers.ErrUnroutable) { // a deleted stream has none
			return nil, fmt.Errorf("nats: depths of %s: %w", topic, err)
		}
		found = append(found, of...)
	}
	return found, nil
}

func (t *transport) depths(ctx context.Context, topic string) ([]brokers.Depth, error) {
	p := placeOf(topic)
	s, err := t.stream(ctx, topic)
	if err != nil {
		return nil, err
	}
	var found []brokers.Depth
	add := func(group string, kind brokers.DepthKind, messages uint64) {
		found = append(found, brokers.Depth{Topic: topic, Group: group, Kind: kind, Messages: int64(messages)}) //nolint:gosec // G115: a count
	}
	delayed, err := t.count(ctx, s, p.schedule("first", "*"))
	if err != nil {
		return nil, err
	}
	add("", brokers.DepthDelayed, delayed)
	groups, err := ask(ctx, func(ctx context.Context) (infos []*jetstream.ConsumerInfo, err error) {
		list := s.ListConsumers(ctx)
		for info := range list.Info() {
			infos = append(infos, info)
		}
		return infos, list.Err()
	})
	if err != nil {
		return nil, err
	}
	for _, info := range groups {
		if info.Config.Durable == "" || !slices.Contains(info.Config.FilterSubjects, p.subject) {
			continue // not a group of this topic
		}
		group := info.Config.Durable
		for _, subject := range info.Config.FilterSubjects {
			if its, ok := strings.CutPrefix(subject, p.retries("")); ok {
				group = its
			}
		}
		retries, err := t.count(ctx, s, p.schedule(retriesToken("")+group, "*"))
		if err != nil {
			return nil, err
		}
		add(nameOf(group), brokers.DepthRetry, retries)
		add(nameOf(group), brokers.DepthReady, info.NumPending)
	}
	if len(found) == 1 { // no group reads it yet
		stored, err := t.count(ctx, s, p.subject)
		if err != nil {
			return nil, err
		}
		add("", brokers.DepthReady, stored)
	}
	return found, nil
}

// count returns how many messages a stream has of a subject. The server counts for a consumer without listing subjects,
// of which there is one per schedule.
func (t *transport) count(ctx context.Context, s jetstream.Stream, subject string) (uint64, error) {
	c, err := ask(ctx, func(ctx context.Context) (jetstream.Consumer, error) {
		return s.CreateConsumer(ctx, jetstream.ConsumerConfig{
			FilterSubject: subject, AckPolicy: jetstream.AckNonePolicy, InactiveThreshold: 10 * time.Second,
			MemoryStorage: true, Replicas: 1,
		})
	})
	if err != nil {
		return 0, err
	}
	info := c.CachedInfo()
	_ = t.conn.Publish("$JS.API.CONSUMER.DELETE."+info.Stream+"."+info.Name, nil) // at worst it is deleted in 10 s
	return info.NumPending, nil
}
