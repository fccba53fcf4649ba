package rabbitmq

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers/driver"
)

// window is how many publications one channel may have in flight. amqp091-go drops a returned message if the buffer of
// returns is full, so the buffer has the same size.
const window = 1024

// outgoing is one publication.
type outgoing struct {
	of            *driver.Outgoing // the publication that it renders
	index         int              // in the call it belongs to
	exchange, key string
	msg           amqp.Publishing
	optional      bool // no fault if the exchange finds no queue
}

// confirmChannel is a channel in confirm mode with many publications in flight. It ends with the channel.
type confirmChannel struct {
	link    *connection
	conn    *amqp.Connection
	wire    *coalescing
	ch      *amqp.Channel
	places  chan struct{} // one per publication in flight
	suspect atomic.Bool   // a confirm is missing: the channel gets no further publications
	ended   chan struct{}
	cause   *amqp.Error // once ended is closed
	turn    turn        // to publish

	mu      sync.Mutex // guards pending, and receiving from returns
	pending map[uint64]*flight
	returns chan amqp.Return
}

// flight is a publication that waits for its confirm.
type flight struct {
	*outgoing
	at       int // in the sender's batch
	confirm  *amqp.DeferredConfirmation
	returned string // RabbitMQ's reason; guarded by confirmChannel.mu
}

func openConfirmChannel(ctx context.Context, l *connection) (*confirmChannel, error) {
	ch, conn, wire, err := l.channel(ctx)
	if err != nil {
		return nil, err
	}
	cc := &confirmChannel{
		link: l, conn: conn, wire: wire, ch: ch, places: make(chan struct{}, window),
		returns: ch.NotifyReturn(make(chan amqp.Return, window)),
		ended:   make(chan struct{}), turn: newTurn(), pending: map[uint64]*flight{},
	}
	closes := ch.NotifyClose(make(chan *amqp.Error, 1))
	go func() {
		cc.cause = <-closes
		close(cc.ended)
	}()
	if err := call(ctx, conn, func() error { return ch.Confirm(false) }); err != nil {
		return nil, fmt.Errorf("rabbitmq: ask for confirms: %w", err)
	}
	return cc, nil
}

// usable reports whether the channel accepts new publications.
func (cc *confirmChannel) usable() bool { return !cc.suspect.Load() && !cc.ch.IsClosed() }

// reserve takes a place for one publication. While there is none it calls free, which settles one of the caller's
// publications in flight and returns false if there are none: two large batches would wait for each other's places.
func (cc *confirmChannel) reserve(ctx context.Context, o *outgoing, free func() bool) error {
	for more := true; more; more = free() {
		select {
		case cc.places <- struct{}{}:
			return nil
		default:
		}
	}
	select {
	case cc.places <- struct{}{}:
		return nil
	case <-cc.ended:
		return deathOf(o, cc.cause)
	case <-ctx.Done():
		return cc.unconfirmed(ctx, o)
	}
}

// post sends o and returns before its confirm. Unless it fails, the caller must settle the flight. See reserve for free.
func (cc *confirmChannel) post(ctx context.Context, o *outgoing, free func() bool) (*flight, error) {
	if err := cc.reserve(ctx, o, free); err != nil {
		return nil, err
	}
	// When the broker stops reading, unsent bytes pile up: publishers wait for their turn and for room, where their
	// contexts release them, rather than in the write, where nothing would.
	err := checkSize(o, cmp.Or(cc.conn.Config.FrameSize, 128<<10))
	if err != nil {
		err = o.fault(err)
	} else {
		err = cc.takeTurn(ctx, o)
	}
	if err != nil {
		<-cc.places
		return nil, err
	}
	defer func() { <-cc.turn }()

	// A return is assigned by looking through pending, so the flight must be there before the broker can answer.
	f := &flight{outgoing: o}
	tag := cc.ch.GetNextPublishSeqNo()
	cc.mu.Lock()
	cc.pending[tag] = f
	cc.mu.Unlock()
	f.confirm, err = cc.ch.PublishWithDeferredConfirm(o.exchange, o.key, !o.optional, false, o.msg)
	if err != nil {
		cc.forget(f, tag)
		return nil, fmt.Errorf("%w: %w", errConnectionLost, err)
	}
	return f, nil
}

// takeTurn waits until the caller may write.
func (cc *confirmChannel) takeTurn(ctx context.Context, o *outgoing) error {
	select {
	case cc.turn <- struct{}{}:
		if cc.wire.room(ctx) == nil {
			return nil
		}
		<-cc.turn
	case <-cc.ended:
		return deathOf(o, cc.cause)
	case <-ctx.Done():
	}
	cc.suspect.Store(true)
	return cc.unconfirmed(ctx, o)
}

// forget releases the place of f and returns the reason for which the broker returned it, or "".
func (cc *confirmChannel) forget(f *flight, tag uint64) string {
	cc.mu.Lock()
	for len(cc.returns) > 0 { // only here they are received
		r := <-cc.returns
		if of := cc.match(&r); of != nil {
			of.returned = fmt.Sprintf("%d %s", r.ReplyCode, r.ReplyText)
		}
	}
	delete(cc.pending, tag)
	reason := f.returned
	cc.mu.Unlock()
	<-cc.places
	return reason
}

// settle waits for the broker's answer to f. RabbitMQ sends basic.return before basic.ack, and amqp091-go reads them
// with one goroutine: with the confirm, a return of this message has been put into cc.returns.
func (cc *confirmChannel) settle(ctx context.Context, f *flight) error {
	select {
	case <-f.confirm.Done():
	case <-ctx.Done():
		cc.suspect.Store(true)
		cc.forget(f, f.confirm.DeliveryTag)
		return cc.unconfirmed(ctx, f.outgoing)
	}
	reason := cc.forget(f, f.confirm.DeliveryTag)
	switch {
	case f.confirm.Acked() && reason == "":
		return nil
	case f.confirm.Acked():
		return &UnroutableError{Exchange: f.exchange, RoutingKey: f.key, Reason: reason}
	case !cc.ch.IsClosed():
		return f.fault(ErrRefused)
	}
	select { // amqp091-go reports publications in flight as refused when a channel ends
	case <-cc.ended:
		return deathOf(f.outgoing, cc.cause)
	case <-ctx.Done():
		return cc.unconfirmed(ctx, f.outgoing)
	}
}

// match finds the flight of a returned message, which has no delivery tag. Returns arrive in the order of publication,
// so among identical messages it is the oldest; messages that are identical in all this and have the same destination
// are interchangeable. The headers only decide between candidates: not every field comes back as the Go value that was
// sent.
func (cc *confirmChannel) match(r *amqp.Return) *flight {
	var best *flight
	var bestTag uint64
	bestSame := false
	for tag, f := range cc.pending {
		if f.returned != "" || f.exchange != r.Exchange || f.key != r.RoutingKey ||
			f.msg.MessageId != r.MessageId || f.msg.CorrelationId != r.CorrelationId || !bytes.Equal(f.msg.Body, r.Body) {
			continue
		}
		same := len(f.msg.Headers) == 0 && len(r.Headers) == 0 || reflect.DeepEqual(f.msg.Headers, r.Headers)
		if best == nil || same && !bestSame || same == bestSame && tag < bestTag {
			best, bestTag, bestSame = f, tag, same
		}
	}
	return best
}

// unconfirmed returns the error of a publication that has timed out, and names the alarm if there is one.
func (cc *confirmChannel) unconfirmed(ctx context.Context, o *outgoing) error {
	err := o.unconfirmed(ctx)
	if p := cc.link.pressing(); p != nil {
		err = o.fault(fmt.Errorf("%w (%s): %w: %w", ErrBlocked, p.reason, ErrUnconfirmed, context.Cause(ctx)))
	}
	return err
}

func (o *outgoing) unconfirmed(ctx context.Context) error {
	return o.fault(fmt.Errorf("%w: %w", ErrUnconfirmed, context.Cause(ctx)))
}

// fault is err with the place that was published to.
func (o *outgoing) fault(err error) error {
	return fmt.Errorf("rabbitmq: publish to exchange %q with routing key %q: %w", o.exchange, o.key, err)
}
