package rabbitmq

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/internal/wait"
)

// sender publishes with confirms on one channel. When it loses the channel, it repeats the publications in flight on a
// new one. It is safe for concurrent use. More channels do not pay: with 64 callers, two to four of them were not
// measurably faster and cost 6 to 17 % more processor time per message (docs/performance.md).
type sender struct {
	link    *connection
	channel atomic.Pointer[confirmChannel]
	turn    turn // to open a channel
}

// turn is a mutex that can be awaited along with a context: sending locks it, receiving unlocks it. Its size is 1.
type turn chan struct{}

// refusals is how often a publication refused by the broker is retried, for 1.5 s in all. A busy broker refuses
// publications to a quorum queue that was declared a moment ago, and says the same when a queue is full.
const refusals = 5

// refusing is how long a channel may refuse publications before it is replaced. A channel of RabbitMQ 3 continues to
// refuse those to a quorum queue after the queue's limit has been lifted, while other channels accept them.
const refusing = 10 * time.Second

// sendEach publishes batch in order and returns when the broker has confirmed or refused all of it, with an error for
// each publication, nil for those that are confirmed. It waits out a lost connection, and repeats publications that
// were not confirmed when it broke, until ctx ends.
func (s *sender) sendEach(ctx context.Context, batch []outgoing) []error {
	if len(batch) == 0 {
		return nil
	}
	faults := make([]error, len(batch))
	todo := make([]int, len(batch)) // indexes of unsettled publications
	for i := range todo {
		todo[i] = i
	}
	for round := 0; ; round++ {
		todo = s.round(ctx, batch, todo, faults, round < refusals)
		if len(todo) == 0 {
			return faults
		}
		if wait.For(ctx, pause(round)) != nil {
			for _, i := range todo {
				faults[i] = fmt.Errorf("%w: %w", batch[i].unconfirmed(ctx), faults[i])
			}
			return faults
		}
	}
}

// round publishes those of batch that todo lists on one channel and records the error of each in faults. It returns
// those to be published again, because there was no channel or it was lost before the confirm or, with again, because
// the broker refused them.
func (s *sender) round(ctx context.Context, batch []outgoing, todo []int, faults []error, again bool) (lost []int) {
	cc, err := s.open(ctx)
	if err != nil {
		for _, i := range todo {
			faults[i] = err
		}
		if ctx.Err() == nil && !errors.Is(err, brokers.ErrClosed) {
			return todo
		}
		return nil
	}
	note := func(i int, err error) {
		faults[i] = err
		refused := errors.Is(err, ErrRefused)
		if errors.Is(err, errConnectionLost) || again && refused {
			lost = append(lost, i)
		} else if refused && time.Since(cc.opened) > refusing {
			cc.refuses.Store(true)
		}
	}
	flights := make([]*flight, 0, min(len(todo), window))
	settleFirst := func() bool {
		if len(flights) == 0 {
			return false
		}
		f := flights[0]
		flights = flights[1:]
		note(f.at, cc.settle(ctx, f))
		return true
	}
	for _, i := range todo {
		f, err := cc.post(ctx, &batch[i], settleFirst)
		if err != nil {
			note(i, err)
			continue
		}
		f.at = i
		flights = append(flights, f)
	}
	for settleFirst() {
	}
	return lost
}

// open returns the channel, opening a new one if necessary, once the broker accepts publications.
func (s *sender) open(ctx context.Context) (*confirmChannel, error) {
	if err := s.link.awaitUnblocked(ctx); err != nil {
		return nil, err
	}
	if cc := s.channel.Load(); cc != nil && cc.usable() {
		return cc, nil
	}
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return nil, fmt.Errorf("rabbitmq: %w: %w", ErrUnconfirmed, context.Cause(ctx))
	}
	old := s.channel.Load()
	if old != nil && old.usable() {
		return old, nil
	}
	if old != nil && !old.ch.IsClosed() {
		s.link.tasks.Go(old.close)
	}
	cc, err := openConfirmChannel(ctx, s.link)
	if err != nil {
		return nil, err
	}
	s.channel.Store(cc)
	return cc, nil
}

// window is how many publications one channel may have in flight. amqp091-go drops a returned message if the buffer of
// returns is full, so the buffer has the same size.
const window = 1024

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
	slots   chan struct{} // one per publication in flight
	opened  time.Time
	suspect atomic.Bool // a confirm is missing for confirmTimeout: the channel gets no further publications
	refuses atomic.Bool // nor does one that has refused some for too long
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
	sent     time.Time
	confirm  *amqp.DeferredConfirmation
	returned string // RabbitMQ's reason; guarded by confirmChannel.mu
}

func openConfirmChannel(ctx context.Context, l *connection) (*confirmChannel, error) {
	ch, conn, wire, err := l.channel(ctx)
	if err != nil {
		return nil, err
	}
	cc := &confirmChannel{
		link: l, conn: conn, wire: wire, ch: ch, opened: time.Now(), slots: make(chan struct{}, window),
		returns: ch.NotifyReturn(make(chan amqp.Return, window)),
		ended:   make(chan struct{}), turn: make(turn, 1), pending: map[uint64]*flight{},
	}
	closes := ch.NotifyClose(make(chan *amqp.Error, 1))
	go func() {
		cc.cause = <-closes
		close(cc.ended)
	}()
	if err := call(ctx, conn, func() error { return ch.Confirm(false) }, ch.Close); err != nil {
		return nil, fmt.Errorf("rabbitmq: ask for confirms: %w", err)
	}
	return cc, nil
}

// usable reports whether the channel accepts new publications.
func (cc *confirmChannel) usable() bool {
	return !cc.suspect.Load() && !cc.refuses.Load() && !cc.ch.IsClosed()
}

// close ends the channel after its last confirm. If confirms are missing it does not wait: closing it releases the
// callers that wait for them, which then publish on another one.
func (cc *confirmChannel) close() {
	patience := time.NewTimer(closeTimeout)
	defer patience.Stop()
	for n := 0; n < window && !cc.suspect.Load(); n++ {
		select {
		case cc.slots <- struct{}{}:
		case <-cc.ended:
			return
		case <-patience.C:
			cc.suspect.Store(true)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = call(ctx, cc.conn, cc.ch.Close, nil) // it is gone either way
}

// reserve takes a slot for one publication. While all are taken it calls free, which settles one of the caller's own
// publications in flight, or returns false if there are none: otherwise two large batches could wait for each other.
func (cc *confirmChannel) reserve(ctx context.Context, o *outgoing, free func() bool) error {
	for more := true; more; more = free() {
		select {
		case cc.slots <- struct{}{}:
			return nil
		default:
		}
	}
	select {
	case cc.slots <- struct{}{}:
		return nil
	case <-cc.ended:
		return channelError(o, cc.cause)
	case <-ctx.Done():
		return cc.unconfirmed(ctx, o)
	}
}

// post sends o and returns before the confirm. Unless it fails, the caller must settle the flight. See reserve for
// free.
func (cc *confirmChannel) post(ctx context.Context, o *outgoing, free func() bool) (*flight, error) {
	if err := cc.reserve(ctx, o, free); err != nil {
		return nil, err
	}
	// When the broker stops reading, publishers wait here, for their turn and for room in the buffer, where their contexts
	// release them. Nothing would release them from a blocked write.
	err := checkSize(o, cmp.Or(cc.conn.Config.FrameSize, 128<<10))
	if err != nil {
		err = o.fault(err)
	} else {
		err = cc.takeTurn(ctx, o)
	}
	if err != nil {
		<-cc.slots
		return nil, err
	}
	defer func() { <-cc.turn }()

	// Returned messages are matched with pending, so the flight must be there before the broker can answer.
	f := &flight{outgoing: o, sent: time.Now()}
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
		return channelError(o, cc.cause)
	case <-ctx.Done():
	}
	return cc.unconfirmed(ctx, o)
}

// forget releases the slot of f and returns why the broker returned the message, or "".
func (cc *confirmChannel) forget(f *flight, tag uint64) string {
	cc.mu.Lock()
	for len(cc.returns) > 0 { // nothing else receives from it
		r := <-cc.returns
		if of := cc.match(&r); of != nil {
			of.returned = fmt.Sprintf("%d %s", r.ReplyCode, r.ReplyText)
		}
	}
	delete(cc.pending, tag)
	reason := f.returned
	cc.mu.Unlock()
	<-cc.slots
	return reason
}

// settle waits for the broker's answer to f. RabbitMQ sends basic.return before basic.ack, and amqp091-go reads them
// with one goroutine: with the confirm, a return of this message has been put into cc.returns.
func (cc *confirmChannel) settle(ctx context.Context, f *flight) error {
	select {
	case <-f.confirm.Done():
	case <-ctx.Done():
		cc.abandon(f)
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
		return channelError(f.outgoing, cc.cause)
	case <-ctx.Done():
		return cc.unconfirmed(ctx, f.outgoing)
	}
}

// confirmTimeout is how long a confirm may be missing before the channel is replaced, because it may never come.
const confirmTimeout = 5 * time.Second

// abandon keeps the place of a publication whose caller no longer waits, which says nothing about the channel and the
// publications of others. It copies the payload, because the caller may reuse it.
func (cc *confirmChannel) abandon(f *flight) {
	cc.mu.Lock()
	o := *f.outgoing
	o.of, o.msg.Body = nil, bytes.Clone(o.msg.Body)
	f.outgoing = &o
	cc.mu.Unlock()
	cc.link.tasks.Go(func() {
		missing := time.NewTimer(confirmTimeout - time.Since(f.sent))
		defer missing.Stop()
		select {
		case <-f.confirm.Done():
		case <-cc.ended:
		case <-missing.C:
			cc.suspect.Store(true)
		}
		cc.forget(f, f.confirm.DeliveryTag)
	})
}

// match finds the flight of a returned message, which has no delivery tag. Returns arrive in the order of publication,
// so among identical messages it is the oldest, and it does not matter which of them it was. The headers only decide
// between candidates, because not every field comes back as the Go value that was sent.
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
	if b := cc.link.whyBlocked(); b != nil {
		err = o.fault(fmt.Errorf("%w (%s): %w: %w", ErrBlocked, b.reason, ErrUnconfirmed, context.Cause(ctx)))
	}
	return err
}

func (o *outgoing) unconfirmed(ctx context.Context) error {
	return o.fault(fmt.Errorf("%w: %w", ErrUnconfirmed, context.Cause(ctx)))
}

// fault adds the destination to err.
func (o *outgoing) fault(err error) error {
	return fmt.Errorf("rabbitmq: publish to exchange %q with routing key %q: %w", o.exchange, o.key, err)
}
