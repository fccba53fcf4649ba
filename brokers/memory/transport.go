package memory

import (
	"context"
	"fmt"
	"math"
	"slices"
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
	now := time.Now()
	faults := make([]error, len(out))
	for i := 0; i < len(out); {
		o := &out[i]
		switch o.To.Kind {
		case driver.ToTopic:
			n := i + 1
			for n < len(out) && out[n].To == o.To {
				n++
			}
			if (t.cfg.RefuseUnrouted && t.cfg.Naming.Patterns || o.ExistingOnly) && !t.store.isRead(o.To.Topic) {
				return t.unrouted(out)
			}
			t.store.publish(o.To.Topic, items(out[i:n], o.To.Topic, now))
			i = n
			continue
		case driver.ToConsumer:
			to := consumer{o.To.Topic, o.To.Consumer}
			if o.ExistingOnly && !t.store.has(to) {
				faults[i] = fmt.Errorf("consumer %s: %w", to.group, brokers.ErrUnroutable)
				break
			}
			topic := o.Origin.RoutingKey
			if topic == "" {
				topic = o.To.Topic
			}
			it := newItem(o, topic, now)
			it.position = t.store.position.Add(1)
			it.again = !o.First
			t.store.queue(to).put(it)
		case driver.ToDeadLetters:
			t.store.publish(o.To.Names.Dead, items(out[i:i+1], o.To.Names.Dead, now))
		}
		i++
	}
	return faults
}

// unrouted refuses events that no group has subscribed to; they all go to one topic.
func (t *transport) unrouted(out []driver.Outgoing) []error {
	return slices.Repeat([]error{fmt.Errorf("event %s: %w", out[0].To.Topic, brokers.ErrUnroutable)}, len(out))
}

func items(out []driver.Outgoing, topic string, now time.Time) []*item {
	list := make([]*item, len(out))
	for i := range out {
		list[i] = newItem(&out[i], topic, now)
	}
	return list
}

// Declare implements driver.Transport.
func (t *transport) Declare(_ context.Context, q driver.Queue) error {
	t.queue(&q)
	return nil
}

func (t *transport) queue(q *driver.Queue) *queue {
	return t.store.queue(consumer{q.Topic, q.Group}, q.Patterns...)
}

// Receive implements driver.Transport.
func (t *transport) Receive(_ context.Context, q driver.Queue) (driver.Stream, error) {
	s := &stream{queue: t.queue(&q), topic: q.Topic, one: make(chan *item, 1)}
	s.queue.streams.Add(1)
	return s, nil
}

// Readers implements driver.ReaderCounter.
func (t *transport) Readers(_ context.Context, to *driver.Destination) (int, error) {
	c := consumer{to.Topic, to.Consumer}
	if !t.store.has(c) {
		return 0, nil
	}
	return int(t.store.queue(c).streams.Load()), nil
}

// Capabilities implements driver.Transport.
func (t *transport) Capabilities() brokers.Capabilities {
	return brokers.Capabilities{
		Scheme:          Scheme,
		Ordered:         t.cfg.Concurrency == 1,
		Groups:          true,
		Patterns:        t.cfg.Naming.Patterns,
		MaxDelay:        math.MaxInt64,
		DelayTolerance:  10 * time.Millisecond,
		MaxMessageBytes: t.cfg.Params.Bytes("max-message"),
	}
}

// Traits implements driver.Transport.
func (t *transport) Traits() driver.Traits {
	return driver.Traits{Name: "memory", Local: true, NackPause: true, StablePosition: true}
}

// Ping implements driver.Transport.
func (t *transport) Ping(context.Context) error { return nil }

// Close implements driver.Transport.
func (t *transport) Close(context.Context) error {
	t.store.disconnect()
	return nil
}

// stream is a consumer of a queue. Items that it has handed out count as in flight until they are settled.
type stream struct {
	queue *queue
	topic string
	one   chan *item // of the goroutine in Next
}

// Next implements driver.Stream.
func (s *stream) Next(ctx context.Context) (driver.Delivery, error) {
	it, ok := s.queue.receive(s.one, ctx.Done())
	if !ok {
		return driver.Delivery{}, ctx.Err()
	}
	d := driver.Delivery{Message: it.message(), Token: it, Earlier: it.deliveries}
	d.Origin.Timestamp = it.stored
	d.Origin.Position = strconv.FormatInt(it.position, 10)
	d.Origin.Redelivered = it.deliveries > 0
	d.Origin.DeliveryCount = it.deliveries
	if it.topic != s.topic { // a subscription to a pattern
		d.Origin.RoutingKey = it.topic
	}
	return d, nil
}

// Settle implements driver.Stream.
func (s *stream) Settle(_ context.Context, settled []driver.Settlement) []error {
	for i := range settled {
		it := settled[i].Delivery.Token.(*item)
		switch settled[i].Outcome {
		case driver.Ack:
			s.queue.ack()
		case driver.Nack:
			s.queue.nack(it, settled[i].Pause)
		case driver.Release:
			s.queue.giveBack(it)
		}
	}
	return nil
}

// Close implements driver.Stream. The engine settles everything in hand first.
func (s *stream) Close(context.Context) error {
	s.queue.streams.Add(-1)
	return nil
}
