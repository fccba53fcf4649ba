package rabbitmq

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
)

// design makes names, plans and routes from a configuration. It knows nothing of connections.
type design struct {
	naming    brokers.NameScheme
	transport string // one of the transport... constants
	ladder    ladder
	named     []time.Duration
	declare   string // one of the declare... constants

	queueType      string // of consumers' queues
	retryQueueType string // of delay and dead letter queues
	deliveryLimit  int
	retryTTL       time.Duration
	exchangeType   string
	intHeaders     []string
	crashLimit     int
	maxMessage     int64
	management     *management // nil when nobody said where it is

	made  sync.Map // names by nameKey: making them reads templates, which is a tenth of a retry's work
	count atomic.Int64
}

// nameKey asks for the names of a group on a topic, or with byQueue for those around a queue.
type nameKey struct {
	topic, of string
	byQueue   bool
}

// maxNames bounds the names that are kept. Queues are named by messages too.
const maxNames = 4096

// Transports of delays.
const (
	transportTTL    = "ttl"
	transportPlugin = "plugin"
	transportReject = "reject"
)

// What is declared.
const (
	declareAll   = "all"   // everything
	declareAdopt = "adopt" // not the consumer's queue and the producers' exchange, which belong to somebody else
	declareNone  = "none"  // nothing
)

// Queue types.
const (
	quorum  = "quorum"
	classic = "classic"
)

const defaultExchange = "redrive"

// names of the consumer group on topic.
func (d *design) names(topic, group string) brokers.Names {
	return d.namesFor(nameKey{topic: topic, of: group})
}

// namesOf gives the names around a queue that is known from an envelope.Origin.
func (d *design) namesOf(topic, queue string) brokers.Names {
	return d.namesFor(nameKey{topic: topic, of: queue, byQueue: true})
}

// namesFor makes names, or finds those made before. The default scheme lets several groups read one topic, for which
// RabbitMQ needs an exchange, and the scheme's users none of their own: it gets one.
func (d *design) namesFor(key nameKey) brokers.Names {
	if n, ok := d.made.Load(key); ok {
		return n.(brokers.Names)
	}
	var n brokers.Names
	if key.byQueue {
		n = d.naming.ForQueue(key.topic, key.of)
	} else {
		n = d.naming.For(key.topic, key.of)
	}
	if n.Exchange == "" && d.naming.Preset == "default" {
		n.Exchange = defaultExchange
	}
	if d.count.Add(1) <= maxNames {
		d.made.Store(key, n)
	}
	return n
}

// exchangeFor is where producers publish to topic.
func (d *design) exchangeFor(topic string) string {
	if d.naming.Exchange == "" {
		if d.naming.Preset == "default" {
			return defaultExchange
		}
		return ""
	}
	return d.names(topic, "").Exchange
}

// consumer plans everything that a consumer of topic needs: its queue, where it is bound, where its retries wait and
// where its dead letters go.
func (d *design) consumer(topic, group string, patterns []string) Plan {
	n := d.names(topic, group)
	var p Plan
	if d.declare == declareNone {
		return Plan{Adopted: []string{n.Queue}}
	}
	if d.declare == declareAdopt {
		p.Adopted = append(p.Adopted, n.Queue)
	} else {
		p.merge(d.source(n, topic, patterns))
	}
	p.merge(d.waiting(n, topic))
	p.merge(d.dead(n))
	return p
}

// source plans the queue that the consumer reads and its bindings.
func (d *design) source(n brokers.Names, topic string, patterns []string) Plan {
	var p Plan
	if n.Exchange != "" {
		p.Exchanges = append(p.Exchanges, Exchange{Name: n.Exchange, Kind: d.exchangeType})
		for _, key := range append([]string{topic}, patterns...) {
			p.Bindings = append(p.Bindings, Binding{Exchange: n.Exchange, Key: key, To: n.Queue})
		}
	}
	args := amqp.Table{}
	switch {
	case n.DeadExchange != "":
		args["x-dead-letter-exchange"] = n.DeadExchange
	case d.transport == transportReject && n.RetryExchange != "": // E1: what is rejected waits and comes back
		args["x-dead-letter-exchange"] = n.RetryExchange
	case d.transport == transportReject:
		args["x-dead-letter-exchange"] = ""
		args["x-dead-letter-routing-key"] = n.Retry(0)
	default:
		args["x-dead-letter-exchange"] = ""
		args["x-dead-letter-routing-key"] = n.Dead
	}
	if d.queueType == quorum {
		args["x-queue-type"] = quorum
		args["x-dead-letter-strategy"] = "at-least-once"
		args["x-overflow"] = "reject-publish" // without it RabbitMQ falls back to at-most-once and says so in its log only
		args["x-delivery-limit"] = int64(d.deliveryLimit)
	}
	p.Queues = append(p.Queues, Queue{Name: n.Queue, Args: args})
	return p
}

// waiting plans where retries wait, and with a queue-per-topic scheme first deliveries too.
func (d *design) waiting(n brokers.Names, topic string) Plan {
	switch d.transport {
	case transportPlugin:
		return Plan{
			Exchanges: []Exchange{delayedExchange(pluginExchange(n))},
			Bindings:  []Binding{{Exchange: pluginExchange(n), Key: "#", To: n.Queue}},
		}
	case transportReject:
		p := Plan{Queues: []Queue{d.delayQueue(n.Retry(0), d.retryTTL, n.Exchange, n.Queue)}}
		if n.RetryExchange != "" {
			p.Exchanges = []Exchange{{Name: n.RetryExchange, Kind: d.exchangeType}}
			p.Bindings = []Binding{{Exchange: n.RetryExchange, Key: topic, To: n.Retry(0)}}
		}
		if n.Exchange != "" && topic != n.Queue { // the way back is the queue's own, see delayQueue
			p.Bindings = append(p.Bindings, Binding{Exchange: n.Exchange, Key: n.Queue, To: n.Queue})
		}
		return p
	}
	var p Plan
	for _, step := range d.ladder.steps {
		p.Queues = append(p.Queues, d.delayQueue(d.retryName(n, step), step, "", n.Queue))
	}
	if d.loneRetry() && !slices.ContainsFunc(p.Queues, func(q Queue) bool { return q.Name == n.Retry(0) }) {
		p.Queues = append(p.Queues, d.delayQueue(n.Retry(0), 0, "", n.Queue))
	}
	return p
}

// retryName is the queue in which retries wait for step. System A knows one retry queue, and as long as there is one
// delay, it has no number in its name.
func (d *design) retryName(n brokers.Names, step time.Duration) string {
	if d.loneRetry() && len(d.named) == 1 && d.named[0] == step {
		return n.Retry(0)
	}
	return n.Retry(step)
}

// loneRetry tells whether retries wait in one queue {queue}_retry (A3).
func (d *design) loneRetry() bool { return d.naming.Preset == "laravel" && len(d.named) <= 1 }

// first plans where messages wait for their first delivery to topic.
func (d *design) first(topic string) Plan {
	n := d.names(topic, "")
	if d.declare == declareNone {
		return Plan{}
	}
	if n.Exchange == "" || d.transport == transportReject {
		return d.waiting(n, topic)
	}
	if d.transport == transportPlugin {
		return Plan{
			Exchanges: []Exchange{{Name: n.Exchange, Kind: d.exchangeType}, delayedExchange(n.Exchange + ".delayed")},
			Bindings:  []Binding{{Exchange: n.Exchange + ".delayed", Key: "#", To: n.Exchange, ToExchange: true}},
		}
	}
	p := Plan{}
	if d.declare == declareAll {
		p.Exchanges = []Exchange{{Name: n.Exchange, Kind: d.exchangeType}}
	}
	for _, step := range d.ladder.steps {
		p.Queues = append(p.Queues, d.delayQueue(d.firstName(n, topic, step), step, n.Exchange, topic))
	}
	return p
}

// firstName is the queue in which messages wait for their first delivery through an exchange. Each topic has its own:
// a shared one would be held up by the messages of a topic that nobody reads.
func (d *design) firstName(n brokers.Names, topic string, step time.Duration) string {
	if d.naming.Delayed != "" {
		return n.Delayed(step)
	}
	return n.Exchange + ".delayed." + topic + "." + milliseconds(step)
}

// dead plans the dead letter queue, and the exchange that the consumer's queue dead-letters to when the broker itself
// gives a message up.
func (d *design) dead(n brokers.Names) Plan {
	args := amqp.Table{}
	if d.retryQueueType == quorum {
		args["x-queue-type"] = quorum
		// RabbitMQ 4 drops a message after 20 deliveries by default. Its word for "no limit", -1, makes 3.x drop the
		// message at the first requeue.
		args["x-delivery-limit"] = int64(1_000_000)
	}
	p := Plan{Queues: []Queue{{Name: n.Dead, Args: args}}}
	if n.DeadExchange != "" {
		p.Exchanges = []Exchange{{Name: n.DeadExchange, Kind: amqp.ExchangeFanout}}
		p.Bindings = []Binding{{Exchange: n.DeadExchange, Key: "", To: n.Dead}}
	}
	return p
}

// delayQueue plans a queue from which messages go to exchange with key when ttl has passed. It never gets x-expires:
// publishing does not renew that lease, and a queue that expires takes its messages along.
func (d *design) delayQueue(name string, ttl time.Duration, exchange, key string) Queue {
	args := amqp.Table{
		"x-message-ttl":             ttl.Milliseconds(),
		"x-dead-letter-exchange":    exchange,
		"x-dead-letter-routing-key": key,
	}
	if d.retryQueueType == quorum {
		args["x-queue-type"] = quorum
		args["x-dead-letter-strategy"] = "at-least-once"
		args["x-overflow"] = "reject-publish"
	}
	return Queue{Name: name, Args: args}
}

func delayedExchange(name string) Exchange {
	return Exchange{Name: name, Kind: "x-delayed-message", Args: amqp.Table{"x-delayed-type": amqp.ExchangeTopic}}
}

// pluginExchange is the delayed exchange of a consumer: of the queue's own name (D4) unless the scheme says otherwise.
func pluginExchange(n brokers.Names) string {
	if n.RetryExchange != "" {
		return n.RetryExchange
	}
	return n.Queue
}
