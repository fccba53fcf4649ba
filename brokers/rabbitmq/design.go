package rabbitmq

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
)

// design derives names, plans and routes from a configuration. It does not use connections.
type design struct {
	naming    brokers.NameScheme
	transport string // one of the transport... constants
	delays    driver.Steps
	named     driver.Steps
	declare   string // one of the declare... constants
	single    bool   // all delays use one queue, from which messages expire by their own time to live

	declared, known sync.Map // arguments, without and with policies, of existing queues that are used as they are
	refused         sync.Map // when looks at queues whose arguments the user may not see were refused

	queueType      string // of consumers' queues
	retryQueueType string // of delay and dead letter queues
	typed          bool   // at least one of the types is given
	deliveryLimit  int
	retryTTL       atomic.Int64 // a time.Duration
	fixedTTL       bool         // retry-ttl is given, so nothing else sets retryTTL
	intHeaders     []string     // headers that are sent as integers
	maxMessage     int64
	management     *management // nil unless the URL names it
}

// Transports of delays.
const (
	transportTTL    = "ttl"
	transportPlugin = "plugin"
	transportReject = "reject"
)

// Declaration modes.
const (
	declareAll   = "all"   // everything
	declareAdopt = "adopt" // missing objects; existing ones are used as they are
	declareNone  = "none"  // nothing; all must exist
	declareRead  = "read"  // nothing; only the queue to read must exist
)

// Queue types.
const (
	quorum  = "quorum"
	classic = "classic"
)

const (
	// noLimit is a delivery limit that is never reached. RabbitMQ counts lost connections, restarts and prefetched
	// messages, so a lower limit dead-letters healthy messages if connections break faster than messages can be answered.
	// Its value for "no limit", -1, makes 3.x drop the message at the first requeue.
	noLimit = 1_000_000
	// usualLimit is the default of RabbitMQ 4 for queues without one.
	usualLimit = 20
)

const defaultExchange = "redrive"

// ttl is the time to live of the wait queue with transport=reject.
func (d *design) ttl() time.Duration { return time.Duration(d.retryTTL.Load()) }

// expect sets the time to live to the one delay that the configuration or the pipelines name.
func (d *design) expect(delays []time.Duration) {
	if !d.fixedTTL && len(delays) == 1 {
		d.retryTTL.Store(int64(delays[0]))
	}
}

// declares reports whether anything may be declared.
func (d *design) declares() bool { return d.declare != declareNone && d.declare != declareRead }

func (d *design) names(topic, group string) brokers.Names {
	return d.withExchange(d.naming.For(topic, group))
}

// namesOf returns the names around a queue that is known from an envelope.Origin.
func (d *design) namesOf(topic, queue string) brokers.Names {
	return d.withExchange(d.naming.ForQueue(topic, queue))
}

// withExchange completes names: the default scheme lets several groups read one topic, for which RabbitMQ needs an
// exchange that the scheme does not name.
func (d *design) withExchange(n brokers.Names) brokers.Names {
	if n.Exchange == "" && d.naming.Preset == "default" {
		n.Exchange = defaultExchange
	}
	return n
}

// exchange is the exchange of that name, which producers publish to.
func (d *design) exchange(name string) Exchange {
	if d.naming.Patterns {
		return Exchange{Name: name, Kind: amqp.ExchangeTopic}
	}
	return Exchange{Name: name, Kind: amqp.ExchangeDirect}
}

// plan plans what the consumers of topics need.
func (d *design) plan(group string, topics []string) Plan {
	var p Plan
	for _, topic := range topics {
		p.merge(d.consumer(d.names(topic, group), topic, nil))
	}
	return p
}

// consumer plans everything that a consumer of topic needs: its queue and bindings, and where its retries wait and its
// dead letters go.
func (d *design) consumer(n brokers.Names, topic string, patterns []string) Plan {
	p := d.source(n, topic, patterns)
	if d.declare != declareRead {
		p.merge(d.waiting(n, topic))
		p.merge(d.dead(n))
	}
	return d.permitted(p)
}

// permitted reduces a plan to what the parameter declare permits.
func (d *design) permitted(p Plan) Plan {
	p.design = d
	if !d.declares() {
		for _, q := range p.Queues {
			p.Adopted = append(p.Adopted, q.Name)
		}
		p.Exchanges, p.Queues, p.Bindings, p.Later = nil, nil, nil, nil
	}
	return p
}

// ttlOf returns the time to live of an existing wait queue, as far as is known.
func (d *design) ttlOf(queue string) (ttl time.Duration, known bool) {
	args, _ := d.known.Load(queue)
	table, _ := args.(amqp.Table)
	ms, known := integer(table["x-message-ttl"])
	return time.Duration(ms) * time.Millisecond, known
}

// source plans the queue that the consumer reads and its bindings.
func (d *design) source(n brokers.Names, topic string, patterns []string) Plan {
	var p Plan
	if n.Exchange != "" {
		p.Exchanges = append(p.Exchanges, d.exchange(n.Exchange))
		for _, key := range append([]string{topic}, patterns...) {
			p.Bindings = append(p.Bindings, Binding{Exchange: n.Exchange, Key: key, To: n.Queue})
		}
	}
	args := amqp.Table{"x-dead-letter-exchange": ""}
	switch {
	case n.DeadExchange != "":
		args["x-dead-letter-exchange"] = n.DeadExchange
	case d.transport == transportReject && n.RetryExchange != "": // rejected messages wait and come back
		args["x-dead-letter-exchange"] = n.RetryExchange
	case d.transport == transportReject:
		args["x-dead-letter-routing-key"] = n.Retry(0)
	default:
		args["x-dead-letter-routing-key"] = n.Dead
	}
	if d.queueType == quorum {
		deadLetterAtLeastOnce(args)
		args["x-delivery-limit"] = int64(d.deliveryLimit)
	}
	p.Queues = []Queue{{Name: n.Queue, Args: args, consumer: n.Queue}}
	return p
}

// deadLetterAtLeastOnce adds the arguments of a quorum queue that loses nothing on the way to where it dead-letters.
// Without reject-publish RabbitMQ falls back to at-most-once and only logs it.
func deadLetterAtLeastOnce(args amqp.Table) {
	args["x-queue-type"] = quorum
	args["x-dead-letter-strategy"] = "at-least-once"
	args["x-overflow"] = "reject-publish"
}

// waiting plans where retries wait, and in a queue-per-topic scheme also first deliveries.
func (d *design) waiting(n brokers.Names, topic string) Plan {
	switch d.transport {
	case transportPlugin:
		return Plan{
			Exchanges: []Exchange{delayedExchange(pluginExchange(n))},
			Bindings:  []Binding{{Exchange: pluginExchange(n), Key: "#", To: n.Queue}},
		}
	case transportReject:
		wait := d.delayQueue(n, n.Retry(0), n.Exchange, n.Queue)
		wait.Args["x-message-ttl"] = d.ttl().Milliseconds()
		p := Plan{Queues: []Queue{wait}, returnPaths: []returnPath{{queue: wait.Name, to: n.Queue, key: topic}}}
		if n.RetryExchange != "" {
			p.Exchanges = []Exchange{d.exchange(n.RetryExchange)}
			p.Bindings = []Binding{{Exchange: n.RetryExchange, Key: topic, To: wait.Name}}
		}
		if n.Exchange != "" && topic != n.Queue { // only this queue's way back, not that of all queues of the topic
			p.Bindings = append(p.Bindings, Binding{Exchange: n.Exchange, Key: n.Queue, To: n.Queue})
		}
		return p
	}
	p := d.delayQueues(n, n.Retry, "", n.Queue)
	for _, q := range slices.Concat(p.Queues, p.Later) {
		_, shared := q.Args["x-message-ttl"]
		p.returnPaths = append(p.returnPaths, returnPath{queue: q.Name, to: n.Queue, key: q.Name, perMessage: !shared})
	}
	return p
}

// first plans where messages wait for their first delivery to topic.
func (d *design) first(topic string) Plan {
	n := d.names(topic, "")
	switch {
	case !d.declares():
		return Plan{}
	case n.Exchange == "" || d.transport == transportReject:
		return d.permitted(d.waiting(n, topic))
	case d.transport == transportPlugin:
		return d.permitted(Plan{
			Exchanges: []Exchange{d.exchange(n.Exchange), delayedExchange(n.Exchange + ".delayed")},
			Bindings:  []Binding{{Exchange: n.Exchange + ".delayed", Key: "#", To: n.Exchange, ToExchange: true}},
		})
	}
	name := func(step time.Duration) string { return d.firstName(n, topic, step) }
	p := d.delayQueues(n, name, n.Exchange, topic)
	p.Exchanges = []Exchange{d.exchange(n.Exchange)}
	return d.permitted(p)
}

// firstName names the queue in which messages wait for their first delivery through an exchange. Each topic has its
// own: in a shared queue, messages of a topic without a reader would block the others.
func (d *design) firstName(n brokers.Names, topic string, step time.Duration) string {
	switch {
	case d.naming.Delayed != "":
		return n.Delayed(step)
	case step == 0:
		return n.Exchange + ".delayed." + topic
	}
	return n.Exchange + ".delayed." + topic + "." + milliseconds(step)
}

// delayQueues plans the queues from which messages go to exchange with key after a delay. Those for configured delays
// are declared at once, those of the grid when they are needed. Step 0 names the queue for all delays, in which each
// message has its own time to live; it serves every policy, also after a change.
func (d *design) delayQueues(n brokers.Names, name func(step time.Duration) string, exchange, key string) Plan {
	var p Plan
	if d.single {
		p.Queues = []Queue{d.delayQueue(n, name(0), exchange, key)}
		if _, known := d.ttlOf(name(0)); !known { // otherwise it may be too short for some delays
			return p
		}
	}
	for _, step := range d.delays {
		q := d.delayQueue(n, name(step), exchange, key)
		q.Args["x-message-ttl"] = step.Milliseconds()
		if !d.single && slices.Contains(d.named, step) {
			p.Queues = append(p.Queues, q)
		} else {
			p.Later = append(p.Later, q)
		}
	}
	return p
}

// delayQueue plans a queue from which expired messages go to exchange with key. It never gets x-expires: publishing
// does not renew that lease, and a queue that expires takes its messages along.
func (d *design) delayQueue(n brokers.Names, name, exchange, key string) Queue {
	args := amqp.Table{"x-dead-letter-exchange": exchange, "x-dead-letter-routing-key": key}
	if d.retryQueueType == quorum {
		deadLetterAtLeastOnce(args)
	}
	return Queue{Name: name, Args: args, consumer: n.Queue}
}

// dead plans the dead letter queue, and the exchange to which the consumer's queue dead-letters when RabbitMQ itself
// gives up on a message.
func (d *design) dead(n brokers.Names) Plan {
	args := amqp.Table{}
	if d.retryQueueType == quorum {
		args["x-queue-type"] = quorum
		args["x-delivery-limit"] = int64(noLimit)
	}
	p := Plan{Queues: []Queue{{Name: n.Dead, Args: args, consumer: n.Queue}}}
	if n.DeadExchange != "" {
		p.Exchanges = []Exchange{{Name: n.DeadExchange, Kind: amqp.ExchangeFanout}}
		p.Bindings = []Binding{{Exchange: n.DeadExchange, Key: "", To: n.Dead}}
	}
	return p
}

func delayedExchange(name string) Exchange {
	return Exchange{Name: name, Kind: "x-delayed-message", Args: amqp.Table{"x-delayed-type": amqp.ExchangeTopic}}
}

// pluginExchange is the delayed exchange of a consumer, named after its queue unless the scheme names it.
func pluginExchange(n brokers.Names) string {
	return cmp.Or(n.RetryExchange, n.Queue)
}
