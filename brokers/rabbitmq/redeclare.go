package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
		exists = d.do(ctx, Queue{Name: to.Names.Queue}.exists) == nil
		d.close(ctx)
		there[to.Names.Queue] = exists
	}
	return exists
}

// missingAt plans the missing destination of a publication: its queue, or for a first publication through an exchange
// that and its bindings.
func (t *transport) missingAt(o *outgoing, exchangeMissing bool) Plan {
	d, to := t.design, o.of.To
	switch to.Kind {
	case driver.ToDeadLetters:
		return d.mode(d.dead(to.Names))
	case driver.ToConsumer:
		p := d.mode(d.waiting(to.Names, to.Topic))
		if len(p.Exchanges) > 0 {
			return p // queues and bindings depend on the exchange it goes to
		}
		return t.waitingIn(p, o.key, brokers.Depth{Topic: to.Topic, Kind: brokers.DepthRetry})
	case driver.ToTopic:
	}
	p := t.waitingIn(d.first(to.Topic), o.key, brokers.Depth{Topic: to.Topic, Kind: brokers.DepthDelayed})
	if o.exchange == "" && !p.empty() {
		return p
	}
	p = t.consumed.plan(to.Topic).routing()
	switch {
	case !exchangeMissing:
	case o.exchange == to.Names.Exchange:
		p.merge(d.mode(Plan{Exchanges: []Exchange{d.exchange(o.exchange)}}))
	case d.transport == transportPlugin:
		p.merge(d.first(to.Topic))
	}
	return p
}

// waitingIn reduces p to a wait queue that is about to be declared, and tells Depths about it.
func (t *transport) waitingIn(p Plan, queue string, of brokers.Depth) Plan {
	p = p.only(queue)
	t.waits.add(of, p.Queues...)
	return p
}

// consumed holds the running subscriptions' streams of a broker. It is safe for concurrent use.
type consumed struct {
	mu   sync.Mutex
	list []*stream
}

var errForgotten = errors.New("rabbitmq: the broker has forgotten the consumer")

// losesRecreatedQueues reports whether conn is to a RabbitMQ that may consider a consumer alive which receives nothing.
// When a queue is deleted, a channel of RabbitMQ 3 tries for seconds to consume from it again. If a queue of that name
// has been recreated by then, it succeeds, forgets the queue, and discards everything that the queue sends
// (rabbit_channel's handle_eol). The client is not notified, and the queue counts a consumer and waits for its acks.
func losesRecreatedQueues(conn *amqp.Connection) bool {
	version, _ := conn.Properties["version"].(string)
	return strings.HasPrefix(version, "3.")
}

// lingering is how long a failed stream counts: its subscription retries more often.
const lingering = time.Minute

// add registers s, in place of a failed stream.
func (c *consumed) add(s *stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = append(slices.DeleteFunc(c.list, func(old *stream) bool {
		return !old.until.IsZero() && old.queue.Topic == s.queue.Topic && old.queue.Names.Queue == s.queue.Names.Queue
	}), s)
}

// linger records that s has failed. What it reads counts as missing until another stream takes its place.
func (c *consumed) linger(s *stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.until = time.Now().Add(lingering)
}

func (c *consumed) remove(s *stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = slices.DeleteFunc(c.list, func(x *stream) bool { return x == s })
}

func (c *consumed) each() []*stream {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	c.list = slices.DeleteFunc(c.list, func(s *stream) bool { return !s.until.IsZero() && now.After(s.until) })
	return slices.Clone(c.list)
}

// plan plans what the subscriptions to topic read, or all subscriptions if topic is "".
func (c *consumed) plan(topic string) Plan {
	var all Plan
	for _, s := range c.each() {
		if topic == "" || s.queue.Topic == topic {
			all.merge(s.plan)
		}
	}
	return all
}

// checkEvery is how often to look for deleted exchanges or bindings, and for consumers that get nothing. RabbitMQ only
// notifies a consumer of the deletion of its queue.
const checkEvery = 30 * time.Second

// keepDeclared periodically declares the exchanges and bindings of the running subscriptions again, and checks that
// their queues still have a consumer, until ctx ends. It uses the connection that consumes, which no alarm stops.
func (t *transport) keepDeclared(ctx context.Context) {
	ticker := time.NewTicker(checkEvery)
	defer ticker.Stop()
	logged := ""
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		var faults []error
		for _, s := range t.consumed.each() {
			faults = append(faults, t.checkStream(ctx, s))
		}
		err := errors.Join(faults...)
		if err == nil || ctx.Err() != nil {
			logged = ""
		} else if text := err.Error(); text != logged {
			logged = text
			t.logger.Warn("rabbitmq: cannot declare again what the subscriptions need", "error", err)
		}
	}
}

func (t *transport) checkStream(ctx context.Context, s *stream) error {
	d := &declarer{link: t.consuming}
	defer d.close(ctx)
	q, there, err := d.count(ctx, s.queue.Names.Queue)
	if err != nil || !there { // RabbitMQ notifies the consumer of a missing one
		return err
	}
	s.judge(&q)
	if p := s.plan.routing(); !p.empty() {
		return declare(ctx, t.consuming, p)
	}
	return nil
}

// judge ends a stream to which the broker sends nothing: since the last look it has received nothing, all that it had
// is answered, and the queue has messages. A queue's count lacks the messages that it has sent to a consumer that
// RabbitMQ has forgotten: where that happens, a stream is renewed when it was idle for two looks.
func (s *stream) judge(q *amqp.Queue) {
	received := s.received.Load()
	if received == s.seen && received <= s.acks.answered() {
		s.idle++
	} else {
		s.idle = 0
	}
	s.seen = received
	switch {
	case q.Consumers == 0:
		s.end(errForgotten)
	case s.idle >= 1 && q.Messages > 0, s.idle >= 2 && losesRecreatedQueues(s.conn):
		s.end(driver.ErrRenew)
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
		objects = append(objects, object{fmt.Sprintf("queue %q", q.Name), q.exists})
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
