package memory

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
)

// Broker is a broker in this process's memory. It is safe for concurrent use. Make one with New, or open mem://.
type Broker struct {
	cfg   brokers.Config
	store *store

	closing chan struct{} // closed when Close begins: subscribers drain
	done    chan struct{} // closed when Close is over: nothing can be published any more

	mu            sync.Mutex // guards stopped, and subscriptions.Add against subscriptions.Wait
	stopped       bool
	subscriptions sync.WaitGroup
}

var _ brokers.Broker = (*Broker)(nil)

func open(s *store, cfg brokers.Config) *Broker {
	s.connect()
	return &Broker{cfg: cfg, store: s, closing: make(chan struct{}), done: make(chan struct{})}
}

// Connect returns a second broker on the same queues, as a second process or a restarted one would open it. change may
// alter its configuration and may be nil. Naming stays as it is: it belongs to the queues. Close both; what was not
// consumed outlives them, as it would on a server, for as long as there is somebody to Connect.
func (b *Broker) Connect(change func(*brokers.Config)) (*Broker, error) {
	cfg := b.cfg
	if change != nil {
		change(&cfg)
	}
	cfg.Naming = b.cfg.Naming
	resolved, err := cfg.Resolve(Driver{}.Params())
	if err != nil {
		return nil, err
	}
	return open(b.store, resolved), nil
}

// Publisher implements brokers.Broker.
func (b *Broker) Publisher() message.Publisher {
	return &publisher{broker: b, closed: make(chan struct{})}
}

// Subscriber implements brokers.Broker.
func (b *Broker) Subscriber(opts ...brokers.SubscriberOption) message.Subscriber {
	cfg, err := b.cfg.Subscriber(Driver{}.Params(), opts...)
	return &subscriber{broker: b, cfg: cfg, fault: err, closing: make(chan struct{})}
}

// Reschedule implements brokers.Broker. It makes the consumer's queue when there is none yet, as when a dead letter of
// an earlier process is redriven.
func (b *Broker) Reschedule(ctx context.Context, origin envelope.Origin, m *message.Message, delay time.Duration) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("memory: reschedule: %w", err)
	}
	if origin.Topic == "" {
		return errors.New("memory: reschedule: the origin names no topic, so there is no consumer to give the message back to")
	}
	if err := b.accept(m); err != nil {
		return fmt.Errorf("memory: reschedule to %s: %w", origin.Topic, err)
	}
	topic := origin.RoutingKey
	if topic == "" {
		topic = origin.Topic
	}
	delete(m.Metadata, envelope.KeyTopic) // where it was says nothing once it is back there; m is ours
	delete(m.Metadata, envelope.KeyConsumer)
	now := time.Now()
	it := newItem(m, topic, now)
	it.position = b.store.position.Add(1)
	it.again = true
	if delay > 0 {
		it.due = now.Add(delay)
	}
	b.store.queue(consumer{origin.Topic, group(origin.Consumer)}).put(it)
	return nil
}

// RescheduleAll calls Reschedule for each message, without a delay. It returns an error for each, nil for stored, in their
// order. Package dlq redrives whole batches through it.
func (b *Broker) RescheduleAll(ctx context.Context, origins []envelope.Origin, messages []*message.Message) []error {
	faults := make([]error, len(messages))
	for i, m := range messages {
		if len(origins) != len(messages) {
			faults[i] = fmt.Errorf("memory: reschedule: %d origins for %d messages", len(origins), len(messages))
			continue
		}
		faults[i] = b.Reschedule(ctx, origins[i], m, 0)
	}
	return faults
}

// DeadLetter implements brokers.Broker. Its headers say where it came from, for whoever sends it back. The dead letter queue is an ordinary topic: subscribe to it, or look at it with
// Peek.
func (b *Broker) DeadLetter(ctx context.Context, d *envelope.DeadLetter) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("memory: dead letter: %w", err)
	}
	if d.Origin.Topic == "" {
		return errors.New("memory: dead letter: the origin names no topic, so the naming scheme gives no queue; " +
			"the message did not come from a subscriber of this module")
	}
	topic := b.cfg.Naming.For(d.Origin.Topic, d.Origin.Consumer).Dead
	if err := b.accept(d.Message); err != nil {
		return fmt.Errorf("memory: dead letter to %s: %w", topic, err)
	}
	m := d.Message.Copy()
	m.Metadata[envelope.KeyTopic], m.Metadata[envelope.KeyConsumer] = d.Origin.Topic, group(d.Origin.Consumer)
	if d.Reason != "" && m.Metadata[envelope.KeyDeadLetterReason] == "" {
		m.Metadata[envelope.KeyDeadLetterReason] = string(d.Reason)
	}
	b.store.publish(topic, []*item{newItem(m, topic, time.Now())})
	return nil
}

// accept says why m cannot be stored.
func (b *Broker) accept(m *message.Message) error {
	select {
	case <-b.done:
		return brokers.ErrClosed
	default:
	}
	if limit := b.cfg.Params.Bytes("max-message"); limit > 0 && size(m) > limit {
		return fmt.Errorf("%d bytes, at most %d: %w", size(m), limit, brokers.ErrTooLarge)
	}
	return nil
}

// Capabilities implements brokers.Broker.
func (b *Broker) Capabilities() brokers.Capabilities {
	return brokers.Capabilities{
		Scheme:          Scheme,
		Ordered:         b.cfg.Concurrency == 1,
		Groups:          true,
		Patterns:        b.cfg.Naming.Patterns,
		MaxDelay:        math.MaxInt64,
		DelayTolerance:  10 * time.Millisecond,
		MaxMessageBytes: b.cfg.Params.Bytes("max-message"),
	}
}

// Ping implements brokers.Broker. It fails after Close.
func (b *Broker) Ping(ctx context.Context) error {
	select {
	case <-b.done:
		return fmt.Errorf("memory: %w", brokers.ErrClosed)
	default:
		return ctx.Err()
	}
}

// Close implements brokers.Broker. Until the last handler has finished or the drain timeout has passed, messages can
// still be published.
func (b *Broker) Close() error {
	b.mu.Lock()
	first := !b.stopped
	b.stopped = true
	b.mu.Unlock()
	if !first {
		<-b.done
		return nil
	}
	close(b.closing)
	b.subscriptions.Wait()
	b.store.disconnect()
	close(b.done)
	return nil
}

// begin counts a subscription that Close has to wait for. It reports false when the broker is closing.
func (b *Broker) begin() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped {
		return false
	}
	b.subscriptions.Add(1)
	return true
}

// group gives the consumer of no group a name, so that an origin always has one.
func group(name string) string {
	if name == "" {
		return brokers.DefaultGroup
	}
	return name
}
