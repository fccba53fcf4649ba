package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/internal/wait"
)

// subscriber starts subscriptions of one group.
type subscriber struct {
	broker *Broker
	cfg    brokers.SubscriberConfig
	fault  error // in the options; Subscribe returns it

	subscriptions gate
}

var _ message.SubscribeInitializer = (*subscriber)(nil)

// Subscriber implements brokers.Broker.
func (b *Broker) Subscriber(opts ...brokers.SubscriberOption) message.Subscriber {
	cfg, err := b.cfg.Subscriber(b.params, opts...)
	if err == nil && cfg.Group == "" && b.traits.NeedsGroup {
		err = fmt.Errorf("%s: a consumer needs a group: name it with group= in the URL, Config.Group or brokers.WithGroup",
			b.traits.Name)
	}
	return &subscriber{broker: b, cfg: cfg, fault: err, subscriptions: gate{shut: make(chan struct{})}}
}

// String is the subscriber's name in Watermill's contexts, metrics and poison headers, which would otherwise show this
// type's, the same for every broker.
func (s *subscriber) String() string { return s.broker.traits.Name + ".Subscriber" }

// SubscribeInitialize implements message.SubscribeInitializer: messages published from now on are kept for the group.
func (s *subscriber) SubscribeInitialize(topic string) error {
	if err := s.begin(topic); err != nil {
		return err
	}
	defer s.end()
	ctx, cancel := s.whileOpen(context.Background())
	defer cancel(nil)
	q, err := s.broker.queue(topic, &s.cfg)
	if err == nil {
		err = s.broker.start(ctx, &q, func(context.Context) error { return nil })
	}
	if err != nil {
		return s.failed(topic, err)
	}
	return nil
}

// Subscribe implements message.Subscriber; see brokers.Broker for how it ends. It returns when the broker has accepted
// the consumer, and reconnects automatically afterwards, for as long as it takes.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if err := s.begin(topic); err != nil {
		return nil, err
	}
	out, err := s.subscribe(ctx, topic)
	if err != nil {
		s.end()
		return nil, s.failed(topic, err)
	}
	return out, nil
}

func (s *subscriber) subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	b := s.broker
	q, err := b.queue(topic, &s.cfg)
	if err != nil {
		return nil, err
	}
	asked := q
	asked.Patterns = s.cfg.Patterns // without the system events that its pipeline has announced
	leave, err := b.readers.join(asked)
	if err != nil {
		return nil, err
	}
	out := make(chan *message.Message)
	ctx, end := s.whileOpen(ctx)
	drain, err := b.consume(ctx, q, out)
	if err != nil {
		end(err)
		leave()
		return nil, err
	}
	go func() {
		defer s.end()
		defer leave()
		<-ctx.Done()
		drain()
	}()
	return out, nil
}

// whileOpen returns a context that ends with ctx, and when the subscriber or its broker closes.
func (s *subscriber) whileOpen(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, end := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-ctx.Done():
		case <-s.subscriptions.shut:
		case <-s.broker.subscriptions.shut:
		}
		end(brokers.ErrClosed)
	}()
	return ctx, end
}

// consume opens q, and dispatches its messages to out until drain is called, which closes out as soon as the handlers
// have finished. Only the opening ends with ctx.
func (b *Broker) consume(ctx context.Context, q driver.Queue, out chan *message.Message) (drain func(), err error) {
	if sharer, ok := b.transport.(driver.Sharer); ok {
		return b.join(ctx, sharer, q, out)
	}
	s := newSubscription(ctx, b, q, out)
	if err := b.start(ctx, &s.q, s.source.open); err != nil {
		s.cancel()
		return nil, err
	}
	s.start()
	return func() { //nolint:contextcheck // it continues after ctx has ended
		s.finishHandlers(q.DrainTimeout)
		close(out)
		s.finishSettling(q.DrainTimeout)
	}, nil
}

// join makes this process a member of q's group. Each part of the queue that it gets has a separate subscription.
func (b *Broker) join(ctx context.Context, sharer driver.Sharer, q driver.Queue, out chan *message.Message) (
	drain func(), err error,
) {
	begin := func(part driver.Stream, window int) (end func(grace time.Duration)) {
		own := q
		own.Window = max(window, q.Concurrency)
		s := newSubscription(ctx, b, own, out)
		s.source.session = newSession(s, part, own.Window)
		s.start()
		return func(grace time.Duration) { //nolint:contextcheck // it continues after ctx has ended
			s.finishHandlers(grace)
			s.finishSettling(grace)
		}
	}
	var leave func()
	if err = b.start(ctx, &q, func(ctx context.Context) (err error) {
		join := func(ctx context.Context) (func(), error) { return sharer.Join(ctx, q, begin) }
		leave, err = boundedOf(ctx, &b.traits, join, func(late func()) { late() })
		return err
	}); err != nil {
		return nil, err
	}
	return func() {
		leave()
		close(out)
	}, nil
}

func (s *subscriber) failed(topic string, err error) error {
	return fmt.Errorf("%s: subscribe to %s: %w", s.broker.traits.Name, topic, err)
}

func (s *subscriber) begin(topic string) error {
	switch {
	case s.fault != nil:
		return s.fault
	case !s.broker.subscriptions.enter():
	case !s.subscriptions.enter():
		s.broker.subscriptions.Done()
	default:
		return nil
	}
	return s.failed(topic, brokers.ErrClosed)
}

func (s *subscriber) end() {
	s.subscriptions.Done()
	s.broker.subscriptions.Done()
}

// Close implements message.Subscriber. It returns when every subscription has drained.
func (s *subscriber) Close() error {
	s.subscriptions.close()
	s.subscriptions.Wait()
	return nil
}

// start declares q and opens it, within declareTimeout. It repeats what fails with ErrTemporary, paced like later
// sessions and once more near the end, and tries twice in any case: an operator may delete the queue in between.
func (b *Broker) start(ctx context.Context, q *driver.Queue, open func(context.Context) error) (last error) {
	ctx, cancel := b.within(ctx, declareTimeout)
	defer cancel()
	deadline, _ := ctx.Deadline()
	for try := 1; ; try++ {
		err := b.declare(ctx, q)
		if err == nil {
			err = open(ctx)
		}
		if err != nil && ctx.Err() != nil {
			return cmp.Or(last, err) // the cause, and not only that the time is over
		}
		if last = err; err == nil || try > 1 && !errors.Is(err, driver.ErrTemporary) {
			return err
		}
		if try == 2 {
			b.warn("cannot consume yet, trying again", err, "topic", q.Topic, "queue", q.Names.Queue)
		}
		pause := reconnecting.After(try)
		if rest := time.Until(deadline) - 2*time.Second; rest > 0 {
			pause = min(pause, rest)
		}
		if wait.For(ctx, pause) != nil {
			return err
		}
	}
}

// declare creates what q needs.
func (b *Broker) declare(ctx context.Context, q *driver.Queue) error {
	ctx, cancel := b.within(ctx, declareTimeout)
	defer cancel()
	return bounded(ctx, &b.traits, func(ctx context.Context) error { return b.transport.Declare(ctx, *q) })
}
