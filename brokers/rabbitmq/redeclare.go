package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
)

// post publishes batch on s and returns an error for each, nil for those that are confirmed. If the destination of a
// publication is missing, because it was never needed before or was deleted, it declares the destination and repeats
// the publication.
func (t *transport) post(ctx context.Context, s *sender, batch []outgoing) []error {
	faults := s.sendEach(ctx, batch)
	if !t.design.makes() {
		return faults
	}
	var todo []int
	var missing Plan
	there := map[string]bool{}
	for i, err := range faults {
		var unroutable *UnroutableError
		if err == nil || batch[i].of.ExistingOnly || !errors.As(err, &unroutable) || !t.mayWait(ctx, there, batch[i].of.To) {
			continue
		}
		if p := t.missingAt(&batch[i], unroutable.exchangeMissing); !p.empty() {
			missing.merge(p)
			todo = append(todo, i)
		}
	}
	if len(todo) == 0 {
		return faults
	}
	if err := declare(ctx, t.publishing, missing); err != nil {
		for _, i := range todo {
			faults[i] = fmt.Errorf("%w; and declaring it failed: %w", faults[i], err)
		}
		return faults
	}
	repeated := make([]outgoing, len(todo))
	for i, index := range todo {
		repeated[i] = batch[index]
	}
	for i, err := range s.sendEach(ctx, repeated) {
		faults[todo[i]] = err
	}
	return faults
}

// mayWait reports whether to may be declared. Messages for a consumer whose queue does not exist would wait for it
// unseen. there has the queues that were checked.
func (t *transport) mayWait(ctx context.Context, there map[string]bool, to *driver.Destination) bool {
	if to.Kind != driver.ToConsumer {
		return true
	}
	exists, known := there[to.Names.Queue]
	if !known {
		d := &declarer{link: t.publishing}
		exists = d.do(ctx, passiveQueue(to.Names.Queue)) == nil
		d.close(ctx)
		there[to.Names.Queue] = exists
	}
	return exists
}

// missingAt plans the missing destination of a publication.
func (t *transport) missingAt(o *outgoing, exchangeMissing bool) Plan {
	d, to := t.design, o.of.To
	switch to.Kind {
	case driver.ToConsumer:
		return t.waitingAt(to.Names, to.Topic, o)
	case driver.ToDeadLetters:
		return d.mode(d.dead(to.Names))
	default:
		return t.firstAt(to.Topic, o, exchangeMissing)
	}
}

// waitingAt plans where o waits for its retry by the consumer of n, or for its first delivery to topic if there is an
// exchange in between.
func (t *transport) waitingAt(n brokers.Names, topic string, o *outgoing) Plan {
	p := t.design.mode(t.design.waiting(n, topic))
	if len(p.Exchanges) > 0 {
		return p // queues and bindings depend on the exchange it goes to
	}
	return t.register(p.only(o.key), brokers.Depth{Topic: topic, Kind: brokers.DepthRetry})
}

// firstAt plans the destination of a first publication to topic.
func (t *transport) firstAt(topic string, o *outgoing, exchangeMissing bool) Plan {
	d := t.design
	if p := t.register(d.first(topic).only(o.key),
		brokers.Depth{Topic: topic, Kind: brokers.DepthDelayed}); o.exchange == "" && !p.empty() {
		return p
	}
	p := t.consumed.plan(topic).routing()
	switch {
	case !exchangeMissing || !d.makes():
	case o.exchange == o.of.To.Names.Exchange:
		p.merge(d.mode(Plan{Exchanges: []Exchange{{Name: o.exchange, Kind: d.exchangeType}}}))
	case d.transport == transportPlugin:
		p.merge(d.first(topic))
	}
	return p
}

// register tells Depths about the queues that are about to be declared.
func (t *transport) register(p Plan, of brokers.Depth) Plan {
	t.waits.add(p.Queues, of)
	return p
}

// empty reports whether there is nothing to declare.
func (p Plan) empty() bool { return len(p.Exchanges)+len(p.Queues)+len(p.Bindings)+len(p.Adopted) == 0 }

// only reduces p to the queue of that name, whether it is declared now or later.
func (p Plan) only(queue string) Plan {
	for _, list := range [][]Queue{p.Queues, p.Later} {
		for _, q := range list {
			if q.Name == queue {
				return Plan{Queues: []Queue{q}, ways: p.ways, design: p.design}
			}
		}
	}
	return Plan{}
}

// routing reduces p to exchanges and bindings: a queue is declared again by its consumer when RabbitMQ reports its
// deletion. RabbitMQ 3.10 does not report it, and forgets the consumer, if a queue of that name is recreated at once.
func (p Plan) routing() Plan {
	return Plan{Exchanges: p.Exchanges, Bindings: p.Bindings, design: p.design}
}

// consumed holds what the running subscriptions of a broker read. It is safe for concurrent use.
type consumed struct {
	mu   sync.Mutex
	list []*reading
}

// reading describes what a stream reads. When it ends the stream, another one begins to consume.
type reading struct {
	stream        *stream
	plan          Plan      // without its retries and dead letters
	losesMessages bool      // see losesRecreatedQueues
	until         time.Time // when it is forgotten after its end; zero while it runs

	// Results of keepDeclared's last check.
	seen     int64     // deliveries
	since    time.Time // when messages stopped arriving
	starving bool      // the queue had messages, but the handlers had none
}

func (r *reading) topic() string { return r.stream.queue.Topic }
func (r *reading) queue() string { return r.stream.queue.Names.Queue }

var (
	errForgotten = errors.New("rabbitmq: the broker has forgotten the consumer")
	errStarving  = errors.New("rabbitmq: the queue has messages, but the consumer gets none")
)

// losesRecreatedQueues reports whether conn is to a RabbitMQ that may consider a consumer alive which receives nothing.
// When a queue is deleted, a channel of RabbitMQ 3 tries for seconds to consume from it again. If a queue of that name
// has been recreated by then, it succeeds, forgets the queue, and discards everything that the queue sends
// (rabbit_channel's handle_eol). The client is not notified, and the queue counts a consumer and waits for its acks.
func losesRecreatedQueues(conn *amqp.Connection) bool {
	version, _ := conn.Properties["version"].(string)
	major, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(major)
	return err != nil || n < 4
}

// lingering is how long a failed reading counts: its subscription retries more often.
const lingering = time.Minute

// add registers r, in place of a failed one.
func (c *consumed) add(r *reading) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = append(slices.DeleteFunc(c.list, func(x *reading) bool {
		return !x.until.IsZero() && x.topic() == r.topic() && x.queue() == r.queue()
	}), r)
}

// linger records that r has failed. What it reads counts as missing until another reading takes its place.
func (c *consumed) linger(r *reading) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r.until = time.Now().Add(lingering)
}

func (c *consumed) remove(r *reading) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = slices.DeleteFunc(c.list, func(x *reading) bool { return x == r })
}

func (c *consumed) each() []*reading {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	c.list = slices.DeleteFunc(c.list, func(x *reading) bool { return !x.until.IsZero() && now.After(x.until) })
	return slices.Clone(c.list)
}

// plan plans what the subscriptions to topic read, or all subscriptions if topic is "".
func (c *consumed) plan(topic string) Plan {
	var all Plan
	for _, r := range c.each() {
		if topic == "" || r.topic() == topic {
			all.merge(r.plan)
		}
	}
	return all
}

const (
	// checkEvery is how often to look for deleted exchanges or bindings. RabbitMQ only notifies a consumer of the deletion
	// of its queue.
	checkEvery = 30 * time.Second
	// starveFor is how long a consumer may get nothing from a queue that has messages before it is checked again.
	starveFor = 2 * time.Second
	// renewAfter is how long a consumer of such a broker may get nothing before it is renewed. Messages that a queue
	// has sent to such a consumer are missing from the queue's counts.
	renewAfter = time.Minute
)

// keepDeclared periodically declares the exchanges and bindings of the running subscriptions again, and checks that
// their queues still have a consumer, until ctx ends. It uses the connection that consumes, which no alarm stops.
func (t *transport) keepDeclared(ctx context.Context) {
	ticker := time.NewTicker(checkEvery)
	defer ticker.Stop()
	told := ""
	again := false // only those that starved at the last look
	for {
		select {
		case <-ticker.C:
		case <-t.poke:
			again = false
		case <-ctx.Done():
			return
		}
		var faults []error
		starving := false
		for _, r := range t.consumed.each() {
			if again && !r.starving {
				continue
			}
			faults = append(faults, t.checkReading(ctx, r))
			starving = starving || r.starving
		}
		whole := !again
		next := checkEvery
		if again = whole && starving; again {
			next = starveFor
		}
		ticker.Reset(next)
		err := errors.Join(faults...)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && !whole:
		case err == nil:
			told = ""
		case err.Error() != told:
			told = err.Error()
			t.logger.Warn("rabbitmq: cannot declare again what the subscriptions need", "error", err)
		}
	}
}

func (t *transport) checkReading(ctx context.Context, r *reading) error {
	d := &declarer{link: t.consuming}
	defer d.close(ctx)
	q, there, err := d.count(ctx, r.queue())
	if err != nil || !there { // RabbitMQ notifies the consumer of a missing one
		return err
	}
	r.judge(&q)
	if p := r.plan.routing(); !p.empty() {
		return declare(ctx, t.consuming, p)
	}
	return nil
}

// judge ends the stream of a reading to which the broker sends nothing.
func (r *reading) judge(q *amqp.Queue) {
	now, received := time.Now(), r.stream.received.Load()
	came, free, starved := received != r.seen, received <= r.stream.acks.answered(), r.starving
	if came || !free {
		r.seen, r.since = received, now
	}
	r.starving = free && q.Messages > 0
	switch {
	case q.Consumers == 0:
		r.stream.end(errForgotten)
	case r.starving && starved && !came:
		r.stream.end(errStarving)
	case r.losesMessages && now.Sub(r.since) >= renewAfter:
		r.stream.end(driver.ErrRenew)
	default:
		return
	}
	r.starving = false
}

// checkSoon makes keepDeclared run now.
func (t *transport) checkSoon() {
	select {
	case t.poke <- struct{}{}:
	default: // it is about to
	}
}

// maxPinged bounds the objects that one Ping looks for, at about a millisecond each.
const maxPinged = 100

// missingOf returns an error that names the objects of p that the broker does not have.
func missingOf(ctx context.Context, d *declarer, p Plan) error {
	type object struct {
		name   string
		exists func(*amqp.Channel) error
	}
	var objects []object
	for _, e := range p.Exchanges {
		objects = append(objects, object{fmt.Sprintf("exchange %q", e.Name), e.exists})
	}
	for _, q := range slices.Concat(p.adopted(), p.Queues) {
		objects = append(objects, object{fmt.Sprintf("queue %q", q.Name), passiveQueue(q.Name)})
	}
	var faults []error
	for _, o := range objects[:min(len(objects), maxPinged)] {
		if err := d.do(ctx, o.exists); isNotFound(err) {
			faults = append(faults, fmt.Errorf("%s is missing", o.name))
		} else if err != nil {
			return err
		}
	}
	return errors.Join(faults...)
}
