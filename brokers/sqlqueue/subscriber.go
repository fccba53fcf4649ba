package sqlqueue

import (
	"context"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
)

// subscriber makes subscriptions of one group. It is safe for concurrent use.
type subscriber struct {
	broker *Broker
	cfg    brokers.SubscriberConfig
	fault  error // in the options

	ctx    context.Context // ends at Close
	cancel context.CancelFunc

	mu            sync.Mutex
	closed        bool
	subscriptions map[*subscription]struct{}
	running       sync.WaitGroup
}

var _ message.SubscribeInitializer = (*subscriber)(nil)

// Subscriber returns a subscriber whose Subscribe registers its group for the topic, if it is new: from then on every
// message published to the topic is stored for the group too. See [brokers.Broker].
func (b *Broker) Subscriber(opts ...brokers.SubscriberOption) message.Subscriber {
	s := &subscriber{broker: b, subscriptions: map[*subscription]struct{}{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.cfg, s.fault = b.cfg.Subscriber((urlDriver{scheme: b.scheme}).Params(), opts...)
	if s.cfg.Group == "" {
		s.cfg.Group = b.group()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closing {
		s.closed = true
		s.cancel()
		return s
	}
	b.subscribers[s] = struct{}{}
	return s
}

// SubscribeInitialize registers the group for the topic, so that it gets what is published from now on.
func (s *subscriber) SubscribeInitialize(topic string) error {
	_, err := s.register(context.Background(), topic)
	return err
}

func (s *subscriber) register(ctx context.Context, topic string) (queue int64, err error) {
	if err = s.fault; err == nil {
		if err = checkName("topic", topic); err == nil {
			err = checkName("group", s.cfg.Group)
		}
	}
	if err == nil && s.ctx.Err() != nil {
		err = brokers.ErrClosed
	}
	if err == nil && len(s.cfg.Patterns) > 0 {
		err = fmt.Errorf("%w: topic patterns", brokers.ErrUnsupported)
	}
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, s.broker.cfg.PublishTimeout)
		defer cancel()
		queue, err = s.broker.store.ensureQueue(ctx, topic, s.cfg.Group)
	}
	if err != nil {
		return 0, fmt.Errorf("sqlqueue: subscribe group %q to %q: %w", s.cfg.Group, topic, err)
	}
	return queue, nil
}

// Subscribe starts to deliver.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	queue, err := s.register(ctx, topic)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, fmt.Errorf("sqlqueue: subscribe to %q: %w", topic, brokers.ErrClosed)
	}
	prefetch := s.cfg.Params.Int("prefetch")
	sub := &subscription{
		broker:      s.broker,
		topic:       topic,
		group:       s.cfg.Group,
		queue:       queue,
		concurrency: s.cfg.Concurrency,
		prefetch:    prefetch,
		drain:       s.cfg.DrainTimeout,
		crashLimit:  s.cfg.Params.Int("crash-limit"),
		ctx:         context.WithoutCancel(ctx),
		out:         make(chan *message.Message),
		buffer:      make(chan *delivery, s.cfg.Concurrency+prefetch),
		suspects:    make(chan *delivery, s.cfg.Concurrency+prefetch),
		alone:       make(chan *delivery),
		answered:    make(chan struct{}),
		need:        make(chan struct{}, 1),
		alarm:       newAlarm(),
	}
	s.subscriptions[sub] = struct{}{}
	running, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, cancel) //nolint:contextcheck // s.ctx ends at Close, and running at either
	s.running.Go(func() {
		defer cancel()
		defer stop()
		sub.run(running)
		s.mu.Lock()
		delete(s.subscriptions, sub)
		s.mu.Unlock()
	})
	return sub.out, nil
}

// queuesOf returns the queues of the subscriptions to topic.
func (s *subscriber) queuesOf(topic string) (queues []int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for sub := range s.subscriptions {
		if sub.topic == topic {
			queues = append(queues, sub.queue)
		}
	}
	return queues
}

// Close drains all subscriptions. Closing again waits for the first Close.
func (s *subscriber) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.running.Wait()
	s.broker.mu.Lock()
	delete(s.broker.subscribers, s)
	s.broker.mu.Unlock()
	return nil
}
