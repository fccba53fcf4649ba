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

// Schemes of the URLs that this driver opens.
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

// topologyParams configure what is declared.
func topologyParams() []brokers.Param {
	return []brokers.Param{
		{
			Name: "transport", OneOf: []string{transportTTL, transportPlugin, transportReject},
			Doc: "How a delay is waited for: ttl (delay queues), plugin (x-delayed-message) or reject (the queue's own TTL " +
				"cycle). With naming=ttl-cycle the default is reject, otherwise ttl.",
		},
		{
			Name: "declare", Default: declareAll, OneOf: []string{declareAll, declareAdopt, declareNone, declareRead},
			Doc: "What to declare: all, adopt (what is missing; what exists is taken as it is), none (all must be there) or " +
				"read (none; only the queue that is read must be there, for programs that never retry, such as a collector of " +
				"dead letters).",
		},
		{
			Name: "prefetch", Type: brokers.Int, Default: "1", Min: 1, Max: 65535,
			Doc: "Messages that the broker sends ahead to one subscription; never fewer than its concurrency.",
		},
		{
			Name: "queue-type", OneOf: []string{quorum, classic},
			Doc: "Type of the consumers' queues: quorum by default; with declare=adopt, that of the existing queues.",
		},
		{
			Name: "retry-queue-type", OneOf: []string{quorum, classic},
			Doc: "Type of delay and dead letter queues, with the same default. With classic, a broker that is killed can lose " +
				"waiting messages.",
		},
		{
			Name: "delivery-limit", Type: brokers.Int, Default: strconv.Itoa(noLimit), Min: 1, Max: noLimit,
			Doc: "Deliveries after which the broker itself dead-letters a message, however they ended. Quorum queues only.",
		},
		driver.CrashLimit(),
		{
			Name: "grid", Type: brokers.Bool, Default: "true",
			Doc: "Delays that the parameter delays does not name: true gives them up to 21 queues per consumer, declared when " +
				"first needed; false waits in the queues of those that it names, and where it names none in one queue, in which " +
				"a shorter delay may wait behind a longer one. Transport ttl only.",
		},
		{
			Name: "retry-ttl", Type: brokers.Duration, Min: int64(time.Millisecond), Max: int64(envelope.MaxDelay),
			Doc: "Time to live of the wait queue; by default the one delay of the policy, or 5s. Transport reject only.",
		},
	}
}

// deliveryParams configure how messages are sent and delivered.
func deliveryParams() []brokers.Param {
	return []brokers.Param{
		{
			Name: "max-message", Type: brokers.Size, Default: "16MiB",
			Doc: "Largest message in bytes, payload and headers together. It should be the broker's max_message_size: 16 MiB " +
				"from RabbitMQ 4.0 on, 128 MiB before. 0 leaves it to the broker.",
		},
		driver.NackPause(),
		{
			Name: "management",
			Doc: "Address of the management API, such as http://localhost:15672, by which Check sees bindings and policies; " +
				"user and password are those of the URL.",
		},
	}
}

// nativeParams are those of AMQP URIs, which amqp091-go reads.
func nativeParams() []brokers.Param {
	native := func(name, doc string) brokers.Param { return brokers.Param{Name: name, Native: true, Doc: doc} }
	return []brokers.Param{
		native("heartbeat", "Seconds between heartbeats."),
		native("connection_timeout", "Milliseconds for connecting."),
		native("channel_max", "Most channels per connection."),
		native("auth_mechanism", "SASL mechanism."),
		native("cacertfile", "File with the authority of the server's certificate."),
		native("certfile", "File with the client's certificate."),
		native("keyfile", "File with the client's key."),
		native("server_name_indication", "Name expected in the server's certificate."),
	}
}

// Open implements brokers.Driver. The broker is a *Broker. Open connects, so that it reports a wrong address or
// password, and checks what the transport needs.
func (Driver) Open(ctx context.Context, cfg brokers.Config) (brokers.Broker, error) {
	d, err := newDesign(cfg)
	var b *Broker
	if err == nil {
		b, err = open(ctx, cfg, d)
	}
	if err != nil {
		return nil, fmt.Errorf("rabbitmq: open %s: %w", brokers.Redact(cfg.URL), err)
	}
	return b, nil
}

// newDesign reads the parameters and reports all conflicts between them.
func newDesign(cfg brokers.Config) (*design, error) {
	p := cfg.Params
	d := &design{
		naming:         cfg.Naming,
		transport:      p.String("transport"),
		named:          driver.NewSteps(cfg.Delays...),
		delays:         delaySteps(cfg.Delays, p.Bool("grid")),
		declare:        p.String("declare"),
		queueType:      cmp.Or(p.String("queue-type"), quorum),
		retryQueueType: cmp.Or(p.String("retry-queue-type"), quorum),
		typed:          p.String("queue-type") != "" || p.String("retry-queue-type") != "",
		deliveryLimit:  p.Int("delivery-limit"),
		maxMessage:     p.Bytes("max-message"),
	}
	d.fixedTTL = p.String("retry-ttl") != ""
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
		d.single = preset == "laravel" || preset == "delayed-backoff" || !p.Bool("grid") && len(d.named) == 0
	}
	if preset == "service-bus" || preset == "delayed-backoff" { // their consumers read numbers
		d.intHeaders = []string{envelope.KeyRetryCount, envelope.KeyOriginalDelay}
	}

	var faults []error
	if address := p.String("management"); address != "" {
		var err error
		d.management, err = newManagement(address, &cfg)
		faults = append(faults, err)
	}
	if limit := p.Int("crash-limit"); d.queueType == quorum && limit >= d.deliveryLimit {
		faults = append(faults, fmt.Errorf("crash-limit %d must be below delivery-limit %d, otherwise the broker "+
			"dead-letters first",
			limit, d.deliveryLimit))
	}
	return d, errors.Join(faults...)
}
