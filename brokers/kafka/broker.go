package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/internal/readers"
	"github.com/redrive-go/redrive/envelope"
)

var _ brokers.Broker = (*Broker)(nil)

// headroom is what a record may grow by in our own topics, so that a message of the largest size can still be retried
// and dead-lettered with its error.
const headroom = 128 << 10

// Broker is an open connection to a Kafka cluster. All methods are safe for concurrent use. The program that opened it
// closes it, after its router has stopped.
type Broker struct {
	cfg      brokers.Config
	params   []brokers.Param
	log      *slog.Logger
	fallback DeadLetterSink
	readers  readers.Readers

	seeds []string
	user  *url.Userinfo

	out     *producer   // of what users publish; its connection for fetches is the one that waits for news
	waits   *producer   // of retries and dead letters, which may be larger
	own     *kgo.Client // of waits: for all requests that have to be answered at once
	topics  *topics
	news    *longPoll
	tiers   tiers
	clocks  clocks
	probing sync.Map // broker id to a mutex, held while it is asked for its time

	flights flights
	names   sync.Map // tierKey to the name of a retry topic
	waiters sync.Map // of waiter, what Depths counts
	overdue error    // cause of a publish that took longer than Config.PublishTimeout

	mu          sync.Mutex
	closed      bool // no more subscribers
	drained     bool // no more of anything; until then, running handlers may publish
	subscribers map[*subscriber]struct{}
	releasing   sync.Once
}

// newBroker is a broker without connections.
func newBroker(cfg brokers.Config, d Driver) (b *Broker, err error) {
	b = &Broker{
		cfg: cfg, params: d.Params(), log: cfg.Logger.With("broker", Scheme), fallback: d.Fallback,
		tiers: newTiers(cfg.Delays), subscribers: map[*subscriber]struct{}{},
		overdue: fmt.Errorf("no confirm within publish-timeout=%s: %w", cfg.PublishTimeout, context.DeadlineExceeded),
	}
	if b.seeds, b.user, err = addresses(cfg.URL); err != nil {
		return nil, err
	}
	if _, err := newNamed(cfg.Naming.For("topic", "group").Retry); err != nil {
		return nil, err
	}
	if _, err := newNamed(cfg.Naming.For("topic", "").Delayed); err != nil {
		return nil, err
	}
	if cfg.Naming.Patterns {
		return nil, fmt.Errorf("%w: naming %s has topic patterns, which Kafka has not: choose another scheme",
			brokers.ErrUnsupported, cfg.Naming.Preset)
	}
	return b, nil
}

func open(ctx context.Context, cfg brokers.Config, d Driver) (_ *Broker, err error) {
	b, err := newBroker(cfg, d)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			b.releasing.Do(b.release)
		}
	}()
	common, err := clientOptions(cfg, b.seeds, b.user, byName)
	if err != nil {
		return nil, err
	}
	limit := cfg.Params.Bytes("max-message-bytes")
	if b.out, err = newProducer(cfg, common, limit); err != nil {
		return nil, err
	}
	if b.waits, err = newProducer(cfg, common, limit+headroom); err != nil {
		return nil, err
	}
	b.own = b.waits.client
	b.topics = &topics{
		client: b.own, admin: kadm.NewClient(b.own), auto: cfg.Params.Bool("auto-create"),
		known: map[string]int32{}, listing: make(chan struct{}, 1),
	}
	b.news = newLongPoll(b.out.client, b.topics)
	return b, b.reach(ctx)
}

// reach returns nil when a broker has answered, and let this user in. A cluster that is just starting gets a few tries.
func (b *Broker) reach(ctx context.Context) (err error) {
	for try := range 5 {
		if try > 0 && !sleep(ctx, minPause) {
			break
		}
		if err = b.own.Ping(ctx); err == nil {
			return nil
		}
		var refused *kerr.Error
		if errors.As(err, &refused) && !refused.Retriable {
			break
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// Capabilities says what Kafka can do.
func (b *Broker) Capabilities() brokers.Capabilities {
	return brokers.Capabilities{
		Scheme: Scheme, Durable: true, Ordered: true, Groups: true,
		MaxDelay: envelope.MaxDelay, DelayTolerance: 250 * time.Millisecond,
		MaxMessageBytes: b.cfg.Params.Bytes("max-message-bytes"),
	}
}

// Ping asks the cluster for the topics that this broker uses. A topic that was deleted meanwhile is an error; it is
// made again when it is next used, if auto-create allows.
func (b *Broker) Ping(ctx context.Context) error {
	if b.isClosed() {
		return fmt.Errorf("kafka: ping: %w", brokers.ErrClosed)
	}
	if err := b.topics.check(ctx); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("kafka: ping: %w", classify(err))
	}
	return nil
}

// Publisher returns a handle for publishing; see brokers.Broker.
func (b *Broker) Publisher() message.Publisher { return &publisher{b: b} }

// Subscriber returns a subscriber; see brokers.Broker. A group is required: without one Subscribe fails.
func (b *Broker) Subscriber(opts ...brokers.SubscriberOption) message.Subscriber {
	cfg, err := b.cfg.Subscriber(b.params, opts...)
	if err == nil && cfg.Group == "" {
		err = errors.New("a Kafka consumer needs a group: name it with group= in the URL, Config.Group or brokers.WithGroup")
	}
	s := &subscriber{b: b, cfg: cfg, fault: err, closed: make(chan struct{})}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		s.fault = brokers.ErrClosed
		return s
	}
	b.subscribers[s] = struct{}{}
	return s
}

// Close drains every subscriber, waits for the answers to what is being published, and disconnects.
func (b *Broker) Close() error {
	b.mu.Lock()
	b.closed = true
	open := slices.Collect(maps.Keys(b.subscribers))
	b.mu.Unlock()
	var wg sync.WaitGroup
	for _, s := range open {
		wg.Go(func() { _ = s.Close() })
	}
	wg.Wait()
	b.mu.Lock()
	b.drained = true
	b.mu.Unlock()
	b.releasing.Do(b.release)
	return nil
}

func (b *Broker) release() {
	if b.news != nil {
		b.news.close()
	}
	for _, p := range []*producer{b.out, b.waits} {
		if p != nil {
			p.close()
		}
	}
}

func (b *Broker) isClosed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.drained
}

// subscriptions returns those of a topic, in this process.
func (b *Broker) subscriptions(topic string) []*subscription {
	b.mu.Lock()
	defer b.mu.Unlock()
	var found []*subscription
	for s := range b.subscribers {
		found = append(found, s.of(topic)...)
	}
	return found
}

// source describes a topic that users publish to and subscribe to.
func (b *Broker) source(topic string) spec {
	s := spec{name: topic, partitions: -1, replication: b.replication(), purpose: "the topic itself"}
	if n := b.cfg.Params.Int("partitions"); n > 0 {
		s.partitions = int32(n) //nolint:gosec // G115: Params bounds it to 31 bits
	}
	return s
}

// tier describes a retry topic. The broker stamps its records, see clocks.
func (b *Broker) tier(name string, wait time.Duration, partitions int32) spec {
	retention := wait + b.cfg.Params.Duration("retry-retention")
	return spec{
		name: name, partitions: partitions, replication: b.replication(), purpose: "a retry topic",
		config: map[string]string{
			"cleanup.policy":         "delete",
			"retention.ms":           millis(retention),
			"message.timestamp.type": "LogAppendTime",
			"max.message.bytes":      b.grown(),
		},
	}
}

// forever describes a topic of ours that keeps its records until somebody removes them.
func (b *Broker) forever(name, purpose string, partitions int32) spec {
	return spec{
		name: name, partitions: partitions, replication: b.replication(), purpose: purpose,
		config: map[string]string{"cleanup.policy": "delete", "retention.ms": "-1", "max.message.bytes": b.grown()},
	}
}

// tierKey identifies a retry topic.
type tierKey struct {
	topic, group string
	wait         time.Duration
}

// retryName is remembered: making it costs as much as sending a record.
func (b *Broker) retryName(topic, group string, wait time.Duration) string {
	key := tierKey{topic, group, wait}
	if name, ok := b.names.Load(key); ok {
		return name.(string)
	}
	name := b.cfg.Naming.For(topic, group).Retry(wait)
	b.names.Store(key, name)
	b.waiters.Store(waiter{topic, group}, nil)
	return name
}

func (b *Broker) grown() string {
	return strconv.FormatInt(b.cfg.Params.Bytes("max-message-bytes")+headroom, 10)
}

func (b *Broker) replication() int16 {
	if n := b.cfg.Params.Int("replication"); n > 0 {
		return int16(n) //nolint:gosec // G115: Params bounds it
	}
	return -1
}
