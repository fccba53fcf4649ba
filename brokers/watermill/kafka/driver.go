package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/brokers/internal/kafkaurl"
	wbroker "github.com/redrive-go/redrive/brokers/watermill"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/wait"
)

// Scheme of the URLs that this driver opens.
const Scheme = "watermill+kafka"

func init() { brokers.Register(Scheme, Driver{}) }

// Driver opens watermill+kafka:// URLs.
type Driver struct{}

var _ brokers.Driver = Driver{}

// Params implements brokers.Driver.
func (Driver) Params() []brokers.Param {
	return wbroker.URLParams(
		brokers.Param{Name: "auto-create", Type: brokers.Bool, Default: "true", Doc: "Create missing topics."},
		brokers.Param{
			Name: "partitions", Type: brokers.Int, Max: 100_000,
			Doc: "Partitions of the topics created, and the most handlers at once; the broker's default if not given.",
		},
		brokers.Param{
			Name: "max-message-bytes", Type: brokers.Size, Default: "1MiB", Min: 64 << 10, Max: 1 << 30,
			Doc: "Largest record, headers included, that the server accepts.",
		},
		brokers.Param{
			Name: "session-timeout", Type: brokers.Duration, Default: "10s", Min: int64(time.Second), Max: int64(time.Hour),
			Doc: "Silence after which a member's partitions go to the other members of its group.",
		},
		brokers.Param{
			Name: "rebalance-timeout", Type: brokers.Duration, Default: "60s", Min: int64(time.Second), Max: int64(time.Hour),
			Doc: "How long a rebalance waits for running handlers.",
		},
		brokers.Param{
			Name: "tls", Type: brokers.Bool, Default: "false",
			Doc: "Connect with TLS, and the system's certificates.",
		},
	)
}

// Open implements brokers.Driver.
func (Driver) Open(ctx context.Context, cfg brokers.Config) (brokers.Broker, error) {
	return New(ctx, Config{Broker: cfg})
}

// Config is for programs that open the broker themselves.
type Config struct {
	// Broker has the URL and the settings of every broker. Required: Broker.URL.
	Broker brokers.Config
	// Marshaler converts messages, for services that have their own. A record that its Unmarshal refuses is delivered
	// unchanged. Defaults to [Marshaler].
	Marshaler wkafka.MarshalerUnmarshaler
	// Tracer traces sent and received messages. Optional.
	Tracer wkafka.SaramaTracer
	// Delays keeps delayed messages. The caller closes it. Defaults to the broker of the environment variable
	// x-delays-env.
	Delays brokers.Broker
	// Sarama may change the configuration of sarama: certificates, SCRAM, the protocol's version. It is called for each
	// component.
	Sarama func(*sarama.Config)
}

// New opens a broker. Close it.
func New(ctx context.Context, cfg Config) (brokers.Broker, error) {
	var err error
	if cfg.Broker, err = cfg.Broker.Resolve(Driver{}.Params()); err != nil {
		return nil, err
	}
	cfg.Marshaler = cmp.Or[wkafka.MarshalerUnmarshaler](cfg.Marshaler, Marshaler{})
	c := &client{cfg: cfg, logger: wbroker.Logger(cfg.Broker.Logger)}
	if err := c.configure(); err != nil {
		return nil, fmt.Errorf("watermill+kafka: open %s: %w", brokers.Redact(cfg.Broker.URL), err)
	}
	pub, err := c.connect()
	if err != nil {
		return nil, fmt.Errorf("watermill+kafka: open %s: %w", brokers.Redact(cfg.Broker.URL), err)
	}
	p := cfg.Broker.Params
	return wbroker.Open(ctx, wbroker.Config{
		Publisher:       &publisher{client: c, inner: pub},
		NewSubscriber:   c.subscriber,
		Delays:          cfg.Delays,
		Initialize:      func(ctx context.Context, topic, _ string) error { return c.topics.ensure(ctx, topic) },
		Ping:            c.ping,
		Origin:          origin,
		Durable:         true,
		Ordered:         true, // the messages of one key
		AckGrace:        5 * time.Second,
		MaxMessageBytes: p.Bytes("max-message-bytes") - driver.Headroom - recordOverhead,
		MaxConcurrency:  p.Int("partitions"),
		Broker:          cfg.Broker,
	}, Driver{}.Params(), c.clusterID)
}

// recordOverhead is what a record needs beyond payload and headers: lengths, the id, the frame of a batch.
const recordOverhead = 4 << 10

// client creates watermill-kafka's components for one cluster.
type client struct {
	cfg    Config
	seeds  []string
	logger watermill.LoggerAdapter
	base   func() *sarama.Config
	conn   sarama.Client
	topics *topics
}

// configure reads the URL.
func (c *client) configure() error {
	seeds, user, err := kafkaurl.Parse(c.cfg.Broker.URL)
	if err != nil {
		return err
	}
	c.seeds, c.base = seeds, func() *sarama.Config { return c.sarama(user) }
	return c.base().Validate()
}

// sarama is the configuration of every component.
func (c *client) sarama(user *url.Userinfo) *sarama.Config {
	p := c.cfg.Broker.Params
	s := wkafka.DefaultSaramaSyncPublisherConfig()
	s.ClientID = kafkaurl.ClientID(c.cfg.Broker.Name)
	s.Net.TLS.Enable = p.Bool("tls")
	s.Net.DialTimeout = 10 * time.Second
	if user != nil {
		s.Net.SASL.Enable = true
		s.Net.SASL.User = user.Username()
		s.Net.SASL.Password, _ = user.Password()
	}
	s.Metadata.AllowAutoTopicCreation = false // topics are created as the parameters specify
	s.Metadata.Retry.Backoff = 250 * time.Millisecond
	s.Admin.Timeout = s.Net.ReadTimeout // 3 s would be too short for a busy server to create a topic
	s.Producer.RequiredAcks = sarama.WaitForAll
	s.Producer.Timeout = c.cfg.Broker.PublishTimeout
	s.Producer.MaxMessageBytes = int(p.Bytes("max-message-bytes"))
	s.Producer.Idempotent = true
	s.Net.MaxOpenRequests = 1
	s.Consumer.Return.Errors = true
	s.Consumer.Offsets.Initial = sarama.OffsetOldest
	s.Consumer.IsolationLevel = sarama.ReadCommitted
	s.Consumer.Group.Session.Timeout = p.Duration("session-timeout")
	s.Consumer.Group.Heartbeat.Interval = p.Duration("session-timeout") / 5
	s.Consumer.Group.Rebalance.Timeout = p.Duration("rebalance-timeout")
	if c.cfg.Sarama != nil {
		c.cfg.Sarama(s)
	}
	return s
}

// connect fails when no broker answers.
func (c *client) connect() (*wkafka.Publisher, error) {
	conn, err := sarama.NewClient(c.seeds, c.base())
	if err != nil {
		return nil, err
	}
	admin, err := sarama.NewClusterAdminFromClient(conn)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	pub, err := wkafka.NewPublisher(wkafka.PublisherConfig{
		Brokers: c.seeds, Marshaler: c.cfg.Marshaler, OverwriteSaramaConfig: c.base(), Tracer: c.cfg.Tracer,
	}, c.logger)
	if err != nil {
		return nil, errors.Join(err, admin.Close())
	}
	c.conn, c.topics = conn, newTopics(conn, admin, c.cfg.Broker.Params)
	return pub, nil
}

func (c *client) ping(context.Context) error {
	_, err := c.conn.RefreshController()
	return err
}

// clusterID is the cluster's own, whatever its brokers are called.
func (c *client) clusterID(context.Context) (string, error) {
	controller, err := c.conn.Controller()
	if err != nil {
		return "", err
	}
	found, err := controller.GetMetadata(sarama.NewMetadataRequest(c.conn.Config().Version, nil))
	if err != nil || found.ClusterID == nil {
		return "", err
	}
	return *found.ClusterID, nil
}

func (c *client) close() error { return c.topics.admin.Close() } // and with it the client

// origin is watermill-kafka's information about a record.
func origin(m *message.Message) envelope.Origin {
	var o envelope.Origin
	ctx := m.Context()
	if partition, ok := wkafka.MessagePartitionFromCtx(ctx); ok {
		o.Partition = &partition
	}
	if offset, ok := wkafka.MessagePartitionOffsetFromCtx(ctx); ok {
		o.Offset = &offset
	}
	o.Timestamp, _ = wkafka.MessageTimestampFromCtx(ctx)
	o.Key, _ = wkafka.MessageKeyFromCtx(ctx)
	return o
}

// topics creates missing topics, and remembers existing ones.
type topics struct {
	conn   sarama.Client
	admin  sarama.ClusterAdmin
	make   bool
	detail sarama.TopicDetail

	mu    sync.Mutex
	known map[string]struct{}
}

// maxKnown bounds the remembered topics: their names may come from messages.
const maxKnown = 10_000

func newTopics(conn sarama.Client, admin sarama.ClusterAdmin, p brokers.Params) *topics {
	t := &topics{
		conn: conn, admin: admin, make: p.Bool("auto-create"), known: map[string]struct{}{},
		detail: sarama.TopicDetail{NumPartitions: -1, ReplicationFactor: -1}, // the server's defaults
	}
	if n := p.Int("partitions"); n > 0 {
		t.detail.NumPartitions = int32(n) //nolint:gosec // G115: bounded by the parameter
	}
	return t
}

// ensure returns when topic exists and each of its partitions has a leader.
func (t *topics) ensure(ctx context.Context, topic string) error {
	t.mu.Lock()
	_, known := t.known[topic]
	t.mu.Unlock()
	if known {
		return nil
	}
	err := error(sarama.ErrUnknownTopicOrPartition)
	if !t.make || !t.missing(topic) {
		err = t.conn.RefreshMetadata(topic)
	}
	if err != nil {
		if !errors.Is(err, sarama.ErrUnknownTopicOrPartition) {
			return fmt.Errorf("topic %s: %w", topic, notReady(err))
		}
		if !t.make {
			return fmt.Errorf("topic %s does not exist, and auto-create=false: %w", topic, brokers.ErrUnroutable)
		}
		err := t.admin.CreateTopic(topic, &t.detail, false)
		if err != nil && !errors.Is(err, sarama.ErrTopicAlreadyExists) {
			return fmt.Errorf("create topic %s: %w", topic, notReady(err))
		}
		if err := t.ready(ctx, topic); err != nil {
			return fmt.Errorf("topic %s was created but cannot be used yet: %w", topic, err)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.known) >= maxKnown {
		clear(t.known)
	}
	t.known[topic] = struct{}{}
	return nil
}

// notReady marks the errors of a cluster that starts, elects a leader, or whose nodes are all fenced.
func notReady(err error) error {
	_, passes := errors.AsType[net.Error](err)
	for _, answer := range []error{
		sarama.ErrOutOfBrokers, sarama.ErrNotConnected, sarama.ErrBrokerNotAvailable, sarama.ErrControllerNotAvailable,
		sarama.ErrNotController, sarama.ErrLeaderNotAvailable, sarama.ErrRequestTimedOut, sarama.ErrInvalidReplicationFactor,
		io.EOF, io.ErrUnexpectedEOF,
	} {
		passes = passes || errors.Is(err, answer)
	}
	if passes {
		return fmt.Errorf("%w: %w", driver.ErrTemporary, err)
	}
	return err
}

// missing reports whether topic does not exist according to a broker. RefreshMetadata asks four times, within 750 ms,
// before it does; no wait is needed before creating the topic.
func (t *topics) missing(topic string) bool {
	found, err := t.admin.DescribeTopics([]string{topic})
	return err == nil && len(found) == 1 && errors.Is(found[0].Err, sarama.ErrUnknownTopicOrPartition)
}

// forget makes ensure check again.
func (t *topics) forget(topic string) {
	t.mu.Lock()
	delete(t.known, topic)
	t.mu.Unlock()
}

// checking paces checks of a topic that was just created.
var checking = wait.Backoff{First: 20 * time.Millisecond, Longest: time.Second}

// ready waits until every partition has a leader.
func (t *topics) ready(ctx context.Context, topic string) error {
	for n := 1; ; n++ {
		err := t.hasLeaders(topic)
		if err == nil {
			return nil
		}
		if ended := wait.For(ctx, checking.After(n)); ended != nil {
			return errors.Join(err, ended)
		}
	}
}

func (t *topics) hasLeaders(topic string) error {
	if err := t.conn.RefreshMetadata(topic); err != nil {
		return err
	}
	partitions, err := t.conn.Partitions(topic)
	if err != nil {
		return err
	}
	for _, partition := range partitions {
		if _, err := t.conn.Leader(topic, partition); err != nil {
			return err
		}
	}
	return nil
}
