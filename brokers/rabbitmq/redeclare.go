package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/internal/wait"
)

// post publishes batch on s and returns an error for each, nil for those that are confirmed. If the destination of a
// publication is missing, because it was never needed before or was deleted, it declares the destination and repeats
// the publication.
func (t *transport) post(ctx context.Context, s *sender, batch []outgoing) []error {
	faults := s.sendEach(ctx, batch)
	if !t.design.declares() {
		return faults
	}
	var todo []int // the indexes in batch of what is repeated
	var repeated []outgoing
	var missing Plan
	exists := map[string]bool{}
	for i, err := range faults {
		var unroutable *UnroutableError
		if err == nil || batch[i].of.ExistingOnly || !errors.As(err, &unroutable) ||
			!t.mayDeclare(ctx, batch[i].of.To, exists) {
			continue
		}
		if p := t.missingAt(&batch[i], unroutable.exchangeMissing); !p.empty() {
			missing.merge(p)
			todo, repeated = append(todo, i), append(repeated, batch[i])
		}
	}
	if len(todo) == 0 {
		return faults
	}
	if err := declare(ctx, t.asking, missing); err != nil {
		for _, i := range todo {
			faults[i] = fmt.Errorf("%w; and declaring it failed: %w", faults[i], err)
		}
		return faults
	}
	t.asPlanned(missing)
	for i, err := range s.sendEach(ctx, repeated) {
		faults[todo[i]] = err
	}
	return faults
}

// mayDeclare reports whether a missing destination may be declared. A retry queue without its consumer's queue may not:
// messages would wait there unnoticed. exists caches which consumers' queues exist.
func (t *transport) mayDeclare(ctx context.Context, to *driver.Destination, exists map[string]bool) bool {
	if to.Kind != driver.ToConsumer {
		return true
	}
	if _, known := exists[to.Names.Queue]; !known {
		d := &declarer{link: t.asking}
		_, exists[to.Names.Queue], _ = d.count(ctx, to.Names.Queue)
		d.close(ctx)
	}
	return exists[to.Names.Queue]
}

// missingAt plans what is missing for a publication: the queue, or the exchange with its bindings.
func (t *transport) missingAt(o *outgoing, exchangeMissing bool) Plan {
	d, to := t.design, o.of.To
	switch to.Kind {
	case driver.ToDeadLetters:
		return d.permitted(d.dead(to.Names))
	case driver.ToConsumer:
		p := d.permitted(d.waiting(to.Names, to.Topic))
		if len(p.Exchanges) > 0 {
			return p // the message goes to that exchange, so its queues and bindings are needed too
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
		p.merge(d.permitted(Plan{Exchanges: []Exchange{d.exchange(o.exchange)}}))
	case d.transport == transportPlugin:
		p.merge(d.first(to.Topic))
	}
	return p
}

// waitingIn reduces p to one wait queue that is about to be declared, and registers it for Depths.
func (t *transport) waitingIn(p Plan, queue string, of brokers.Depth) Plan {
	for _, q := range p.All().Queues {
		if q.Name == queue {
			t.waits.add(of, q)
			return Plan{Queues: []Queue{q}, returnPaths: p.returnPaths, design: p.design}
		}
	}
	return Plan{}
}

// consumed holds the streams of the running subscriptions. It is safe for concurrent use.
type consumed struct {
	mu   sync.Mutex
	list []*stream
}

var (
	errForgotten = errors.New("rabbitmq: the broker has forgotten the consumer")
	// errStarving is no failure: the queue may have a single active consumer, or one of a higher priority.
	errStarving = fmt.Errorf("rabbitmq: the queue has messages, but the consumer gets none: %w", driver.ErrRenew)
)

// losesRecreatedQueues reports whether conn is to a RabbitMQ on which a consumer may seem alive but receive nothing.
// When a queue is deleted, a channel of RabbitMQ 3 tries for seconds to consume from it again. If the queue has been
// recreated by then, that succeeds, but the channel forgets the queue and discards everything it sends
// (rabbit_channel's handle_eol). The client is not notified, and the queue counts a consumer and waits for its acks.
func losesRecreatedQueues(conn *amqp.Connection) bool {
	version, _ := conn.Properties["version"].(string)
	return strings.HasPrefix(version, "3.")
}

// lingering is how long a failed stream still counts. Its subscription is reopened sooner than that.
const lingering = time.Minute

// add registers s, in place of a failed stream.
func (c *consumed) add(s *stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = append(slices.DeleteFunc(c.list, func(old *stream) bool {
		return !old.until.IsZero() && old.queue.Topic == s.queue.Topic && old.queue.Names.Queue == s.queue.Names.Queue
	}), s)
}

// linger records that s has ended. Ping reports what it reads as missing for rest, or until another stream reads it.
func (c *consumed) linger(s *stream, rest time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.until = time.Now().Add(rest)
}

func (c *consumed) each() []*stream {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	c.list = slices.DeleteFunc(c.list, func(s *stream) bool { return !s.until.IsZero() && !now.Before(s.until) })
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

const (
	// checkEvery is how often to look for deleted exchanges and bindings, and for consumers that get nothing. RabbitMQ
	// only notifies a consumer of the deletion of its queue.
	checkEvery = 30 * time.Second
	// recheckAfter is how soon to look again at a consumer that seems to get nothing: its next message may just not have
	// arrived yet.
	recheckAfter = 2 * time.Second
	// renewAfter is how long a consumer may be idle before it is replaced, on a RabbitMQ that losesRecreatedQueues. The
	// messages that a queue has sent to such a consumer are missing from the queue's counts.
	renewAfter = time.Minute
)

// keepDeclared periodically declares the exchanges and bindings of the running subscriptions again, and replaces
// consumers that get nothing, until ctx ends. It uses the consuming connection, which no alarm blocks.
func (t *transport) keepDeclared(ctx context.Context) {
	logged := ""
	checkRegularly(ctx, func() (starving bool) {
		var faults []error
		for _, s := range t.consumed.each() {
			faults = append(faults, t.checkStream(ctx, s))
			starving = starving || s.starving
		}
		err := errors.Join(faults...)
		if err != nil && ctx.Err() == nil && err.Error() != logged {
			t.logger.Warn("rabbitmq: cannot declare again what the subscriptions need", "error", err)
		}
		logged = fmt.Sprint(err)
		return starving
	})
}

// checkRegularly calls check until ctx ends: every checkEvery, and once more soon after a check that found a starving
// consumer.
func checkRegularly(ctx context.Context, check func() (starving bool)) {
	pause := checkEvery
	for wait.For(ctx, pause) == nil {
		if starving := check(); starving && pause == checkEvery {
			pause = recheckAfter
		} else {
			pause = checkEvery
		}
	}
}

func (t *transport) checkStream(ctx context.Context, s *stream) error {
	d := &declarer{link: t.consuming}
	defer d.close(ctx)
	q, exists, err := d.count(ctx, s.queue.Names.Queue)
	if err != nil || !exists { // RabbitMQ notifies the consumer of a missing one
		return err
	}
	s.check(&q)
	if err := t.compareQueues(ctx, d, s); err != nil {
		return err
	}
	if p := s.plan.routing(); !p.empty() {
		return declare(ctx, t.consuming, p)
	}
	return nil
}

// compareQueues examines the dead letter queue, and ends s if a queue in which its retries wait does not lead back,
// because an operator has recreated it. The engine then declares the consumer, which fails until the queue is gone or
// leads back. A queue that never led back, as far as we see, is left alone: a policy may do it. Of the queues that have
// not been seen, it looks for one at a time: a missing one costs a channel, and a line in the broker's log.
func (t *transport) compareQueues(ctx context.Context, d *declarer, s *stream) error {
	p := t.design.consumer(s.queue.Names, s.queue.Topic, s.queue.Patterns)
	queues := slices.Concat(p.adopted(), p.Queues, p.Later)
	s.compared++
	for i, q := range queues {
		_, seen := t.declared.Load(q.Name)
		_, waits := p.returnPathOf(q.Name)
		if q.Name == s.queue.Names.Dead {
			_, _ = t.examine(ctx, d, q) // it has warned
		}
		if !waits || !seen && i != s.compared%len(queues) {
			continue
		}
		err := t.checkWait(ctx, d, &p, q)
		_, differs := errors.AsType[*ArgumentError](err)
		_, lost := errors.AsType[*NoWayBackError](err)
		switch {
		case err == nil:
			t.declared.Store(q.Name, true)
		case seen && (differs || lost):
			s.end(fmt.Errorf("%w: %w", brokers.ErrUnroutable, err))
		case !differs && !lost && !isNotFound(err):
			return err
		}
	}
	return nil
}

// checkWait looks for a wait queue, and returns why messages in it would be lost: a difference to the plan matters only
// if the queue does not lead back. From one with a shorter time to live messages return early, and are sent on.
func (t *transport) checkWait(ctx context.Context, d *declarer, p *Plan, q Queue) error {
	_, err := p.compareQueue(ctx, d, q)
	if _, other := errors.AsType[*ArgumentError](err); err != nil && !other {
		return err
	}
	path, _ := p.returnPathOf(q.Name)
	if args, unread := t.examine(ctx, d, q); unread == nil && err != nil {
		if _, lost := p.returnBindings(path, args); lost == nil {
			t.logger.Debug("rabbitmq: a retry queue is not as planned, but leads back", "difference", err)
			return nil
		}
	}
	return err
}

// check ends a stream to which the broker sends nothing although all deliveries are answered. A queue that has messages
// must be seen twice, with no delivery in between.
func (s *stream) check(q *amqp.Queue) {
	now, received := time.Now(), s.received.Load()
	free := received <= s.acks.answered()
	if !free || received != s.seen {
		s.seen, s.idleSince, s.starving = received, now, false
	}
	waiting := free && q.Messages > 0
	switch {
	case q.Consumers == 0: // or it has no leader
		s.transport.troubled.Store(q.Name, true)
		s.end(errForgotten)
	case waiting && s.starving:
		s.end(errStarving)
	case losesRecreatedQueues(s.conn) && now.Sub(s.idleSince) >= renewAfter:
		s.end(driver.ErrRenew)
	}
	s.starving = waiting && !s.starving
}

// maxPinged bounds how many objects one Ping looks for. Each takes about a millisecond.
const maxPinged = 100

// missingOf returns an error that names the objects of p that the broker does not have.
func missingOf(ctx context.Context, d *declarer, p Plan) error {
	exists := map[string]func(*amqp.Channel) error{}
	for _, e := range p.Exchanges {
		exists[fmt.Sprintf("exchange %q", e.Name)] = e.exists
	}
	for _, q := range slices.Concat(p.adopted(), p.Queues) {
		exists[fmt.Sprintf("queue %q", q.Name)] = q.exists
	}
	var faults []error
	for _, name := range slices.Sorted(maps.Keys(exists))[:min(len(exists), maxPinged)] {
		if err := d.do(ctx, exists[name]); isNotFound(err) {
			faults = append(faults, fmt.Errorf("%s is missing", name))
		} else if err != nil {
			return err
		}
	}
	return errors.Join(faults...)
}
