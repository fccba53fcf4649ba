package rabbitmq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/envelope"
)

// Schemes of the URLs that open this broker.
const (
	Scheme    = "amqp"
	SchemeTLS = "amqps"
)

func init() {
	brokers.Register(Scheme, Driver{})
	brokers.Register(SchemeTLS, Driver{})
}

// defaultRetryTTL is how long a rejected message waits by default.
const defaultRetryTTL = 5 * time.Second

// Driver opens amqp:// and amqps:// URLs. Importing the package registers it in the shared Mux; programs with a
// separate Mux register it there.
type Driver struct{}

var _ brokers.Driver = Driver{}

// Params implements brokers.Driver.
func (Driver) Params() []brokers.Param {
	return slices.Concat(topologyParams(), deliveryParams(), nativeParams())
}

// topologyParams are about what is declared.
func topologyParams() []brokers.Param {
	return []brokers.Param{
		{
			Name: "transport", OneOf: []string{transportTTL, transportPlugin, transportReject},
			Doc: "how delays are waited for: ttl (delay queues), plugin (x-delayed-message) or reject (the queue's own TTL " +
				"cycle); ttl unless naming is ttl-cycle",
		},
		{
			Name: "declare", Default: declareAll, OneOf: []string{declareAll, declareAdopt, declareNone, declareRead},
			Doc: "what to declare: all, adopt (what is missing; what exists is taken as it is), none (all must be there) or " +
				"read (none; only the queue that is read must be there, for programs that never retry, such as a collector of " +
				"dead letters)",
		},
		{
			Name: "prefetch", Kind: brokers.Int, Default: "1", Min: 1, Max: 65535,
			Doc: "messages that the broker sends ahead to one subscription; at least as many as its concurrency",
		},
		{
			Name: "queue-type", OneOf: []string{quorum, classic},
			Doc: "type of the consumers' queues; quorum, and with declare=adopt that of the queues that are there",
		},
		{
			Name: "retry-queue-type", OneOf: []string{quorum, classic},
			Doc: "type of delay and dead letter queues, likewise; with classic a broker that is killed can lose waiting " +
				"messages",
		},
		{
			Name: "delivery-limit", Kind: brokers.Int, Default: strconv.Itoa(noLimit), Min: 1,
			Doc: "deliveries after which the broker itself dead-letters a message, whatever they ended by; quorum queues only",
		},
		{
			Name: "crash-limit", Kind: brokers.Int, Default: "5",
			Doc: "how often a message may end its process before it is dead-lettered; those that were delivered twice without " +
				"an answer run apart; 0 means never; needs quorum queues",
		},
		{
			Name: "grid", Default: "on", OneOf: []string{"on", "off", "true", "false"},
			Doc: "up to 21 queues per consumer, declared when first needed, for delays that delays does not name; off: those " +
				"that it names serve them too, and where it names none, one queue, in which a shorter delay may wait behind a " +
				"longer one; transport ttl only",
		},
		{
			Name: "tolerance", Kind: brokers.Int, Default: "1", Min: 1, Max: 50,
			Doc: "how late a delay may end, in percent of itself; more means fewer steps for jittered delays; transport ttl " +
				"only",
		},
		{
			Name: "retry-ttl", Kind: brokers.Duration, Min: int64(time.Millisecond), Max: int64(envelope.MaxDelay),
			Doc: "time to live of the wait queue; the one delay of the policy, or 5s, unless given; transport reject only",
		},
		{
			Name: "exchange-type", OneOf: []string{"direct", "topic", "fanout", "headers"},
			Doc: "type of the producers' exchange; topic with a naming scheme of patterns, else direct",
		},
	}
}

// deliveryParams are about messages.
func deliveryParams() []brokers.Param {
	return []brokers.Param{
		{
			Name: "int-headers", Kind: brokers.StringList,
			Doc: "headers that are sent as integers; x-retry-count and x-original-delay with naming service-bus and " +
				"delayed-backoff, whose consumers read numbers",
		},
		{
			Name: "max-message", Kind: brokers.Size, Default: "16MiB",
			Doc: "largest message in bytes, payload and headers together, which should be the broker's max_message_size (16 " +
				"MiB from RabbitMQ 4.0 on, 128 MiB before); 0 leaves it to the broker",
		},
		{
			Name: "nack-pause", Kind: brokers.Duration, Default: "100ms", Min: int64(time.Millisecond), Max: int64(time.Minute),
			Doc: "pause before a nacked message is handed out again; doubled at each further nack, up to 64 times",
		},
		{
			Name: "management",
			Doc: "address of the management API, such as http://localhost:15672, which Check asks for bindings; user and " +
				"password are the URL's",
		},
	}
}

// nativeParams are those of AMQP URIs, which amqp091-go reads.
func nativeParams() []brokers.Param {
	native := func(name, doc string) brokers.Param { return brokers.Param{Name: name, Native: true, Doc: doc} }
	return []brokers.Param{
		native("heartbeat", "seconds between heartbeats"),
		native("connection_timeout", "milliseconds for connecting"),
		native("channel_max", "most channels per connection"),
		native("auth_mechanism", "SASL mechanism"),
		native("cacertfile", "file with the authority of the server's certificate"),
		native("certfile", "file with the client's certificate"),
		native("keyfile", "file with the client's key"),
		native("server_name_indication", "name expected in the server's certificate"),
	}
}

// Open implements brokers.Driver. The broker is a *Broker. Open connects, so that a wrong address or password is found
// here, and checks what the transport needs.
func (Driver) Open(ctx context.Context, cfg brokers.Config) (brokers.Broker, error) {
	d, err := newDesign(cfg)
	if err != nil {
		return nil, fmt.Errorf("rabbitmq: open %s: %w", brokers.Redact(cfg.URL), err)
	}
	b, err := open(ctx, cfg, d)
	if err != nil {
		return nil, fmt.Errorf("rabbitmq: open %s: %w", brokers.Redact(cfg.URL), err)
	}
	return b, nil
}

func isOn(value string) bool { return value == "on" || value == "true" }

// newDesign reads the parameters and reports all that do not fit together.
func newDesign(cfg brokers.Config) (*design, error) {
	p := cfg.Params
	d := &design{
		naming:         cfg.Naming,
		transport:      p.String("transport"),
		named:          driver.NewSteps(cfg.Delays...),
		ladder:         newLadder(cfg.Delays, isOn(p.String("grid")), p.Int("tolerance")),
		declare:        p.String("declare"),
		queueType:      cmp.Or(p.String("queue-type"), quorum),
		retryQueueType: cmp.Or(p.String("retry-queue-type"), quorum),
		typed:          p.String("queue-type") != "" || p.String("retry-queue-type") != "",
		deliveryLimit:  p.Int("delivery-limit"),
		exchangeType:   p.String("exchange-type"),
		intHeaders:     p.Strings("int-headers"),
		maxMessage:     p.Bytes("max-message"),
	}
	d.ownTTL = p.String("retry-ttl") != ""
	d.retryTTL.Store(int64(cmp.Or(p.Duration("retry-ttl"), defaultRetryTTL)))
	d.expect(d.named)
	preset := cfg.Naming.Preset
	if d.transport == "" {
		d.transport = transportTTL
		if preset == "ttl-cycle" {
			d.transport = transportReject
		}
	}
	if d.transport == transportTTL && !cfg.Naming.PerDelay() {
		d.single = preset == "laravel" || preset == "delayed-backoff" || !isOn(p.String("grid")) && len(d.named) == 0
	}
	if d.exchangeType == "" {
		d.exchangeType = "direct"
		if cfg.Naming.Patterns {
			d.exchangeType = "topic"
		}
	}
	if d.intHeaders == nil && (preset == "service-bus" || preset == "delayed-backoff") {
		d.intHeaders = []string{envelope.KeyRetryCount, envelope.KeyOriginalDelay}
	}

	var faults []error
	if address := p.String("management"); address != "" {
		var err error
		d.management, err = newManagement(address, cfg.URL)
		faults = append(faults, err)
	}
	if limit := p.Int("crash-limit"); d.queueType == quorum && limit >= d.deliveryLimit {
		faults = append(faults, fmt.Errorf("crash-limit %d must be below delivery-limit %d, else the broker dead-letters "+
			"first",
			limit, d.deliveryLimit))
	}
	for _, delay := range cfg.Delays {
		if delay > envelope.MaxDelay {
			faults = append(faults, fmt.Errorf("delay %s: the longest is %s", delay, envelope.MaxDelay))
		}
	}
	return d, errors.Join(faults...)
}
