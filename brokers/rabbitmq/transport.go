package rabbitmq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/envelope"
)

// transport is RabbitMQ as the engine sees it. It does not consume on the connection that publishes: a broker that is
// short of memory stops reading from those, and acks sent there would not arrive.
type transport struct {
	cfg    brokers.Config
	design *design
	logger *slog.Logger

	declared sync.Map // names of queues that were as planned, or led back
	harms    sync.Map // what the last look at each queue found to be harmful

	publishing *connection
	consuming  *connection // connects with the first subscription
	asking     *connection // connects when needed, for what may cost the connection
	troubled   sync.Map    // names of queues that may have no leader, and are consumed on asking

	// Each kind of destination has a separate channel, because RabbitMQ ends the channel of a publication to a missing
	// exchange, and with it everything in flight there.
	senders [driver.ToDeadLetters + 1]*sender

	consumed consumed
	checking sync.Once // starts keepDeclared
	waits    waitQueues
}

var (
	_ driver.Transport      = (*transport)(nil)
	_ driver.Namer          = (*transport)(nil)
	_ driver.Expecter       = (*transport)(nil)
	_ brokers.DepthReporter = (*transport)(nil)
	_ driver.ReaderCounter  = (*transport)(nil)
)

func connect(ctx context.Context, cfg brokers.Config, d *design) (*transport, error) {
	publishing := newConnection(cfg.URL, cfg.Name+" (publish)", cfg.Logger)
	t := &transport{
		cfg:        cfg,
		design:     d,
		logger:     cfg.Logger,
		publishing: publishing,
		consuming:  newConnection(cfg.URL, cfg.Name+" (consume)", cfg.Logger),
		asking:     newConnection(cfg.URL, cfg.Name+" (declare)", cfg.Logger),
		waits:      waitQueues{known: map[string]*waitQueue{}},
	}
	for kind := range t.senders {
		t.senders[kind] = &sender{link: publishing, turn: make(turn, 1)}
	}
	if err := t.prepare(ctx); err != nil {
		t.publishing.close()
		return nil, err
	}
	return t, nil
}

// prepare detects faults at start that would otherwise surface with the first failing message.
func (t *transport) prepare(ctx context.Context) error {
	if err := t.publishing.connectOnce(ctx); err != nil {
		return err
	}
	if t.design.transport == transportPlugin {
		if err := probePlugin(ctx, t.cfg); err != nil {
			return err
		}
	}
	if exchange := t.design.names("", "").Exchange; exchange != "" && t.design.declares() {
		return declare(ctx, t.publishing, t.design.permitted(
			Plan{Exchanges: []Exchange{t.design.exchange(exchange)}}))
	}
	return nil
}

// Traits implements driver.Transport. Acks wait a few milliseconds for others: those messages were handled, and are
// redelivered if the process dies.
func (t *transport) Traits() driver.Traits {
	return driver.Traits{
		Name: "rabbitmq", Prompt: true, Early: true, ConsumerIsQueue: true,
		SettleBatch: 1024, SettleLinger: 5 * time.Millisecond, SettleFrees: true,
	}
}

// Capabilities implements driver.Transport.
func (t *transport) Capabilities() brokers.Capabilities {
	d := t.design
	c := brokers.Capabilities{
		Scheme:          Scheme,
		Durable:         true,
		Ordered:         t.cfg.Concurrency == 1,
		Groups:          d.names("t", "").Exchange != "",
		Patterns:        t.cfg.Naming.Patterns,
		DeliveryCount:   d.queueType == quorum,
		MaxDelay:        d.maxDelay(),
		DelayTolerance:  100 * time.Millisecond,
		MaxMessageBytes: d.maxMessage,
		MaxHeaderBytes:  128<<10 - 4<<10, // one frame, minus the properties and the headers added by a retry
		MaxConcurrency:  65535,
	}
	if d.transport == transportReject {
		c.DelayTolerance = d.ttl()
	}
	return c
}

// Expect implements driver.Expecter: with transport=reject the one delay of the pipelines' retries is the time to live
// of the wait queue, unless retry-ttl is given.
func (t *transport) Expect(delays []time.Duration) { t.design.expect(delays) }

// NamesFor implements driver.Namer.
func (t *transport) NamesFor(topic, group string) brokers.Names { return t.design.names(topic, group) }

// NamesOf implements driver.Namer.
func (t *transport) NamesOf(topic, queue string) brokers.Names { return t.design.namesOf(topic, queue) }

// Declare implements driver.Transport.
func (t *transport) Declare(ctx context.Context, q driver.Queue) error {
	plan := t.design.consumer(q.Names, q.Topic, q.Patterns)
	err := declare(ctx, t.asking, plan)
	if errors.Is(err, errNoAnswer) {
		t.troubled.Store(q.Names.Queue, true) // it may exist now, without a leader
	}
	if _, before := t.declared.Load(q.Names.Queue); before {
		err = t.declareAround(ctx, plan, &q.Names, err)
	}
	if err != nil {
		return err
	}
	t.asPlanned(plan)
	group := q.Group
	if group == brokers.DefaultGroup { // no group was configured
		group = ""
	}
	of := func(kind brokers.DepthKind) brokers.Depth {
		return brokers.Depth{Topic: q.Topic, Group: group, Kind: kind}
	}
	waiting := t.design.waiting(q.Names, q.Topic)
	t.waits.add(of(brokers.DepthReady), Queue{Name: q.Names.Queue})
	t.waits.add(of(brokers.DepthRetry), waiting.Queues...)
	t.waits.addLater(of(brokers.DepthRetry), waiting.Later...)
	t.waits.add(of(brokers.DepthDeadLetter), Queue{Name: q.Names.Dead})
	return nil
}

// asPlanned records the queues of p, which has been declared.
func (t *transport) asPlanned(p Plan) {
	for _, q := range slices.Concat(p.Queues, p.adopted()) {
		t.declared.Store(q.Name, true)
	}
}

// declareAround continues the declaration of p if err only means that an operator has recreated the consumer's queues
// with other arguments: messages can be read from and stored in its own and that of its dead letters. The others, also
// those that are declared when first needed, must lead back: otherwise a retry would be lost in them.
func (t *transport) declareAround(ctx context.Context, p Plan, names *brokers.Names, err error) error {
	d := &declarer{link: t.asking}
	defer d.close(ctx)
	var differs *ArgumentError
	for _, q := range slices.Clone(p.Queues) {
		found, ok := errors.AsType[*ArgumentError](err)
		if !ok || found.Kind != "queue" {
			break
		}
		if q.Name != found.Name || q.Name != names.Queue && q.Name != names.Dead && t.checkWait(ctx, d, &p, q) != nil {
			continue
		}
		differs = cmp.Or(differs, found)
		p.Queues = slices.DeleteFunc(p.Queues, func(other Queue) bool { return other.Name == q.Name })
		p.Adopted = append(p.Adopted, q.Name)
		err = declare(ctx, t.asking, p)
	}
	if err != nil {
		return err
	}
	for _, q := range p.Later {
		if _, seen := t.declared.Load(q.Name); !seen && differs == nil {
			continue // a missing one costs a channel
		}
		if err := t.checkWait(ctx, d, &p, q); err != nil && !isNotFound(err) {
			return err
		}
	}
	if differs != nil {
		err = fmt.Errorf("%w: %w", driver.ErrDiffers, differs)
	}
	return err
}

// Publish implements driver.Transport.
func (t *transport) Publish(ctx context.Context, out []driver.Outgoing) []error {
	faults := make([]error, len(out))
	for next := 0; next < len(out); {
		kind := out[next].To.Kind
		batch := make([]outgoing, 0, len(out)-next)
		for ; next < len(out) && out[next].To.Kind == kind; next++ {
			o, err := t.outgoing(&out[next])
			if err != nil {
				faults[next] = err
				continue
			}
			o.index = next
			batch = append(batch, o)
		}
		for n, err := range t.post(ctx, t.senders[kind], batch) {
			faults[batch[n].index] = err
		}
	}
	return faults
}

// outgoing renders a publication.
func (t *transport) outgoing(o *driver.Outgoing) (outgoing, error) {
	n := o.To.Names
	var r route
	var err error
	switch o.To.Kind {
	case driver.ToTopic:
		r, err = t.design.delayed(n, o.To.Topic, o.Delay)
	case driver.ToConsumer:
		r, err = t.design.retry(n, o.Origin, o.Delay)
		if err == nil && o.Delay <= 0 {
			r = r.recorded(o)
		}
	case driver.ToDeadLetters:
		// To the scheme's dead letter exchange, or straight to the dead letter queue if the scheme has none or it has the
		// queue's name. An adopted exchange may be of any type.
		r.key = n.Dead
		if n.DeadExchange != "" && n.DeadExchange != n.Dead && t.design.declare == declareAll {
			r.exchange, r.key = n.DeadExchange, originKey(n, o.Origin)
		}
	}
	if err != nil {
		return outgoing{}, err
	}
	made := outgoing{of: o, exchange: r.exchange, key: r.key, optional: r.unconfirmable}
	made.msg = marshal(o.Message, t.design.intHeaders)
	if t.design.naming.Preset == "service-bus" && made.msg.Type == "" { // the event's name for its other consumers
		event := o.To.Topic
		if o.Origin != nil {
			event = o.Origin.RoutingKey
		}
		made.msg.Type = cmp.Or(o.Message.Metadata[envelope.KeyEvent], event)
	}
	headers := made.msg.Headers
	for _, h := range o.Extra {
		if h.Key != envelope.KeyNotBefore { // it is written below if needed
			headers[h.Key] = h.Value
		}
	}
	if r.checked {
		headers[envelope.KeyNotBefore] = o.Due.Add(time.Millisecond - 1).UnixMilli() // rounded up: never early
		headers[keyRest] = roundUp(r.rest)
	}
	if r.expiration > 0 {
		made.msg.Expiration = strconv.FormatInt(r.expiration, 10)
	}
	if r.pluginDelay > 0 {
		headers[envelope.KeyDelay] = r.pluginDelay
	}
	if t.design.declare == declareRead && o.To.Kind == driver.ToConsumer && !o.ExistingOnly { // not a redrive
		keepDeath(headers, o)
	} else {
		setOrigin(headers, o)
	}
	return made, nil
}

// keepDeath keeps the origin of another consumer's dead letter, and how it died, for the collector that publishes it
// again. RabbitMQ does not read x-death as its own, because it is a text.
func keepDeath(headers map[string]any, o *driver.Outgoing) {
	var origin []string
	if of := o.Message.Metadata[envelope.KeyConsumer]; of != "" && of != o.To.Names.Queue {
		origin = []string{envelope.KeyConsumer, envelope.KeyTopic, envelope.KeyExchange, envelope.KeyRoutingKey}
	} else {
		setOrigin(headers, o)
	}
	for key, value := range o.Message.Metadata {
		if slices.Contains(origin, key) || envelope.IsBrokerMade(key) && strings.Contains(key, "-death") {
			headers[key] = value
		}
	}
}

// setOrigin adds the headers that tell where a retry or a dead letter was first published.
func setOrigin(headers map[string]any, o *driver.Outgoing) {
	n := o.To.Names
	switch o.To.Kind {
	case driver.ToTopic:
	case driver.ToConsumer:
		// Without an exchange, dead-lettering from the delay queue restores the key.
		if o.Origin.Exchange != "" || o.Origin.RoutingKey != n.Queue && o.Origin.RoutingKey != "" {
			headers[envelope.KeyConsumer] = n.Queue
			headers[envelope.KeyRoutingKey] = o.Origin.RoutingKey
			headers[envelope.KeyExchange] = o.Origin.Exchange
		}
	case driver.ToDeadLetters:
		for key, value := range map[string]string{
			envelope.KeyTopic: o.Origin.Topic, envelope.KeyConsumer: n.Queue,
			envelope.KeyExchange: o.Origin.Exchange, envelope.KeyRoutingKey: o.Origin.RoutingKey,
		} {
			if value != "" {
				headers[key] = value
			}
		}
	}
}

// Ping implements driver.Transport, on the publishing connection, which it tries once to restore. It also fails while
// an exchange or a queue of a running subscription is missing.
func (t *transport) Ping(ctx context.Context) error {
	if err := t.publishing.connectOnce(ctx); err != nil {
		return fmt.Errorf("rabbitmq: ping: %w", err)
	}
	if err := t.publishing.awaitUnblocked(ctx); err != nil {
		return err
	}
	d := &declarer{link: t.publishing}
	defer d.close(ctx)
	err := d.do(ctx, func(ch *amqp.Channel) error { return ch.Qos(1, 0, false) }) // RabbitMQ's cheapest request
	if err == nil {
		err = missingOf(ctx, d, t.consumed.plan(""))
	}
	if err != nil {
		return fmt.Errorf("rabbitmq: ping: %w", err)
	}
	return nil
}

// Close implements driver.Transport.
func (t *transport) Close(context.Context) error {
	t.asking.close()
	t.consuming.close()
	t.publishing.close()
	return nil
}
