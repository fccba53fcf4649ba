package watermill

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/envelope"
)

// errEnded ends a stream whose subscriber has closed a channel.
var errEnded = errors.New("the subscriber has ended the subscription")

// stream merges the subscriptions of one consumer: those of its topic, and that of its retries.
type stream struct {
	t        *transport
	cancel   context.CancelFunc
	ctx      context.Context
	own      <-chan *message.Message // of the first subscription, read by Next itself
	in       chan received           // messages of the others
	closed   chan struct{}
	failed   chan struct{}
	fail     sync.Once
	forwards sync.WaitGroup
	subs     []func() // close the subscriptions of this stream

	mu       sync.Mutex
	received map[*message.Message]struct{} // unsettled
	acked    []*message.Message            // the subscriber may not have noticed their acks
}

// received is a message with its original.
type received struct {
	original *message.Message // to be acked
	retry    bool             // from the Delays broker
}

func (s *stream) open(q *driver.Queue) error {
	n := 1
	if s.t.cfg.Competing {
		n = q.Concurrency
	}
	sub, done, err := s.t.subscriber(q.Group)
	if err != nil {
		return err
	}
	s.subs = append(s.subs, done)
	for i := range n {
		messages, err := sub.Subscribe(s.ctx, q.Topic)
		if err != nil {
			return err
		}
		if i == 0 {
			s.own = messages // passing each on to Next would cost more than the rest of a delivery
			continue
		}
		s.forward(messages, false)
	}
	if s.t.cfg.Delays == nil {
		return nil
	}
	retries, messages, err := s.t.subscribeRetries(s.ctx, q)
	if err != nil {
		return err
	}
	s.subs = append(s.subs, func() { _ = retries.Close() })
	s.forward(messages, true)
	return nil
}

// forward passes messages on to Next until their channel is closed. It nacks those that arrive after Close.
func (s *stream) forward(messages <-chan *message.Message, retry bool) {
	s.forwards.Go(func() {
		for m := range messages {
			if m == nil {
				continue
			}
			select {
			case <-s.closed:
				m.Nack()
				continue
			default:
			}
			select {
			case s.in <- received{m, retry}:
			case <-s.closed:
				m.Nack()
			}
		}
		s.fail.Do(func() { close(s.failed) })
	})
}

// Next implements driver.Stream.
func (s *stream) Next(ctx context.Context) (driver.Delivery, error) {
	select {
	case m, ok := <-s.own:
		if !ok {
			return driver.Delivery{}, errEnded
		}
		if m == nil { // a fault of the subscriber's
			return s.Next(ctx)
		}
		return s.delivery(received{m, false}), nil //nolint:contextcheck // pure; the message has a separate context
	case r := <-s.in:
		return s.delivery(r), nil //nolint:contextcheck // likewise
	case <-ctx.Done():
		return driver.Delivery{}, ctx.Err()
	case <-s.failed:
		return driver.Delivery{}, errEnded
	}
}

func (s *stream) delivery(r received) driver.Delivery {
	m := r.original
	s.mu.Lock()
	s.received[m] = struct{}{}
	s.mu.Unlock()
	d := driver.Delivery{Message: r.message(), FromTopic: !r.retry, Token: r}
	switch o, ok := envelope.OriginFrom(m.Context()); {
	case ok:
		d.Origin.Timestamp = o.Timestamp
	case !r.retry && s.t.cfg.Origin != nil:
		d.Origin = s.t.cfg.Origin(m)
	}
	return d
}

// message is the message to deliver, separate from the subscriber's own.
func (r received) message() *message.Message {
	m := r.original
	if r.retry {
		return delayed(m)
	}
	out := message.NewMessage(m.UUID, bytes.Clone(m.Payload)) // a handler may write into it
	maps.Copy(out.Metadata, m.Metadata)
	return out
}

// Renew implements driver.Renewer.
func (s *stream) Renew(d *driver.Delivery) *message.Message { return d.Token.(received).message() }

// Context implements driver.Contexts: handlers see the values that the subscriber has put into its messages.
func (s *stream) Context(parent context.Context, d *driver.Delivery) (context.Context, context.CancelFunc) {
	return &withValues{Context: parent, values: d.Token.(received).original.Context()}, nil
}

type withValues struct {
	context.Context

	values context.Context
}

// Value prefers the engine's values.
func (c *withValues) Value(key any) any {
	if v := c.Context.Value(key); v != nil {
		return v
	}
	return c.values.Value(key)
}

// Settle implements driver.Stream. Whether an ack reaches a server is up to the subscriber.
func (s *stream) Settle(_ context.Context, settled []driver.Settlement) []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range settled {
		m := settled[i].Delivery.Token.(received).original
		delete(s.received, m)
		if settled[i].Answer == driver.Ack {
			m.Ack()
			s.noteAck(m)
		} else {
			m.Nack()
		}
	}
	return nil
}

// maxNoted bounds how many acks are awaited: some subscribers never cancel a message's context.
const maxNoted = 256

// noteAck keeps an acked message until the subscriber has cancelled its context.
func (s *stream) noteAck(m *message.Message) {
	if s.t.cfg.AckGrace == 0 {
		return
	}
	s.acked = slices.DeleteFunc(append(s.acked, m), func(m *message.Message) bool { return m.Context().Err() != nil })
	if len(s.acked) > maxNoted {
		s.acked = slices.Delete(s.acked, 0, len(s.acked)-maxNoted)
	}
}

// awaitAcks returns when the subscriber has noticed every ack, or after AckGrace.
func (s *stream) awaitAcks(ctx context.Context) {
	s.mu.Lock()
	acked := slices.Clone(s.acked)
	s.mu.Unlock()
	if len(acked) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, s.t.cfg.AckGrace)
	defer cancel()
	for _, m := range acked {
		select {
		case <-m.Context().Done():
		case <-ctx.Done():
			return
		}
	}
}

// Close implements driver.Stream. It first waits until the subscriber has processed the acks. Then it ends the
// subscriptions, and only then nacks what is in flight: an open subscriber would redeliver it at once.
func (s *stream) Close(ctx context.Context) error {
	s.awaitAcks(ctx)
	close(s.closed)
	if s.own != nil {
		s.forward(s.own, false) // and nacks messages that still arrive
	}
	s.cancel()
	s.mu.Lock()
	for m := range s.received {
		m.Nack()
	}
	clear(s.received)
	s.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for _, done := range s.subs {
			done()
		}
		s.forwards.Wait()
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("a subscriber does not close: %w", context.Cause(ctx))
	}
}
