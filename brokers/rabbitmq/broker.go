package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
)

// Broker is an open RabbitMQ. It keeps two connections: when the broker is short of memory it stops reading from
// connections that publish, and acks sent on such a connection would not arrive. Depths opens a third.
type Broker struct {
	cfg    brokers.Config
	design *design
	logger *slog.Logger

	publishing *link
	consuming  *link // connects with the first subscription
	counting   *link // connects with the first Depths: an answer that does not come costs the connection it was asked on
	sender     *sender

	declared sync.Map // topics whose first-delivery queues exist
	waits    waitQueues

	acksFailed atomic.Uint64

	mu            sync.Mutex // guards closed, and subscriptions.Add against subscriptions.Wait
	closed        bool
	closing       chan struct{} // closed when Close begins
	done          chan struct{} // closed when Close has ended
	subscriptions sync.WaitGroup
}

var _ brokers.Broker = (*Broker)(nil)

func open(ctx context.Context, cfg brokers.Config, d *design) (*Broker, error) {
	b := &Broker{
		cfg:        cfg,
		design:     d,
		logger:     cfg.Logger,
		publishing: newLink(cfg.URL, cfg.Name+" (publish)", cfg.Logger),
		consuming:  newLink(cfg.URL, cfg.Name+" (consume)", cfg.Logger),
		counting:   newLink(cfg.URL, cfg.Name+" (count)", cfg.Logger),
		closing:    make(chan struct{}),
		done:       make(chan struct{}),
	}
	b.sender = newSender(b.publishing, cfg.PublishTimeout)
	if err := b.prepare(ctx); err != nil {
		b.publishing.close()
		return nil, err
	}
	return b, nil
}

// prepare finds at start what would otherwise be found at the first failure.
func (b *Broker) prepare(ctx context.Context) error {
	if err := b.publishing.connectOnce(ctx); err != nil {
		return err
	}
	if b.design.transport == transportPlugin {
		if err := probePlugin(ctx, b.cfg); err != nil {
			return err
		}
	}
	if exchange := b.design.names("", "").Exchange; exchange != "" && b.design.declare == declareAll {
		return declare(ctx, b.publishing, Plan{Exchanges: []Exchange{{Name: exchange, Kind: b.design.exchangeType}}})
	}
	return nil
}

// Publisher implements brokers.Broker.
func (b *Broker) Publisher() message.Publisher { return &publisher{broker: b} }

// Subscriber implements brokers.Broker.
func (b *Broker) Subscriber(opts ...brokers.SubscriberOption) message.Subscriber {
	cfg, err := b.cfg.Subscriber(Driver{}.Params(), opts...)
	return &subscriber{broker: b, cfg: cfg, fault: err, closing: make(chan struct{})}
}

// outgoing makes the publication of m on route r.
func (b *Broker) outgoing(m *message.Message, r route, due time.Time) outgoing {
	o := outgoing{exchange: r.exchange, key: r.key, optional: r.unconfirmable, msg: marshal(m, b.design.intHeaders)}
	if r.checked {
		o.msg.Headers[envelope.KeyNotBefore] = due.Add(time.Millisecond - 1).UnixMilli() // rounded up: never early
		o.msg.Headers[keyRest] = roundUp(r.rest)
	}
	if r.pluginDelay > 0 {
		o.msg.Headers[envelope.KeyDelay] = r.pluginDelay
	}
	return o
}

// namesOf gives the names of the consumer that origin names.
func (b *Broker) namesOf(origin *envelope.Origin) (brokers.Names, error) {
	switch {
	case origin.Consumer != "":
		return b.design.namesOf(origin.Topic, origin.Consumer), nil
	case origin.Topic != "":
		return b.design.names(origin.Topic, b.cfg.Group), nil
	}
	return brokers.Names{}, errors.New("the origin names neither queue nor topic, so there is no consumer to give the message back to")
}

// DeadLetter implements brokers.Broker. The dead letter goes to the scheme's dead letter exchange, or straight to the
// dead letter queue when there is none or it has the queue's name (D25).
func (b *Broker) DeadLetter(ctx context.Context, d *envelope.DeadLetter) error {
	n, err := b.namesOf(&d.Origin)
	if err != nil {
		return fmt.Errorf("rabbitmq: dead letter: %w", err)
	}
	if err := b.checkPayload(d.Message); err != nil {
		return fmt.Errorf("rabbitmq: dead letter to %s: %w", n.Dead, err)
	}
	o := b.outgoing(d.Message, route{key: n.Dead}, time.Time{})
	if n.DeadExchange != "" && n.DeadExchange != n.Dead {
		o.exchange, o.key = n.DeadExchange, originKey(n, &d.Origin)
	}
	if d.Reason != "" && d.Message.Metadata[envelope.KeyDeadLetterReason] == "" {
		o.msg.Headers[envelope.KeyDeadLetterReason] = string(d.Reason)
	}
	for key, value := range map[string]string{
		envelope.KeyTopic: d.Origin.Topic, envelope.KeyConsumer: n.Queue,
		envelope.KeyExchange: d.Origin.Exchange, envelope.KeyRoutingKey: d.Origin.RoutingKey,
	} {
		if value != "" {
			o.msg.Headers[key] = value
		}
	}
	err = b.sender.send(ctx, o)
	if errors.Is(err, brokers.ErrUnroutable) && b.design.declare != declareNone {
		if err := declare(ctx, b.publishing, b.design.dead(n)); err != nil {
			return fmt.Errorf("rabbitmq: dead letter: %w", err)
		}
		err = b.sender.send(ctx, o)
	}
	return err
}

// checkPayload refuses what the broker would answer by closing the channel.
func (b *Broker) checkPayload(m *message.Message) error {
	if limit := b.design.maxMessage; limit > 0 && int64(len(m.Payload)) > limit {
		return fmt.Errorf("%w: the payload has %d bytes, x-max-message allows %d", brokers.ErrTooLarge, len(m.Payload), limit)
	}
	return nil
}

// Capabilities implements brokers.Broker.
func (b *Broker) Capabilities() brokers.Capabilities {
	c := brokers.Capabilities{
		Scheme:          Scheme,
		Durable:         true,
		Ordered:         b.cfg.Concurrency == 1,
		Groups:          b.design.names("t", "").Exchange != "",
		Patterns:        b.cfg.Naming.Patterns,
		DeliveryCount:   b.design.queueType == quorum,
		MaxDelay:        b.design.maxDelay(),
		DelayTolerance:  100 * time.Millisecond,
		MaxMessageBytes: b.design.maxMessage,
		MaxHeaderBytes:  128<<10 - 4<<10, // one frame, less what the properties may take
		MaxConcurrency:  65535,
	}
	if b.design.transport == transportReject {
		c.DelayTolerance = b.design.retryTTL
	}
	return c
}

// Ping implements brokers.Broker. It asks on the publishing connection, and reconnects it once if need be.
func (b *Broker) Ping(ctx context.Context) error {
	if err := b.publishing.connectOnce(ctx); err != nil {
		return fmt.Errorf("rabbitmq: ping: %w", err)
	}
	if err := b.publishing.awaitRelief(ctx); err != nil {
		return err
	}
	d := &declarer{link: b.publishing}
	defer d.close(ctx)
	if err := d.do(ctx, ping); err != nil {
		return fmt.Errorf("rabbitmq: ping: %w", err)
	}
	return nil
}

// Close implements brokers.Broker.
func (b *Broker) Close() error {
	b.mu.Lock()
	first := !b.closed
	b.closed = true
	b.mu.Unlock()
	if !first {
		<-b.done
		return nil
	}
	defer close(b.done)
	close(b.closing)
	b.subscriptions.Wait() // handlers may publish until here
	b.sender.close()
	b.counting.close()
	b.consuming.close()
	b.publishing.close()
	return nil
}

// begin counts a subscription that Close has to wait for. It reports false when the broker is closing.
func (b *Broker) begin() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.subscriptions.Add(1)
	return true
}

// Stats are gauges of what the broker holds open, and a counter of acks that failed.
type Stats struct {
	Connections int // at most 2, and 1 for Depths once it has been asked for
	Channels    int // a fixed few for publishing, and one per subscription

	// AcksFailed counts, since Open, messages that were handled and are delivered again because their channel ended before
	// their acks could be sent (D26). An ack that was sent and lost with the connection on its way is not known here.
	AcksFailed uint64
}

// Stats returns the connections and channels that are open now (D13), and how many acks have failed.
func (b *Broker) Stats() Stats {
	s := Stats{AcksFailed: b.acksFailed.Load()}
	for _, l := range []*link{b.publishing, b.consuming, b.counting} {
		connections, channels := l.counts()
		s.Connections += connections
		s.Channels += channels
	}
	return s
}

// Counts is Stats for brokermetrics.
func (b *Broker) Counts() (connections, channels int) {
	s := b.Stats()
	return s.Connections, s.Channels
}

// AcksFailed is that of Stats, for brokermetrics.
func (b *Broker) AcksFailed() uint64 { return b.acksFailed.Load() }
