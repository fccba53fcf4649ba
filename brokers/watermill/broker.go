package watermill

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/brokers/portable"
	"github.com/redrive-go/redrive/envelope"
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
	t := &transport{cfg: cfg, broker: cfg.Broker}
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
		if t.cfg.Server, err = t.identity(ctx, identify); err != nil {
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
