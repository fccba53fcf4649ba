package kafka

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/internal/readers"
)

var _ message.SubscribeInitializer = (*subscriber)(nil)

// subscriber makes subscriptions of one group.
type subscriber struct {
	b     *Broker
	cfg   brokers.SubscriberConfig
	fault error // of the options, or because the broker is closed

	closed chan struct{}

	mu      sync.Mutex
	stopped bool
	subs    []*subscription
}

// SubscribeInitialize creates the topic, if it is missing and auto-create allows.
func (s *subscriber) SubscribeInitialize(topic string) error {
	if s.fault != nil {
		return fmt.Errorf("kafka: initialize %s: %w", topic, s.fault)
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.b.cfg.PublishTimeout)
	defer cancel()
	if _, _, err := s.b.prepare(ctx, s.cfg, topic); err != nil {
		return fmt.Errorf("kafka: initialize %s: %w", topic, err)
	}
	return nil
}

// Subscribe joins the group for topic. Everything that can be known to fail fails here; later faults are logged and
// tried again. See brokers.Broker for what Close and the end of ctx do.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if s.fault != nil {
		return nil, fmt.Errorf("kafka: subscribe to %s: %w", topic, s.fault)
	}
	if len(s.cfg.Patterns) > 0 || brokers.IsPattern(topic) {
		return nil, fmt.Errorf("kafka: subscribe to %s: %w: topic patterns; subscribe to each topic", topic, brokers.ErrUnsupported)
	}
	leave, err := s.b.readers.Join(readers.Reader{
		Queue: s.b.cfg.Naming.For(topic, s.cfg.Group).Queue, Topic: topic, Group: s.cfg.Group,
	})
	if err != nil {
		return nil, fmt.Errorf("kafka: subscribe to %s: %w", topic, err)
	}
	sub, err := s.subscribe(ctx, topic, leave)
	if err != nil {
		leave()
		return nil, fmt.Errorf("kafka: subscribe to %s: %w", topic, err)
	}
	return sub.out, nil
}

// subscribe starts the subscription, which calls ended when it is over, before Close returns.
func (s *subscriber) subscribe(ctx context.Context, topic string, ended func()) (*subscription, error) {
	if s.isStopped() {
		return nil, brokers.ErrClosed
	}
	seen, partitions, err := s.b.prepare(ctx, s.cfg, topic)
	if err != nil {
		return nil, err
	}
	s.b.waiters.Store(waiter{topic: topic}, nil)
	s.b.waiters.Store(waiter{topic, s.cfg.Group}, nil)
	sub := &subscription{
		b: s.b, cfg: s.cfg, topic: topic,
		log:    s.b.log.With("topic", topic, "group", s.cfg.Group),
		names:  s.b.cfg.Naming.For(topic, s.cfg.Group),
		kinds:  s.kinds(topic),
		strict: s.cfg.Params.String("order") == "key",
		window: s.cfg.Params.Int("window"), nackPause: s.cfg.Params.Duration("nack-pause"),
		out: make(chan *message.Message), done: make(chan struct{}), joined: make(chan struct{}),
		look: make(chan struct{}, 1), anew: make(chan struct{}, 1),
		own: map[int32]*partition{}, seen: seen, partitionCount: partitions,
		commits: committer{client: s.b.own, group: s.cfg.Group}, ended: ended,
	}
	sub.closing, sub.close = context.WithCancel(ctx)
	sub.handlers, sub.drained = context.WithCancel(context.WithoutCancel(ctx))
	if err := sub.connect(); err != nil {
		sub.close()
		sub.drained()
		return nil, err
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		sub.close()
		sub.drained()
		sub.client.Load().Close()
		return nil, brokers.ErrClosed
	}
	s.subs = append(s.subs, sub)
	go sub.run() //nolint:gosec,contextcheck // G118: it outlives ctx, and its contexts are made above
	return sub, nil
}

func (s *subscriber) kinds(topic string) []named {
	// The templates have been checked when the broker was opened.
	retry, _ := newNamed(s.b.cfg.Naming.For(topic, s.cfg.Group).Retry)
	delayed, _ := newNamed(s.b.cfg.Naming.For(topic, "").Delayed)
	return []named{retry, delayed}
}

// prepare creates the topic and the retry topics for short waits and for the delays that the configuration names, so
// that the first failure creates nothing. Others come into being when they are needed.
func (b *Broker) prepare(ctx context.Context, cfg brokers.SubscriberConfig, topic string) (seen map[string]tier, partitions int32, err error) {
	partitions, _, err = b.topics.ensure(ctx, b.source(topic))
	if err != nil {
		return nil, 0, err
	}
	seen = map[string]tier{}
	for _, t := range b.prepared(topic, cfg.Group) {
		if _, _, err := b.topics.ensure(ctx, b.tier(t.name, t.wait, partitions)); err != nil {
			return nil, 0, err
		}
		seen[t.name] = tier{wait: t.wait}
	}
	if cfg.Params.String("order") == "key" {
		if _, _, err := b.topics.ensure(ctx, b.parking(topic, cfg.Group, partitions)); err != nil {
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

// prepared lists the retry topics that are made before the first failure.
func (b *Broker) prepared(topic, group string) []tierName {
	retry := b.cfg.Naming.For(topic, group).Retry
	delayed := b.cfg.Naming.For(topic, "").Delayed
	waits := append([]time.Duration(nil), grid[:3]...)
	for _, d := range b.cfg.Delays {
		waits = append(waits, b.tiers.pick(ceilMillis(d), d))
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

func (s *subscriber) all() []*subscription {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.subs)
}

// of returns the subscriptions to a topic.
func (s *subscriber) of(topic string) []*subscription {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []*subscription
	for _, sub := range s.subs {
		if sub.topic == topic {
			found = append(found, sub)
		}
	}
	return found
}

func (s *subscriber) isStopped() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stopped
}

// Close drains all subscriptions. Closing again waits for the first Close.
func (s *subscriber) Close() error {
	s.mu.Lock()
	first := !s.stopped
	s.stopped = true
	subs := s.subs
	s.mu.Unlock()
	if !first {
		<-s.closed
		return nil
	}
	defer close(s.closed)
	for _, sub := range subs {
		sub.close()
	}
	for _, sub := range subs {
		<-sub.done
	}
	s.b.mu.Lock()
	delete(s.b.subscribers, s)
	s.b.mu.Unlock()
	return nil
}
