package watermill

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/brokers/portable"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/scheme"
)

// Config configures a broker.
type Config struct {
	// Publisher stores messages: its Publish must not return before they are as safe as the Pub/Sub can make them. The
	// broker closes it. Required.
	Publisher message.Publisher
	// Subscriber reads topics for the one group of Broker.Group. The broker closes it. Either this or NewSubscriber is
	// required.
	Subscriber message.Subscriber
	// NewSubscriber returns a subscriber that reads for a group, brokers.DefaultGroup if a consumer names none. It is
	// called once for each subscription, which closes it.
	NewSubscriber func(group string) (message.Subscriber, error)
	// Delays keeps messages until they are due: a SQL queue, or memory in tests. It must identify consumers by their
	// group, as these two do. The caller closes it after the broker. Without it nothing can be delayed.
	Delays brokers.Broker

	// Server identifies the server of the Pub/Sub among those that share Delays: its messages wait under that name, and
	// only brokers with the same name return them. It must be the same in every process, and must not change while
	// messages wait. Required with Delays.
	Server string

	// Initialize prepares the Pub/Sub to keep the messages of topic for group from now on. It is called before a group
	// reads its topic, and for the group's dead letters, which may have no reader yet. Defaults to the subscriber's
	// SubscribeInitialize, if any, and then only for the topic.
	Initialize func(ctx context.Context, topic, group string) error
	// Ping checks that the Pub/Sub answers. Defaults to none.
	Ping func(ctx context.Context) error

	// Competing means that the subscriptions of one group share its messages. The broker then opens one for each handler
	// that may run at once, because the subscriber delivers one message at a time.
	Competing bool
	// AckGrace bounds how long a closing subscription waits for the subscriber to process the last acks: most lose an ack
	// if they are closed right after it. Watermill's own adapters cancel the message's context once they have processed
	// it. Defaults to 0, no wait.
	AckGrace time.Duration
	// Origin returns what the subscriber knows of a message's origin: partition, offset, key, timestamp. Optional.
	Origin func(m *message.Message) envelope.Origin
	// Durable, Ordered, MaxMessageBytes, MaxHeaderBytes and MaxConcurrency describe the Pub/Sub for Capabilities.
	Durable, Ordered                bool
	MaxMessageBytes, MaxHeaderBytes int64
	MaxConcurrency                  int

	// Broker has the settings of every broker: Name, Group, Concurrency, DrainTimeout, PublishTimeout, Naming, Logger. Its
	// URL is only displayed, and defaults to watermill://.
	Broker brokers.Config
}

// Scheme of the URL of a broker that New was given none for.
const Scheme = "watermill"

// Validate reports every fault of c at once.
func (c Config) Validate() error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if isNil(c.Publisher) {
		fault("Publisher is required")
	}
	switch {
	case c.NewSubscriber == nil && isNil(c.Subscriber):
		fault("Subscriber, for one group, or NewSubscriber, for any, is required")
	case c.NewSubscriber != nil && !isNil(c.Subscriber):
		fault("Subscriber and NewSubscriber exclude each other")
	}
	if c.AckGrace < 0 {
		fault("AckGrace is %s: it cannot be negative", c.AckGrace)
	}
	if c.MaxMessageBytes < 0 {
		fault("MaxMessageBytes is %d: it cannot be negative; 0 means no limit", c.MaxMessageBytes)
	}
	if c.Delays != nil && c.Delays.Capabilities().MaxDelay == 0 {
		fault("Delays: a %s broker cannot delay as configured", c.Delays.Capabilities().Scheme)
	}
	if c.Delays != nil && c.Server == "" {
		fault("Server is required with Delays: other servers may share them, and would get the delayed messages of this one")
	}
	return errors.Join(errs...)
}

func isNil(v any) bool {
	if v == nil {
		return true
	}
	r := reflect.ValueOf(v)
	return r.Kind() == reflect.Pointer && r.IsNil()
}

// New returns a broker for cfg, or an error with every fault of it. Close it.
func New(cfg Config) (brokers.Broker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("brokers/watermill: invalid config: %w", err)
	}
	cfg.Broker.URL = cmp.Or(cfg.Broker.URL, Scheme+"://")
	resolved, err := cfg.Broker.Resolve(Params())
	if err != nil {
		return nil, err
	}
	return open(context.Background(), &transport{cfg: cfg, broker: resolved}, Params())
}

// Open is [New] for drivers, whose Config.Broker is resolved and whose parameters start with [Params] or [URLParams].
// With the latter, Delays defaults to the broker that the environment variable names, which is closed with the returned
// one, and Server to the parameter, then to what identify returns. If Open fails, it closes the publisher and the
// subscriber.
func Open(ctx context.Context, cfg Config, params []brokers.Param, identify func(context.Context) (string, error),
) (_ brokers.Broker, err error) {
	t := &transport{cfg: cfg, broker: cfg.Broker, identify: identify}
	defer func() {
		if err != nil && !isNil(cfg.Publisher) {
			err = errors.Join(err, t.Close(context.WithoutCancel(ctx)))
		}
	}()
	if cfg.Delays == nil {
		if t.cfg.Delays, err = openDelays(ctx, cfg.Broker); err != nil {
			return nil, err
		}
		t.ownsDelays = t.cfg.Delays != nil
	}
	if t.cfg.Delays != nil && t.cfg.Server == "" {
		if t.cfg.Server, err = t.identity(ctx); err != nil {
			return nil, err
		}
	}
	if err := t.cfg.Validate(); err != nil {
		return nil, fmt.Errorf("brokers/watermill: invalid config: %w", err)
	}
	return open(ctx, t, params)
}

// Params are the parameters of every broker of this package.
func Params() []brokers.Param {
	return []brokers.Param{driver.NackPause()}
}

func open(ctx context.Context, t *transport, params []brokers.Param) (brokers.Broker, error) {
	return portable.New(portable.Config{ //nolint:contextcheck // the broker outlives ctx
		Config: t.broker, Params: params, Transport: t, Delays: t.cfg.Delays,
		DelaysTopic: firstTopic(t.broker.URL, t.cfg.Server), Context: ctx,
	})
}

var (
	_ driver.Transport    = (*transport)(nil)
	_ driver.RetryChecker = (*transport)(nil)
	_ driver.Stream       = (*stream)(nil)
	_ driver.Contexts     = (*stream)(nil)
	_ driver.Renewer      = (*stream)(nil)
)

// Logger adapts l to Watermill's components. They report every message three or four times at levels that are rarely
// logged, and Watermill's own adapter converts the fields of each report before it checks the level.
func Logger(l *slog.Logger) watermill.LoggerAdapter { return leveled{watermill.NewSlogLogger(l), l} }

type leveled struct {
	watermill.LoggerAdapter

	log *slog.Logger
}

// Debug implements watermill.LoggerAdapter.
func (l leveled) Debug(msg string, fields watermill.LogFields) {
	if l.log.Enabled(context.Background(), slog.LevelDebug) {
		l.LoggerAdapter.Debug(msg, fields)
	}
}

// Trace implements watermill.LoggerAdapter.
func (l leveled) Trace(msg string, fields watermill.LogFields) {
	if l.log.Enabled(context.Background(), watermill.LevelTrace) {
		l.LoggerAdapter.Trace(msg, fields)
	}
}

// With implements watermill.LoggerAdapter.
func (l leveled) With(fields watermill.LogFields) watermill.LoggerAdapter {
	return leveled{l.LoggerAdapter.With(fields), l.log}
}

// DelaysEnv is the default environment variable of x-delays-env.
const DelaysEnv = "REDRIVE_DELAYS_URL"

// delaysParam names the variable; serverParam is Config.Server.
const (
	delaysParam = "delays-env"
	serverParam = "delays-server"
)

// URLParams are the parameters of drivers that open a Pub/Sub by URL: [Params], and the source of the URL of Delays.
func URLParams(more ...brokers.Param) []brokers.Param {
	params := append(Params(), brokers.Param{
		Name: delaysParam, Default: DelaysEnv,
		Doc: "Environment variable with the URL of the broker in which delayed messages wait; without it nothing can be " +
			"delayed.",
	}, brokers.Param{
		Name: serverParam,
		Doc: "Name of the server in Delays. If the server is replaced while messages wait, set it to the name that the log " +
			"of the old one shows. Defaults to the server's own name.",
	})
	return append(params, more...)
}

// openDelays opens the broker whose URL is in the environment variable named by x-delays-env, or returns nil if there
// is none.
func openDelays(ctx context.Context, cfg brokers.Config) (brokers.Broker, error) {
	name := cfg.Params.String(delaysParam)
	if name == "" || os.Getenv(name) == "" {
		return nil, nil //nolint:nilnil // no Delays is a configuration
	}
	delays, err := brokers.Open(ctx, os.Getenv(name))
	if err != nil {
		return nil, fmt.Errorf("brokers/watermill: delays (%s): %w", name, err)
	}
	return delays, nil
}

// identity returns the name of the server in Delays: the parameter, or the server's own name.
func (t *transport) identity(ctx context.Context) (string, error) {
	if name := t.broker.Params.String(serverParam); name != "" {
		return name, nil
	}
	server, err := t.identify(ctx)
	if err == nil && server == "" {
		err = errors.New("the server has none")
	}
	if err != nil {
		return "", fmt.Errorf("brokers/watermill: name of the server in Delays: %w; set x-%s", err, serverParam)
	}
	t.broker.Logger.Info("brokers/watermill: delayed messages of this server wait under its name", serverParam, server)
	return server, nil
}

// digest shortens the name of a server for names in Delays.
func digest(server string) string {
	sum := sha256.Sum256([]byte(server))
	return hex.EncodeToString(sum[:5])
}

// kindOf returns kafka for watermill+kafka://, because brokers of several kinds may share their Delays.
func kindOf(url string) string {
	name, _, _ := strings.Cut(url, ":")
	return scheme.Native(name)
}

// firstTopic is where the first deliveries of a server's brokers wait in Delays: each of them forwards what is there.
func firstTopic(url, server string) string {
	return "redrive_" + kindOf(url) + "_first_deliveries_" + digest(server)
}

// RetryTopic is where the retries of a consumer wait in the Delays of a broker with that URL. No other consumer's wait
// there, and none of another server. Its name ends in {server} if server is empty, because only that server knows it.
func RetryTopic(url, server, topic, consumer string) string {
	end := "{server}"
	if server != "" {
		end = digest(server)
	}
	return topic + "." + cmp.Or(consumer, brokers.DefaultGroup) + "." + kindOf(url) + "_retries_" + end
}

const (
	delaysConsumer = "redrive" // the consumer of every retry
	delayedPrefix  = "x-parked-"
)

// delayedKeys are headers of a message that the Delays broker would interpret.
var delayedKeys = []string{
	envelope.KeyStage, envelope.KeySuspect, envelope.KeyNotBefore, envelope.KeyTopic, envelope.KeyConsumer,
	envelope.KeyDelay, envelope.KeyWatermillDelayedFor, envelope.KeyWatermillDelayedUntil,
}

// putRetry stores a message for one consumer in the Delays broker.
func (t *transport) putRetry(ctx context.Context, o *driver.Outgoing) error {
	if t.cfg.Delays == nil {
		return fmt.Errorf("%w: a message cannot be sent to a single consumer: configure Delays", brokers.ErrUnsupported)
	}
	if o.ExistingOnly {
		ctx = envelope.WithExistingOnly(ctx)
	}
	m := render(o)
	for _, key := range delayedKeys {
		if value, ok := m.Metadata[key]; ok {
			m.Metadata[delayedPrefix+key] = value
			delete(m.Metadata, key)
		}
	}
	delay := time.Duration(0)
	if !o.Due.IsZero() {
		delay = max(time.Until(o.Due), 0)
	}
	origin := envelope.Origin{
		Topic: RetryTopic(t.broker.URL, t.cfg.Server, o.To.Topic, o.To.Consumer), Consumer: delaysConsumer,
	}
	if err := t.cfg.Delays.Reschedule(ctx, origin, m, delay); err != nil {
		return fmt.Errorf("delays: %w", err)
	}
	return nil
}

// delayed restores a message that comes from the Delays broker.
func delayed(m *message.Message) *message.Message {
	out := message.NewMessage(m.UUID, bytes.Clone(m.Payload))
	maps.Copy(out.Metadata, m.Metadata)
	for _, key := range delayedKeys {
		delete(out.Metadata, key)
		if value, ok := m.Metadata[delayedPrefix+key]; ok {
			out.Metadata[key] = value
			delete(out.Metadata, delayedPrefix+key)
		}
	}
	return out
}

// subscribeRetries reads the retries of a consumer.
func (t *transport) subscribeRetries(ctx context.Context, q *driver.Queue) (
	message.Subscriber, <-chan *message.Message, error,
) {
	sub := t.cfg.Delays.Subscriber(brokers.WithGroup(delaysConsumer), brokers.WithConcurrency(q.Concurrency),
		driver.WithoutCrashLimit(t.cfg.Delays))
	messages, err := sub.Subscribe(ctx, RetryTopic(t.broker.URL, t.cfg.Server, q.Topic, q.Group))
	if err != nil {
		_ = sub.Close()
		return nil, nil, fmt.Errorf("delays: %w", err)
	}
	return sub, messages, nil
}
