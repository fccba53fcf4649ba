package rabbitmq

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/envelope"
)

// stream is one consuming channel. It ends with the channel, the connection, or the consumer (whose queue was deleted
// or moved).
type stream struct {
	transport *transport
	queue     driver.Queue
	nearLimit int // see transport.nearLimit
	conn      *amqp.Connection
	ch        *amqp.Channel
	acks      *acker
	plan      Plan         // of what it reads, without its retries and dead letters
	received  atomic.Int64 // deliveries returned by Next

	until time.Time // when it is forgotten after its failure; guarded by transport.consumed

	// What keepDeclared found at its last check.
	seen      int64     // value of received
	idleSince time.Time // when deliveries stopped
	starving  bool      // the queue had messages and the handlers had none
	compared  int       // times a wait queue that has not been seen was looked for

	other string // the last routing key that was compared with the topic, until one met
	mixed bool   // one has met

	first  <-chan amqp.Delivery
	others chan amqp.Delivery // of the consumers added by Widen

	over  chan struct{} // closed when the stream has ended
	once  sync.Once
	cause error // set once over is closed

	calling sync.Mutex // held by an AMQP method until its answer

	mu    sync.Mutex
	tags  int   // number of consumers so far: tags are never reused, not even after a consumer's end
	wider []int // tags of the consumers added by Widen
}

var (
	_ driver.Stream  = (*stream)(nil)
	_ driver.Watcher = (*stream)(nil)
	_ driver.Widener = (*stream)(nil)
	_ driver.Renewer = (*stream)(nil)
)

// closeTimeout bounds the orderly end of a channel.
const closeTimeout = 5 * time.Second

var errEnded = errors.New("rabbitmq: the stream has ended")

// Receive implements driver.Transport.
func (t *transport) Receive(ctx context.Context, q driver.Queue) (driver.Stream, error) {
	link := t.consuming
	if _, troubled := t.troubled.Load(q.Names.Queue); troubled {
		link = t.asking // RabbitMQ ends the connection of a consumer without a leader: not that of all others
	}
	ch, conn, _, err := link.channel(ctx)
	if err != nil {
		return nil, err
	}
	plan := t.design.permitted(t.design.source(q.Names, q.Topic, q.Patterns))
	s := &stream{
		transport: t, queue: q, conn: conn, ch: ch, acks: newAcker(ch), idleSince: time.Now(), plan: plan,
		others: make(chan amqp.Delivery), over: make(chan struct{}),
		nearLimit: t.nearLimit(ctx, slices.Concat(plan.adopted(), plan.Queues)[0]),
	}
	cancels, closes := ch.NotifyCancel(make(chan string, 1)), ch.NotifyClose(make(chan *amqp.Error, 1))
	go func() {
		for range cancels { // until the channel ends
			s.end(fmt.Errorf("rabbitmq: the broker has ended the consumer of queue %q, because the queue was deleted or moved, "+
				"or since RabbitMQ 4.3 because of its consumer timeout: %w", q.Names.Queue, brokers.ErrUnroutable))
		}
		if e := <-closes; e != nil { // reports a consumer timeout, for example
			s.end(fmt.Errorf("rabbitmq: the channel that consumes from queue %q has ended: %w", q.Names.Queue, e))
		}
		s.end(errEnded)
	}()
	t.consumed.add(s)
	if s.first, err = s.consume(ctx, 0, q.Window); err != nil {
		t.consumed.linger(s, lingering)
		_ = s.call(ctx, ch.Close) // most refusals have closed it
		if isNotFound(err) {
			err = fmt.Errorf("%w: %w", err, brokers.ErrUnroutable)
		}
		if errors.Is(err, errNoAnswer) || hasCode(err, amqp.InternalError) {
			t.troubled.Store(q.Names.Queue, true)
		}
		return nil, err
	}
	t.troubled.Delete(q.Names.Queue)
	t.checking.Do(func() { t.consuming.tasks.Go(func() { t.keepDeclared(t.consuming.life) }) })
	return s, nil
}

// consume starts the nth consumer of the channel.
func (s *stream) consume(ctx context.Context, n, prefetch int) (<-chan amqp.Delivery, error) {
	var deliveries <-chan amqp.Delivery
	err := s.call(ctx, func() (err error) {
		if err = s.ch.Qos(prefetch, 0, false); err == nil {
			deliveries, err = s.ch.Consume(s.queue.Names.Queue, tagName(n), false, false, false, false, nil)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("rabbitmq: consume from queue %q: %w", s.queue.Names.Queue, err)
	}
	return deliveries, nil
}

// call runs an AMQP method on the channel, after those whose callers no longer wait for them. Without an answer the
// stream ends: the messages of a consumer that starts late would be held and not read.
func (s *stream) call(ctx context.Context, method func() error) error {
	err := call(ctx, s.conn, func() error {
		s.calling.Lock()
		defer s.calling.Unlock()
		return method()
	}, nil)
	if errors.Is(err, errNoAnswer) {
		s.end(err)
	}
	return err
}

func tagName(n int) string { return "redrive-" + strconv.Itoa(n) }

func (s *stream) end(cause error) {
	s.once.Do(func() {
		s.cause = cause
		close(s.over)
	})
}

// Gone implements driver.Watcher.
func (s *stream) Gone() <-chan struct{} { return s.over }

// Next implements driver.Stream.
func (s *stream) Next(ctx context.Context) (driver.Delivery, error) {
	select {
	case <-s.over: // prefetched messages are redelivered
		return driver.Delivery{}, s.cause
	default:
	}
	select {
	case d, ok := <-s.first:
		if ok {
			return s.delivery(&d), nil
		}
		<-s.over
		return driver.Delivery{}, s.cause
	case d := <-s.others:
		return s.delivery(&d), nil
	case <-s.over:
		return driver.Delivery{}, s.cause
	case <-ctx.Done():
		return driver.Delivery{}, ctx.Err()
	}
}

// nearLimit returns half of the deliveries after which RabbitMQ may give up a message of q, which a consumer reads.
func (t *transport) nearLimit(ctx context.Context, q Queue) int {
	d := &declarer{link: t.consuming}
	defer d.close(ctx)
	args, _ := t.examine(ctx, d, q) // what cannot be seen may be as planned
	limit := min(t.design.deliveryLimit, usualLimit)
	if n, ok := integer(args["x-delivery-limit"]); ok && n > 0 { // -1 is none in RabbitMQ 4
		limit = int(min(int64(limit), n))
	}
	return max(1, limit/2)
}

// examine returns the arguments of q with what policies set, and warns of those by which messages may be lost. An
// operator may have recreated q, or set a policy, since the last look.
func (t *transport) examine(ctx context.Context, d *declarer, q Queue) (args amqp.Table, err error) {
	if err = d.do(ctx, q.exists); err == nil {
		args, err = t.design.look(ctx, d, q)
	}
	args, harms, _ := t.design.withPolicies(ctx, Queue{Name: q.Name}, args) // it has logged the error
	if before, _ := t.harms.Swap(q.Name, fmt.Sprint(harms)); before != fmt.Sprint(harms) {
		for _, harm := range harms {
			t.logger.Warn("rabbitmq: the broker can lose messages", "error", harm)
		}
	}
	return args, err
}

// delivery converts d. Classic queues only tell whether a message was delivered before.
func (s *stream) delivery(d *amqp.Delivery) driver.Delivery {
	s.received.Add(1)
	m, origin := s.message(d)
	found := driver.Delivery{
		Message: m, Origin: origin, Token: d, Rest: remaining(d.Headers, time.Now()),
		Suspect: origin.DeliveryCount, Earlier: origin.DeliveryCount, FromTopic: s.fromTopic(d),
	}
	if d.Redelivered {
		found.Earlier = max(1, found.Earlier)
	}
	found.NearLimit = origin.DeliveryCount >= s.nearLimit
	if found.FromTopic && d.Exchange == s.queue.Names.Exchange && d.RoutingKey != s.queue.Topic {
		s.compareTopic(d.RoutingKey)
	}
	// One that an operator sends back has other headers as well.
	if _, raw := d.Headers[keyUndecoded]; raw && len(d.Headers) == 1 {
		found.Malformed = "the headers cannot be decoded: AMQP clients allow 32 tables in one another and 8,192 entries; " +
			"their bytes are in " + keyUndecoded
	}
	return found
}

// fromTopic reports whether any producer may have written d. Retries return through the default exchange or the
// plugin's, and otherwise only from the wait queue of another transport or of an operator, which RabbitMQ records.
func (s *stream) fromTopic(d *amqp.Delivery) bool {
	design := s.transport.design
	ours := design.transport != transportReject && design.declare == declareAll
	return d.Exchange != "" && d.Exchange != pluginExchange(s.queue.Names) && (ours || !waited(d.Headers))
}

// compareTopic warns, once, if the queue is also that of a consumer of another topic: orders.eu.mail is that of group
// eu.mail on topic orders, and of group mail on topic orders.eu. AMQP shows neither the bindings of a queue nor its
// other consumers; only a message of that topic does.
func (s *stream) compareTopic(other string) {
	const group = "\x01"
	naming, queue := &s.transport.design.naming, s.queue.Names.Queue
	if s.mixed || s.other == other || naming.Patterns {
		return
	}
	before, after, _ := strings.Cut(naming.For(other, group).Queue, group)
	its := strings.TrimSuffix(strings.TrimPrefix(queue, before), after)
	s.other, s.mixed = other, naming.For(other, its).Queue == queue || naming.For(other, "").Queue == queue
	if s.mixed {
		s.transport.logger.Warn("rabbitmq: the names of consumers of two topics meet, and each gets a part of the other's "+
			"messages: rename the group of one, and delete its binding to this queue",
			"queue", queue, "topic", s.queue.Topic, "other_topic", other)
	}
}

// Renew implements driver.Renewer.
func (s *stream) Renew(d *driver.Delivery) *message.Message {
	m, _ := s.message(d.Token.(*amqp.Delivery))
	return m
}

// message converts d, without changing its bytes, and records its origin. A retry has come through its delay queue: the
// routing key and exchange of the first publication are then in its headers, which count if they were written for this
// queue.
func (s *stream) message(d *amqp.Delivery) (*message.Message, envelope.Origin) {
	m := unmarshal(d)
	m.Payload = bytes.Clone(d.Body)
	queue := s.queue.Names.Queue
	o := envelope.Origin{
		Broker:      Scheme,
		Topic:       s.queue.Topic,
		Consumer:    queue,
		Exchange:    d.Exchange,
		RoutingKey:  d.RoutingKey,
		Timestamp:   d.Timestamp,
		Redelivered: d.Redelivered,
	}
	if n, ok := integer(d.Headers["x-delivery-count"]); ok && n > 0 && n <= 1<<30 { // of a quorum queue
		o.DeliveryCount = int(n)
	}
	consumer := m.Metadata[envelope.KeyConsumer]
	if key := m.Metadata[envelope.KeyRoutingKey]; key != "" && consumer == queue {
		o.RoutingKey = key
		o.Exchange = m.Metadata[envelope.KeyExchange]
	}
	if consumer == "" || consumer == queue {
		m.Metadata[envelope.KeyRoutingKey], m.Metadata[envelope.KeyExchange] = o.RoutingKey, o.Exchange
	} // otherwise it is another consumer's dead letter, read by a collector, and keeps that consumer's origin
	if s.transport.design.transport == transportReject {
		countRejections(d.Headers, queue, m.Metadata)
	}
	return m, o
}

// Settle implements driver.Stream.
func (s *stream) Settle(_ context.Context, settled []driver.Settlement) []error {
	return s.acks.settle(settled)
}

// Widen implements driver.Widener. RabbitMQ cannot change the prefetch of a consumer: others are added on the channel,
// each with as much as all before it, and end when the window returns to that of the first one.
func (s *stream) Widen(ctx context.Context, window int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch have := s.queue.Window << len(s.wider); {
	case window <= s.queue.Window:
		for n := len(s.wider); n > 0; n-- {
			tag := tagName(s.wider[n-1])
			if err := s.call(ctx, func() error { return s.ch.Cancel(tag, false) }); err != nil {
				return err
			}
			s.wider = s.wider[:n-1]
		}
	case window > have:
		s.tags++
		deliveries, err := s.consume(ctx, s.tags, have)
		if err != nil {
			return err
		}
		s.wider = append(s.wider, s.tags)
		go func() { // passes on its deliveries until it or the stream ends
			for d := range deliveries {
				select {
				case s.others <- d:
				case <-s.over:
					return
				}
			}
		}()
	}
	return nil
}

// Close implements driver.Stream. Unacked messages are redelivered.
//
// It cancels the consumer before it closes the channel. A channel passes acks on to a quorum queue without waiting, and
// when it is closed, RabbitMQ 3.10 forgets those that it has not passed on yet: about ten messages would be handled
// again after every shutdown. The answer to the cancel comes from the queue, after the acks. If it has no leader, which
// check finds, RabbitMQ would end the connection.
func (s *stream) Close(ctx context.Context) error {
	forgotten := false
	select {
	case <-s.over:
		forgotten = errors.Is(s.cause, errForgotten)
		s.transport.consumed.linger(s, lingering)
	default:
		s.transport.consumed.linger(s, 0)
	}
	_ = s.call(ctx, func() error { // an error means that the channel is gone, which is the goal
		if !forgotten {
			_ = s.ch.Cancel(tagName(0), false)
		}
		return s.ch.Close()
	})
	s.end(errEnded)
	return nil
}
