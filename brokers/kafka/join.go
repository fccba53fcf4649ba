package kafka

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
)

// Join implements driver.Sharer: the parts are the partitions of the topic.
func (b *transport) Join(ctx context.Context, q driver.Queue, begin driver.Begin) (leave func(), err error) {
	seen, partitions, err := b.prepare(ctx, q.Topic, q.Group, q.Params)
	if err != nil {
		return nil, err
	}
	b.waiters.Store(waiter{topic: q.Topic}, nil)
	b.waiters.Store(waiter{q.Topic, q.Group}, nil)
	s := &subscription{
		b: b, q: q, dispatch: begin,
		log:    b.log.With("topic", q.Topic, "group", q.Group),
		kinds:  b.kinds(q.Topic, q.Group),
		strict: q.Params.String("order") == "key",
		window: q.Params.Int("window"),
		done:   make(chan struct{}), joined: make(chan struct{}),
		look: make(chan struct{}, 1), rejoin: make(chan error, 1),
		own: map[int32]*partition{}, seen: seen, partitionCount: partitions,
		commits: committer{topics: b.topics, group: q.Group},
	}
	s.closing, s.close = context.WithCancel(context.WithoutCancel(ctx))
	if err := s.connect(ctx); err != nil {
		s.close()
		return nil, err
	}
	b.mu.Lock()
	b.subscriptions[s] = struct{}{}
	b.mu.Unlock()
	go s.run() //nolint:gosec,contextcheck // G118: it outlives ctx and has its own contexts
	return func() {
		s.close()
		<-s.done
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.subscriptions, s)
	}, nil
}

func (b *transport) kinds(topic, group string) []named {
	// The templates were checked when the broker was opened.
	retry, _ := newNamed(b.cfg.Naming.For(topic, group).Retry)
	delayed, _ := newNamed(b.cfg.Naming.For(topic, "").Delayed)
	return []named{retry, delayed}
}

// prepare creates the topic and the retry topics for short waits and for the configured delays, so that the first
// failure creates nothing. Others are created when they are needed.
func (b *transport) prepare(ctx context.Context, topic, group string, params brokers.Params) (seen map[string]tier,
	partitions int32, err error,
) {
	partitions, _, err = b.topics.ensure(ctx, b.source(topic))
	if err != nil {
		return nil, 0, err
	}
	seen = map[string]tier{}
	for _, t := range b.prepared(topic, group) {
		if _, _, err := b.topics.ensure(ctx, b.tier(t.name, t.wait, partitions)); err != nil {
			return nil, 0, err
		}
		seen[t.name] = tier{wait: t.wait}
	}
	if params.String("order") == "key" {
		if _, _, err := b.topics.ensure(ctx, b.parking(topic, group, partitions)); err != nil {
			return nil, 0, err
		}
	}
	return seen, partitions, nil
}

// tierName is a retry topic.
type tierName struct {
	name string
	wait time.Duration
}

// prepared lists the retry topics that are created before the first failure.
func (b *transport) prepared(topic, group string) []tierName {
	retry := b.cfg.Naming.For(topic, group).Retry
	delayed := b.cfg.Naming.For(topic, "").Delayed
	waits := append([]time.Duration(nil), grid[:3]...)
	for _, d := range b.cfg.Delays {
		waits = append(waits, b.tiers.pick(d, d))
	}
	list := []tierName{{delayed(nowTier), nowTier}}
	known := map[string]bool{list[0].name: true}
	for _, wait := range waits {
		if name := retry(wait); !known[name] {
			known[name] = true
			list = append(list, tierName{name, wait})
		}
	}
	return list
}

// Joined returns when every open subscription is a member of its group and reads its assigned partitions, which may be
// none. Subscribe does not wait for that: joining takes as long as the other members need to give up partitions, and a
// new group begins at the oldest record and misses nothing. With offset=newest, it receives the messages published
// after Joined returns. Call it before a service reports that it is ready.
func (b *Broker) Joined(ctx context.Context) error {
	b.t.mu.Lock()
	closed := b.t.closed
	open := slices.Collect(maps.Keys(b.t.subscriptions))
	b.t.mu.Unlock()
	if closed {
		return fmt.Errorf("kafka: join: %w", brokers.ErrClosed)
	}
	for _, s := range open {
		select {
		case <-s.joined:
		case <-s.done:
			return fmt.Errorf("kafka: join group %s on topic %s: %w", s.q.Group, s.q.Topic, brokers.ErrClosed)
		case <-ctx.Done():
			return fmt.Errorf("kafka: join group %s on topic %s: %w", s.q.Group, s.q.Topic, context.Cause(ctx))
		}
	}
	return nil
}
