package rabbitmq

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
)

// subscriber starts subscriptions of one group.
type subscriber struct {
	broker *Broker
	cfg    brokers.SubscriberConfig
	fault  error // of the options

	mu            sync.Mutex // guards closed, and subscriptions.Add against subscriptions.Wait
	closed        bool
	closing       chan struct{}
	subscriptions sync.WaitGroup
}

var (
	_ message.Subscriber           = (*subscriber)(nil)
	_ message.SubscribeInitializer = (*subscriber)(nil)
)

// SubscribeInitialize implements message.SubscribeInitializer: it declares what Subscribe would.
func (s *subscriber) SubscribeInitialize(topic string) error {
	if s.fault != nil {
		return s.fault
	}
	if err := declare(context.Background(), s.broker.publishing, s.plan(topic)); err != nil {
		return fmt.Errorf("rabbitmq: subscribe to %s: %w", topic, err)
	}
	return nil
}

func (s *subscriber) plan(topic string) Plan {
	return s.broker.design.consumer(topic, s.cfg.Group, s.cfg.Patterns)
}

// Subscribe implements message.Subscriber. It declares the topology of topic and returns when the broker has taken the
// consumer, so that what is published afterwards is received. Later it reconnects by itself, for as long as it takes.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if s.fault != nil {
		return nil, s.fault
	}
	if !s.begin() {
		return nil, fmt.Errorf("rabbitmq: subscribe to %s: %w", topic, brokers.ErrClosed)
	}
	sub := newSubscription(ctx, s, topic)
	first, err := sub.start(ctx)
	if err != nil {
		s.end()
		return nil, fmt.Errorf("rabbitmq: subscribe to %s: %w", topic, err)
	}
	sub.stop = mergeStops(ctx, s)
	go func() {
		defer s.end()
		sub.run(ctx, first)
	}()
	return sub.out, nil
}

func (s *subscriber) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || !s.broker.begin() {
		return false
	}
	s.subscriptions.Add(1)
	return true
}

func (s *subscriber) end() {
	s.subscriptions.Done()
	s.broker.subscriptions.Done()
}

// Close implements message.Subscriber. It returns when every subscription has drained.
func (s *subscriber) Close() error {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	s.mu.Unlock()
	if first {
		close(s.closing)
	}
	s.subscriptions.Wait()
	return nil
}

// subscription hands the messages of one queue out, over one connection after another.
type subscription struct {
	broker *Broker
	cfg    brokers.SubscriberConfig
	plan   Plan
	topic  string
	names  brokers.Names
	out    chan *message.Message

	prefetch  int
	nackPause time.Duration
	base      context.Context // of messages: the values of Subscribe's context, and no end
	slots     chan struct{}   // one token per message that is handed out
	flying    sync.WaitGroup  // messages handed out, or being sent back
	stop      chan struct{}   // nothing more is handed out
	expired   chan struct{}   // the drain took too long
	losses    int             // sessions that were lost while this process lived; of start and run only
}

func newSubscription(ctx context.Context, s *subscriber, topic string) *subscription {
	prefetch := max(s.cfg.Params.Int("prefetch"), s.cfg.Concurrency)
	return &subscription{
		broker:    s.broker,
		cfg:       s.cfg,
		plan:      s.plan(topic),
		topic:     topic,
		names:     s.broker.design.names(topic, s.cfg.Group),
		out:       make(chan *message.Message),
		prefetch:  prefetch,
		nackPause: s.cfg.Params.Duration("nack-pause"),
		base:      context.WithoutCancel(ctx),
		slots:     make(chan struct{}, s.cfg.Concurrency),
		expired:   make(chan struct{}),
	}
}

// mergeStops closes the returned channel when ctx ends, or the subscriber or its broker closes, all of which happens
// before the program ends, and with it the goroutine.
func mergeStops(ctx context.Context, s *subscriber) chan struct{} {
	stop := make(chan struct{})
	go func() {
		defer close(stop)
		select {
		case <-ctx.Done():
		case <-s.closing:
		case <-s.broker.closing:
		}
	}()
	return stop
}

// start declares and begins to consume.
func (sub *subscription) start(ctx context.Context) (*session, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, declareTimeout, fmt.Errorf("no answer within %s", declareTimeout))
	defer cancel()
	if err := declare(ctx, sub.broker.publishing, sub.plan); err != nil {
		return nil, err
	}
	b := sub.broker
	of := func(kind brokers.DepthKind) brokers.Depth {
		return brokers.Depth{Topic: sub.topic, Group: sub.cfg.Group, Kind: kind}
	}
	b.waits.add([]Queue{{Name: sub.names.Queue}}, of(brokers.DepthReady))
	b.waits.add(b.design.waiting(sub.names, sub.topic).Queues, of(brokers.DepthRetry))
	b.waits.add(b.design.dead(sub.names).Queues, of(brokers.DepthDeadLetter))
	return openSession(ctx, sub)
}

// run hands messages out until it is stopped, then drains.
func (sub *subscription) run(ctx context.Context, s *session) {
	defer close(sub.out)
	for s != nil {
		if stopped := s.pump(); stopped { //nolint:contextcheck // messages outlive ctx, see base
			break
		}
		sub.losses++
		s.close(ctx)
		s = sub.reopen(ctx)
	}
	sub.drain()
	if s != nil {
		s.close(ctx)
	}
}

// reopen begins to consume again after the session was lost. It returns nil when the subscription is to stop.
func (sub *subscription) reopen(ctx context.Context) *session {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-sub.stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	for failures := 0; ; failures++ {
		select {
		case <-time.After(pause(failures)):
		case <-sub.stop:
			return nil
		}
		s, err := sub.resume(ctx)
		if err == nil {
			return s
		}
		if ctx.Err() == nil {
			sub.broker.logger.Warn("rabbitmq: cannot consume", "queue", sub.names.Queue, "failures", failures+1, "error", err)
		}
	}
}

// resume consumes again, and declares only what a deleted queue needs: after a short loss of the connection everything
// is still there, and declaring takes longer than connecting.
func (sub *subscription) resume(ctx context.Context) (*session, error) {
	attempt, cancel := context.WithTimeout(ctx, declareTimeout)
	defer cancel()
	s, err := openSession(attempt, sub)
	if err == nil || !isNotFound(err) {
		return s, err
	}
	return sub.start(ctx)
}

// acksFailed notes messages that were handled and come again, because their channel ended before their acks (D26).
func (sub *subscription) acksFailed(n int) {
	sub.broker.acksFailed.Add(uint64(n)) //nolint:gosec // never negative
	sub.broker.logger.Warn("rabbitmq: the channel ended before messages that were handled could be acked, they are delivered again",
		"queue", sub.names.Queue, "messages", n)
}

// drain waits for the messages that are handed out, at most the drain timeout.
func (sub *subscription) drain() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		sub.flying.Wait()
	}()
	select {
	case <-done:
	case <-time.After(sub.cfg.DrainTimeout):
		close(sub.expired)
		<-done
	}
}
