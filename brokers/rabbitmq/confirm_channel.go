package rabbitmq

import (
	"bytes"
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
	returns chan amqp.Return
	sorting atomic.Bool // returns have been taken from the channel and not yet been assigned
	suspect atomic.Bool // a confirm is missing: the channel gets no further publications
	ended   chan struct{}
	cause   *amqp.Error // once ended is closed

	turn chan struct{} // a mutex that can be awaited along with a context: holds one token while free

	mu      sync.Mutex // guards pending
	pending map[uint64]*flight
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
		link:    l,
		conn:    conn,
		wire:    wire,
		ch:      ch,
		places:  make(chan struct{}, window),
		returns: ch.NotifyReturn(make(chan amqp.Return, window)),
		ended:   make(chan struct{}),
		turn:    make(chan struct{}, 1),
		pending: map[uint64]*flight{},
	}
	cc.turn <- struct{}{}
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

// reserve takes a place for one publication. Without wait it fails at once if there is none: a caller that has
// publications in flight must settle one first, otherwise two large batches could wait for each other's places.
func (cc *confirmChannel) reserve(ctx context.Context, o *outgoing, wait bool) (bool, error) {
	select {
	case cc.places <- struct{}{}:
		return true, nil
	default:
		if !wait {
			return false, nil
		}
	}
	select {
	case cc.places <- struct{}{}:
		return true, nil
	case <-cc.ended:
		return false, deathOf(o, cc.cause)
	case <-ctx.Done():
		return false, cc.unconfirmed(ctx, o)
	}
}

// post sends o on a reserved place and returns before its confirm. Unless it fails, the caller must settle the flight.
func (cc *confirmChannel) post(ctx context.Context, o *outgoing) (*flight, error) {
	// When the broker stops reading, unsent bytes pile up: publishers wait for their turn and for room, where their
	// contexts release them, rather than in the write, where nothing would.
	select {
	case <-cc.turn:
	case <-cc.ended:
		<-cc.places
		return nil, deathOf(o, cc.cause)
	case <-ctx.Done():
		<-cc.places
		cc.suspect.Store(true)
		return nil, cc.unconfirmed(ctx, o)
	}
	defer func() { cc.turn <- struct{}{} }()
	if err := cc.wire.room(ctx); err != nil {
		<-cc.places
		cc.suspect.Store(true)
		return nil, cc.unconfirmed(ctx, o)
	}

	// A return is assigned by looking through pending, so the flight must be there before the broker can answer.
	f := &flight{outgoing: o}
	tag := cc.ch.GetNextPublishSeqNo()
	cc.mu.Lock()
	cc.pending[tag] = f
	cc.mu.Unlock()
	confirm, err := cc.ch.PublishWithDeferredConfirm(o.exchange, o.key, !o.optional, false, o.msg)
	if err != nil {
		cc.forget(f, tag)
		return nil, fmt.Errorf("%w: %w", errConnectionLost, err)
	}
	f.confirm = confirm
	return f, nil
}

// forget releases the place of f and returns the reason for which the broker returned it, or "".
func (cc *confirmChannel) forget(f *flight, tag uint64) string {
	cc.mu.Lock()
	delete(cc.pending, tag)
	reason := f.returned
	cc.mu.Unlock()
	<-cc.places
	return reason
}

// settle waits for the broker's answer to f.
func (cc *confirmChannel) settle(ctx context.Context, f *flight) error {
	select {
	case <-f.confirm.Done():
	case <-ctx.Done():
		cc.suspect.Store(true)
		cc.forget(f, f.confirm.DeliveryTag)
		return cc.unconfirmed(ctx, f.outgoing)
	}
	// RabbitMQ sends basic.return before basic.ack, and amqp091-go reads them with one goroutine: a return of this message
	// has been put into cc.returns by now. Check len first, sorting second: a goroutine that empties the channel has set
	// sorting before.
	if len(cc.returns) > 0 || cc.sorting.Load() {
		cc.sortReturns()
	}
	reason := cc.forget(f, f.confirm.DeliveryTag)
	if f.confirm.Acked() {
		if reason != "" {
			return &UnroutableError{Exchange: f.exchange, RoutingKey: f.key, Reason: reason}
		}
		return nil
	}
	if !cc.ch.IsClosed() {
		return f.fault(ErrRefused)
	}
	select { // amqp091-go reports publications in flight as refused when a channel ends
	case <-cc.ended:
		return deathOf(f.outgoing, cc.cause)
	case <-ctx.Done():
		return cc.unconfirmed(ctx, f.outgoing)
	}
}

// sortReturns assigns the returned messages to their flights.
func (cc *confirmChannel) sortReturns() {
	cc.mu.Lock()
	defer cc.mu.Unlock()
	cc.sorting.Store(true)
	defer cc.sorting.Store(false)
	for {
		select {
		case r, open := <-cc.returns:
			if !open {
				return
			}
			if f := cc.match(&r); f != nil {
				f.returned = fmt.Sprintf("%d %s", r.ReplyCode, r.ReplyText)
			}
		default:
			return
		}
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

// close ends the channel, and after the deadline of ctx the connection.
func (cc *confirmChannel) close(ctx context.Context) {
	if !cc.ch.IsClosed() {
		_ = call(ctx, cc.conn, cc.ch.Close) // it is gone either way
	}
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

// frameSize is the largest frame that the broker accepts.
func (cc *confirmChannel) frameSize() int {
	if n := cc.conn.Config.FrameSize; n > 0 {
		return n
	}
	return 128 << 10
}
