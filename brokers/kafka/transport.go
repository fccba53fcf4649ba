package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/brokers/internal/engine"
	"github.com/redrive-go/redrive/brokers/internal/kafkaurl"
	"github.com/redrive-go/redrive/envelope"
)

var (
	_ brokers.Broker        = (*Broker)(nil)
	_ brokers.ReaderCounter = (*Broker)(nil)
)

// headroom is by how much a record may grow in our own topics, so that a message of the largest size can still be
// retried and dead-lettered with its error.
const headroom = 128 << 10

// Broker is an open connection to a Kafka cluster. All methods are safe for concurrent use. The program that opened it
// closes it, after its router has stopped.
type Broker struct {
	*engine.Broker
	t *transport
}

// transport is the part that is specific to Kafka, below the engine.
type transport struct {
	cfg brokers.Config
	log *slog.Logger

	seeds []string
	user  *url.Userinfo

	out      *producer   // for users' publishes; its connection for fetches carries the long polls
	waits    *producer   // for retries and dead letters, which may be larger and have a partition
	requests *kgo.Client // of waits: for all requests that must be answered at once
	topics   *topics
	news     *longPoll
	tiers    tiers
	dead     *regexp.Regexp // names of dead letter topics; nil if they have no distinctive part
	clocks   clocks
	probing  sync.Map // broker id to a channel with a token while its time is being probed

	outcomes outcomes
	names    sync.Map     // tierKey to the name of a retry topic
	named    atomic.Int64 // how many of them, about
	overdue  error        // cause of a publish that took longer than Config.PublishTimeout

	mu            sync.Mutex
	closed        bool
	subscriptions map[*subscription]struct{}
	waiters       map[waiter]struct{} // the groups that Depths counts
}

// newTransport returns a transport without connections.
func newTransport(cfg brokers.Config) (b *transport, err error) {
	b = &transport{
		cfg: cfg, log: cfg.Logger.With("broker", Scheme),
		tiers: newTiers(cfg.Delays), dead: deadLetterTopics(cfg.Naming), subscriptions: map[*subscription]struct{}{},
		waiters: map[waiter]struct{}{},
		overdue: fmt.Errorf("no confirm within publish-timeout=%s: %w", cfg.PublishTimeout, context.DeadlineExceeded),
	}
	if b.seeds, b.user, err = kafkaurl.Parse(cfg.URL); err != nil {
		return nil, err
	}
	one, err := b.tierPatterns("topic", "group")
	other, _ := b.tierPatterns("another", "group")
	switch {
	case err != nil:
		return nil, err
	case cfg.Naming.Patterns:
		return nil, fmt.Errorf("%w: naming %s has topic patterns, which Kafka does not support: choose another scheme",
			brokers.ErrUnsupported, cfg.Naming.Preset)
	case share(one, other):
		return nil, errors.New("the naming templates retry and delayed need {topic}, or a {queue} that has it: otherwise " +
			"the topics of a group share their waiting messages")
	}
	return b, nil
}

func open(ctx context.Context, cfg brokers.Config) (*Broker, error) {
	t, err := newTransport(cfg)
	if err != nil {
		return nil, err
	}
	if err = t.connect(ctx); err == nil {
		var b *engine.Broker
		made := engine.Config{Config: cfg, Params: Driver{}.Params(), Transport: t}
		if b, err = engine.New(made); err == nil { //nolint:contextcheck // it outlives ctx
			return &Broker{b, t}, nil
		}
	}
	_ = t.Close(ctx)
	return nil, err
}

// connect creates the clients, and returns nil when a broker has answered.
func (b *transport) connect(ctx context.Context) error {
	cfg := b.cfg
	common, err := clientOptions(cfg, b.seeds, b.user)
	if err != nil {
		return err
	}
	common = append(common, byName())
	limit := cfg.Params.Bytes("max-message-bytes")
	if b.out, err = newProducer(cfg, common, partitioners[cfg.Params.String("partitioner")], limit); err != nil {
		return err
	}
	if b.waits, err = newProducer(cfg, common, kgo.ManualPartitioner(), limit+headroom); err != nil {
		return err
	}
	b.requests = b.waits.client
	b.topics = &topics{
		client: b.requests, admin: kadm.NewClient(b.requests), auto: cfg.Params.Bool("auto-create"),
		known: map[string]int32{}, listing: make(chan struct{}, 1),
	}
	b.news = newLongPoll(b.out.client, b.topics)
	return b.reach(ctx)
}

// reach returns nil when a broker has answered and accepted the user. A cluster that is just starting gets a few tries.
func (b *transport) reach(ctx context.Context) (err error) {
	for try := range 5 {
		if try > 0 && !sleep(ctx, retrying.First) {
			break
		}
		if err = b.requests.Ping(ctx); err == nil {
			return nil
		}
		if _, refused := errors.AsType[*kerr.Error](err); refused && !temporary(err) {
			break
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// readersOf returns this process's subscriptions to a topic.
func (b *transport) readersOf(topic string) []*subscription {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := slices.Collect(maps.Keys(b.subscriptions))
	return slices.DeleteFunc(all, func(s *subscription) bool { return s.q.Topic != topic })
}

// source describes a topic that users publish and subscribe to. A dead letter topic may be read before there are any
// dead letters; it gets its settings no matter who creates it.
func (b *transport) source(topic string) spec {
	s := spec{name: topic, partitions: -1, replication: b.replication(), purpose: "the topic itself"}
	s.config = func() map[string]string {
		if b.dead == nil || !b.dead.MatchString(topic) {
			return nil
		}
		return b.kept()
	}
	if n := b.cfg.Params.Int("partitions"); n > 0 {
		s.partitions = int32(n) //nolint:gosec // G115: Params bounds it to 31 bits
	}
	return s
}

// deadLetterTopics matches the names of a scheme's dead letter topics, or is nil if they have no fixed part.
func deadLetterTopics(naming brokers.NameScheme) *regexp.Regexp {
	const topic, group = "\x01", "\x02"
	fill := strings.NewReplacer(topic, ".+", group, ".+")
	var patterns []string
	for _, name := range []string{naming.For(topic, group).Dead, naming.For(topic, "").Dead} {
		if strings.Trim(name, topic+group) == "" {
			return nil
		}
		patterns = append(patterns, fill.Replace(regexp.QuoteMeta(name)))
	}
	return regexp.MustCompile("^(" + strings.Join(patterns, "|") + ")$")
}

// retryRetention is how long a retry topic keeps a record beyond its wait, while no member reads it.
const retryRetention = 30 * 24 * time.Hour

// tier describes a retry topic, or with no wait the parking topic. The broker stamps the records, see clocks.
func (b *transport) tier(name string, wait time.Duration, partitions int32) spec {
	if wait == 0 {
		return b.forever(name, "the parking topic of order=key", partitions)
	}
	return spec{
		name: name, partitions: partitions, replication: b.replication(), purpose: "a retry topic",
		config: func() map[string]string {
			return map[string]string{
				"cleanup.policy":         "delete",
				"retention.ms":           millis(wait + retryRetention),
				"message.timestamp.type": "LogAppendTime",
				"max.message.bytes":      b.grown(),
			}
		},
	}
}

// forever describes a topic of ours whose records stay until they are removed explicitly.
func (b *transport) forever(name, purpose string, partitions int32) spec {
	return spec{name: name, partitions: partitions, replication: b.replication(), purpose: purpose, config: b.kept}
}

// kept are the settings of topics that keep their records.
func (b *transport) kept() map[string]string {
	return map[string]string{"cleanup.policy": "delete", "retention.ms": "-1", "max.message.bytes": b.grown()}
}

// tierKey identifies a retry topic.
type tierKey struct {
	topic, group string
	wait         time.Duration
}

// maxNames bounds the cached names, because topics and groups also come from messages.
const maxNames = 4096

// retryName caches names: making one costs as much as sending a record.
func (b *transport) retryName(topic, group string, wait time.Duration) string {
	key := tierKey{topic, group, wait}
	if name, ok := b.names.Load(key); ok {
		return name.(string)
	}
	name := b.cfg.Naming.For(topic, group).Retry(wait)
	if b.named.Add(1) > maxNames {
		b.names.Clear()
		b.named.Store(1)
	}
	b.names.Store(key, name)
	b.counts(waiter{topic, group})
	return name
}

func (b *transport) grown() string {
	return strconv.FormatInt(b.cfg.Params.Bytes("max-message-bytes")+headroom, 10)
}

func (b *transport) replication() int16 {
	if n := b.cfg.Params.Int("replication"); n > 0 {
		return int16(n) //nolint:gosec // G115: Params bounds it
	}
	return -1
}

// Capabilities implements driver.Transport.
func (b *transport) Capabilities() brokers.Capabilities {
	return brokers.Capabilities{
		Scheme: Scheme, Durable: true, Ordered: true, Groups: true,
		MaxDelay: envelope.MaxDelay, DelayTolerance: 250 * time.Millisecond,
		MaxMessageBytes: b.cfg.Params.Bytes("max-message-bytes"),
	}
}

// Traits implements driver.Transport.
func (b *transport) Traits() driver.Traits {
	return driver.Traits{
		Name: Scheme, Prompt: true, SettleLocal: true, Ordered: true, StablePosition: true, NeedsGroup: true, OwnRoom: true,
	}
}

// Ping asks the cluster for the topics that this broker uses. A topic that was deleted is an error: once if auto-create
// allows to recreate it at its next use, otherwise as long as it is missing.
func (b *transport) Ping(ctx context.Context) error {
	return failure(ctx, "ping", b.topics.check(ctx))
}

// Close implements driver.Transport. It waits for the answers to pending publishes.
func (b *transport) Close(context.Context) error {
	if b.news != nil {
		b.news.close()
	}
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	for _, p := range []*producer{b.out, b.waits} {
		if p != nil {
			p.close() //nolint:contextcheck // bounded by the publish timeout
		}
	}
	return nil
}

// Declare implements driver.Transport.
func (b *transport) Declare(ctx context.Context, q driver.Queue) error {
	_, err := b.prepare(ctx, q.Topic, q.Group, q.Params)
	return notReady(err)
}

// Receive implements driver.Transport. The engine calls Join instead.
func (b *transport) Receive(context.Context, driver.Queue) (driver.Stream, error) {
	return nil, errors.ErrUnsupported
}

// ClusterID returns the id of the cluster, "" if it has none. Package watermill consults it for members of one group.
func (b *transport) ClusterID(ctx context.Context) (string, error) {
	_, err := b.topics.describe(ctx, nil)
	return b.topics.cluster(), err
}

// Reaches implements driver.Reacher. Compose files copy the ids of clusters, so topics must have one id, too, if the
// clusters let these users see it.
func (b *transport) Reaches(ctx context.Context, o *driver.Outgoing, from driver.Transport) (bool, error) {
	other, ok := from.(*transport)
	if !ok {
		return false, nil
	}
	here, err := b.topics.describe(ctx, []string{o.To.Topic})
	there, otherErr := other.topics.describe(ctx, []string{o.To.Topic})
	if err = errors.Join(err, otherErr); err != nil {
		return false, err
	}
	mine, theirs := here[o.To.Topic], there[o.To.Topic]
	same := mine.id == theirs.id || mine.id == topicID{} || theirs.id == topicID{}
	return same && b.topics.cluster() == other.topics.cluster() && !isGone(mine.err), nil
}

// RedriveTo implements driver.Addresser.
func (b *transport) RedriveTo(to *driver.Destination) string {
	return b.retryName(to.Topic, to.Consumer, nowTier)
}

// Readers implements driver.ReaderCounter: it counts the members of the group that have joined for the topic, which
// also read its retry topics.
func (b *transport) Readers(ctx context.Context, to *driver.Destination) (int, error) {
	groups, err := b.topics.admin.DescribeGroups(ctx, to.Consumer)
	if err == nil {
		err = groups.Error()
	}
	if errors.Is(err, kerr.GroupIDNotFound) {
		return b.readersOfNext(ctx, to)
	}
	if err != nil {
		return 0, err
	}
	n := 0
	for _, g := range groups {
		for i := range g.Members {
			joined, ok := g.Members[i].Join.AsConsumer()
			if g.State != "Stable" || ok && slices.Contains(joined.Topics, to.Topic) { // topics are only known of stable groups
				n++
			}
		}
	}
	return n, nil
}

// readersOfNext counts the members of a group that uses the next protocol (KIP-848): one member of another client that
// does makes it another kind of group.
func (b *transport) readersOfNext(ctx context.Context, to *driver.Destination) (n int, err error) {
	groups, err := b.topics.admin.DescribeConsumerGroups(ctx, to.Consumer)
	if err != nil && ctx.Err() != nil {
		return 0, err
	}
	for _, g := range groups { // none, if there is no such group, or if the cluster is too old to have any
		for i := range g.Members {
			if slices.Contains(g.Members[i].SubscribedTopics, to.Topic) {
				n++
			}
		}
	}
	return n, nil
}
