package memory

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/brokers/internal/engine"
)

// Scheme of the URLs that open this broker.
const Scheme = "mem"

func init() { brokers.Register(Scheme, Driver{}) }

// Driver opens mem:// URLs. Importing the package registers it in the shared Mux; programs with their own Mux
// register it there.
type Driver struct{}

// Params implements brokers.Driver.
func (Driver) Params() []brokers.Param {
	return []brokers.Param{
		driver.NackPause(),
		{
			Name: "max-message", Type: brokers.Size, Default: "0",
			Doc: "Largest message in bytes, payload and headers together; 0 means no limit.",
		},
		{Name: "*", Doc: "Parameters of other drivers under params in a configuration are ignored, because mem:// " +
			"replaces those drivers in tests."},
	}
}

// Open implements brokers.Driver.
func (Driver) Open(_ context.Context, cfg brokers.Config) (brokers.Broker, error) {
	rest, _, _ := strings.Cut(strings.TrimPrefix(cfg.URL, Scheme+"://"), "?")
	if rest != "" {
		return nil, fmt.Errorf("memory: %s: write %s:// and no host or path: every Open makes a separate broker; "+
			"share one *Broker, or Connect to it", brokers.Redact(cfg.URL), Scheme)
	}
	s := &store{patterns: cfg.Naming.Patterns, queues: map[consumer]*queue{}, orphans: map[orphan]*queue{}}
	return open(s, cfg) //nolint:contextcheck // the broker outlives the context it was opened with
}

// New opens a separate broker for tests and programs without a URL. An empty cfg.URL means mem://. Close it.
func New(cfg brokers.Config) (*Broker, error) {
	cfg.URL = cmp.Or(cfg.URL, Scheme+"://")
	resolved, err := cfg.Resolve(Driver{}.Params())
	if err != nil {
		return nil, err
	}
	b, err := Driver{}.Open(context.Background(), resolved)
	if err != nil {
		return nil, err
	}
	return b.(*Broker), nil
}

// Broker is a broker in this process's memory. It is safe for concurrent use. Create one with New, or open mem://.
type Broker struct {
	*engine.Broker
	transport *transport
}

var (
	_ brokers.Driver        = Driver{}
	_ brokers.Broker        = (*Broker)(nil)
	_ brokers.DepthReporter = (*Broker)(nil)
	_ brokers.ReaderCounter = (*Broker)(nil)
	_ driver.Transport      = (*transport)(nil)
	_ brokers.DepthReporter = (*transport)(nil)
	_ driver.ReaderCounter  = (*transport)(nil)
)

func open(s *store, cfg brokers.Config) (*Broker, error) {
	t := &transport{cfg: cfg, store: s}
	b, err := engine.New(engine.Config{Config: cfg, Params: Driver{}.Params(), Transport: t})
	if err != nil {
		return nil, err
	}
	return &Broker{Broker: b, transport: t}, nil
}

// Connect returns a second broker on the same queues, like a second or restarted process. change may alter its
// configuration and may be nil. Naming stays unchanged, because it belongs to the queues. Close both; unconsumed
// messages outlive them, as on a server, as long as a broker remains to Connect to.
func (b *Broker) Connect(change func(*brokers.Config)) (*Broker, error) {
	cfg := b.Config()
	naming := cfg.Naming
	if change != nil {
		change(&cfg)
	}
	cfg.Naming = naming
	resolved, err := cfg.Resolve(Driver{}.Params())
	if err != nil {
		return nil, err
	}
	return open(b.transport.store, resolved)
}

// Depths implements brokers.DepthReporter, over the queues of all brokers that are connected to this one. It counts
// messages that are delayed, in retry, ready, and in dead letter queues.
func (b *Broker) Depths(ctx context.Context) ([]brokers.Depth, error) {
	return b.Broker.Depths(ctx, b.transport)
}

// Depth counts the messages of one consumer.
type Depth struct {
	// Ready to be delivered.
	Ready int
	// Waiting for their due time.
	Waiting int
	// InFlight are delivered, and neither acked nor nacked.
	InFlight int
}

// Waiting is a message that waits for its due time.
type Waiting struct {
	// Due is when it will be delivered.
	Due time.Time
	// Message is a copy.
	Message *message.Message
}

// Depth counts the messages of topic that group has yet to handle; an empty group means the default one. A topic that
// no group has subscribed to yet shows its messages under every group.
func (b *Broker) Depth(topic, group string) Depth {
	q := b.snapshot(topic, group)
	return Depth{Ready: len(q.ready), Waiting: len(q.waiting), InFlight: q.inFlight}
}

// Peek returns copies of the ready messages in order of delivery, without removing them. Tests read dead letter queues
// with it.
func (b *Broker) Peek(topic, group string) []*message.Message {
	var found []*message.Message
	for _, it := range b.snapshot(topic, group).ready {
		found = append(found, it.message())
	}
	return found
}

// Waiting returns copies of the messages that wait for their due time, in order of delivery.
func (b *Broker) Waiting(topic, group string) []Waiting {
	var found []Waiting
	for _, it := range slices.SortedFunc(slices.Values(b.snapshot(topic, group).waiting), compareDue) {
		found = append(found, Waiting{Due: it.due, Message: it.message()})
	}
	return found
}

// snapshot returns a copy of a consumer's queue, or of the messages of a topic that no group has subscribed to.
func (b *Broker) snapshot(topic, group string) queue {
	s := b.transport.store
	s.mu.Lock()
	defer s.mu.Unlock()
	q := cmp.Or(s.queues[consumer{topic, cmp.Or(group, brokers.DefaultGroup)}], s.orphans[orphan{topic: topic}],
		s.orphans[orphan{topic, true}])
	if q == nil {
		return queue{}
	}
	q.promote()
	return queue{ready: slices.Clone(q.ready), waiting: slices.Clone(q.waiting), inFlight: q.inFlight}
}

// Depths implements Broker.Depths.
func (t *transport) Depths(ctx context.Context) ([]brokers.Depth, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s := t.store
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []brokers.Depth
	count := func(c consumer, q *queue) {
		q.promote()
		retries := 0
		for _, it := range q.waiting {
			if it.again || it.deliveries > 0 {
				retries++
			}
		}
		add := func(kind brokers.DepthKind, n int) {
			found = append(found, brokers.Depth{Topic: c.topic, Group: c.group, Kind: kind, Messages: int64(n)})
		}
		add(brokers.DepthDelayed, len(q.waiting)-retries)
		add(brokers.DepthRetry, retries)
		add(brokers.DepthReady, len(q.ready))
	}
	for c, q := range s.queues {
		count(c, q)
	}
	for of, q := range s.orphans {
		count(consumer{topic: of.topic}, q)
	}
	return found, nil
}

// transport is one connection to a store. The engine above it keeps the promises to users.
type transport struct {
	cfg   brokers.Config
	store *store
}

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

// Reaches implements driver.Reacher.
func (t *transport) Reaches(_ context.Context, _ *driver.Outgoing, from driver.Transport) (bool, error) {
	other, ok := from.(*transport)
	return ok && other.store == t.store, nil
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
