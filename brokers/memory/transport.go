package memory

import (
	"context"
	"math"
	"strconv"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
)

// transport is one connection to a store. The engine above it keeps the promises to users.
type transport struct {
	cfg   brokers.Config
	store *store
}

var (
	_ driver.Transport      = (*transport)(nil)
	_ brokers.DepthReporter = (*transport)(nil)
	_ driver.ReaderCounter  = (*transport)(nil)
)

// Publish implements driver.Transport.
func (t *transport) Publish(_ context.Context, out []driver.Outgoing) []error {
	faults := make([]error, len(out))
	for i, o := range out {
		o.ExistingOnly = o.ExistingOnly || t.cfg.RefuseUnrouted && t.cfg.Naming.Patterns && o.To.Kind == driver.ToTopic
		faults[i] = t.store.publish(&o)
	}
	return faults
}

// Declare implements driver.Transport.
func (t *transport) Declare(_ context.Context, q driver.Queue) error {
	t.store.mu.Lock()
	defer t.store.mu.Unlock()
	t.store.queue(consumer{q.Topic, q.Group}, q.Patterns...)
	return nil
}

// Receive implements driver.Transport.
func (t *transport) Receive(_ context.Context, q driver.Queue) (driver.Stream, error) {
	t.store.mu.Lock()
	defer t.store.mu.Unlock()
	s := &stream{store: t.store, queue: t.store.queue(consumer{q.Topic, q.Group}, q.Patterns...), topic: q.Topic}
	s.queue.streams++
	return s, nil
}

// Readers implements driver.ReaderCounter.
func (t *transport) Readers(_ context.Context, to *driver.Destination) (int, error) {
	t.store.mu.Lock()
	defer t.store.mu.Unlock()
	if q := t.store.queues[consumer{to.Topic, to.Consumer}]; q != nil {
		return q.streams, nil
	}
	return 0, nil
}

// Capabilities implements driver.Transport.
func (t *transport) Capabilities() brokers.Capabilities {
	return brokers.Capabilities{
		Scheme: Scheme, Ordered: t.cfg.Concurrency == 1, Groups: true, Patterns: t.cfg.Naming.Patterns,
		MaxDelay: math.MaxInt64, DelayTolerance: 10 * time.Millisecond, MaxMessageBytes: t.cfg.Params.Bytes("max-message"),
	}
}

// Traits implements driver.Transport.
func (t *transport) Traits() driver.Traits {
	return driver.Traits{Name: "memory", Local: true, NackPause: true, StablePosition: true}
}

// Ping implements driver.Transport.
func (t *transport) Ping(context.Context) error { return nil }

// Close implements driver.Transport. The messages stay, for brokers that are connected to the store.
func (t *transport) Close(context.Context) error { return nil }

// stream is a consumer of a queue. Items that it has delivered count as in flight until they are settled.
type stream struct {
	store *store
	queue *queue
	topic string
}

// Next implements driver.Stream.
func (s *stream) Next(ctx context.Context) (driver.Delivery, error) {
	for ctx.Err() == nil {
		s.store.mu.Lock()
		it, due := s.queue.take()
		s.store.mu.Unlock()
		if it != nil {
			return s.delivery(it), nil
		}
		var isDue <-chan time.Time
		if !due.IsZero() {
			isDue = time.After(time.Until(due))
		}
		select {
		case <-s.queue.changed:
		case <-isDue:
		case <-ctx.Done():
		}
	}
	s.queue.signal() // what this stream was told is for another one now
	return driver.Delivery{}, ctx.Err()
}

func (s *stream) delivery(it *item) driver.Delivery {
	d := driver.Delivery{Message: it.message(), Token: it, Earlier: it.deliveries}
	d.Origin.Timestamp = it.stored
	d.Origin.Position = strconv.FormatInt(it.position, 10)
	d.Origin.Redelivered = it.deliveries > 0
	d.Origin.DeliveryCount = it.deliveries
	if it.topic != s.topic { // a subscription to a pattern
		d.Origin.RoutingKey = it.topic
	}
	return d
}

// Settle implements driver.Stream.
func (s *stream) Settle(_ context.Context, settled []driver.Settlement) []error {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	for i := range settled {
		s.queue.settle(settled[i].Delivery.Token.(*item), &settled[i])
	}
	return nil
}

// Close implements driver.Stream. The engine settles everything in flight first.
func (s *stream) Close(context.Context) error {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	s.queue.streams--
	return nil
}
