package brokers

import (
	"context"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Drain makes inner stop as [Broker.Subscriber] promises: at Close, or when the context of Subscribe ends, nothing
// more is handed out, running handlers go on with contexts that are not cancelled, and only when they have all acked
// or nacked, or timeout has passed, does the channel close and inner stop. A message that inner had ready and that was
// not handed out is nacked, so inner must return nacked messages to their queue.
//
// Watermill's router cancels handlers, and closes the publishers of their results, as soon as it begins to close; what
// holds both off is that the channel of messages stays open. Its CloseTimeout must therefore exceed timeout.
//
// Closing the returned subscriber closes inner. Closing again waits for the first Close and returns nil.
func Drain(inner message.Subscriber, timeout time.Duration) message.Subscriber {
	d := &drainer{inner: inner, timeout: timeout, closing: make(chan struct{}), closed: make(chan struct{})}
	if init, ok := inner.(message.SubscribeInitializer); ok {
		return &initializingDrainer{drainer: d, init: init}
	}
	return d
}

type drainer struct {
	inner   message.Subscriber
	timeout time.Duration

	mu      sync.Mutex // guards stopped, and subscriptions.Add against subscriptions.Wait
	stopped bool

	closing       chan struct{}
	closed        chan struct{}
	subscriptions sync.WaitGroup
}

type initializingDrainer struct {
	*drainer
	init message.SubscribeInitializer
}

// SubscribeInitialize implements message.SubscribeInitializer for an inner subscriber that does.
func (d *initializingDrainer) SubscribeInitialize(topic string) error {
	return d.init.SubscribeInitialize(topic)
}

// Subscribe implements message.Subscriber.
func (d *drainer) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	d.mu.Lock()
	if d.stopped {
		d.mu.Unlock()
		return nil, ErrClosed
	}
	d.subscriptions.Add(1)
	d.mu.Unlock()

	// The handlers' contexts derive from this one. It keeps the values of ctx and ends only after the drain.
	subscription, cancel := context.WithCancel(context.WithoutCancel(ctx))
	in, err := d.inner.Subscribe(subscription, topic)
	if err != nil {
		cancel()
		d.subscriptions.Done()
		return nil, err
	}
	out := make(chan *message.Message)
	go func() {
		defer d.subscriptions.Done()
		d.forward(ctx, in, out, cancel)
	}()
	return out, nil
}

func (d *drainer) forward(ctx context.Context, in <-chan *message.Message, out chan<- *message.Message, cancel context.CancelFunc) {
	var flying inFlight
	defer func() {
		// inner may be sending: what it still delivers is nacked until it has seen the end of its context.
		cancel()
		for m := range in {
			m.Nack()
		}
		close(out)
	}()
	for {
		var m *message.Message
		select {
		case <-ctx.Done():
		case <-d.closing:
		case m = <-in:
			if m == nil { // inner stopped on its own; its messages are no longer ours to wait for
				return
			}
			select {
			case out <- m:
				flying.add(m)
				continue
			case <-ctx.Done():
			case <-d.closing:
			}
			m.Nack()
		}
		flying.wait(d.timeout)
		return
	}
}

// Close implements message.Subscriber.
func (d *drainer) Close() error {
	d.mu.Lock()
	first := !d.stopped
	d.stopped = true
	d.mu.Unlock()
	if !first {
		<-d.closed
		return nil
	}
	defer close(d.closed)
	close(d.closing)
	d.subscriptions.Wait()
	return d.inner.Close()
}

// inFlight holds the messages that were handed out and not yet acked or nacked. One goroutine uses it.
type inFlight struct {
	messages []*message.Message
	sweepAt  int
}

// add remembers m. Settled messages are swept out when their number may have doubled, which costs a constant per
// message.
func (f *inFlight) add(m *message.Message) {
	if len(f.messages) >= f.sweepAt {
		kept := f.messages[:0]
		for _, old := range f.messages {
			if !settled(old) {
				kept = append(kept, old)
			}
		}
		clear(f.messages[len(kept):])
		f.messages = kept
		f.sweepAt = max(16, 2*len(kept))
	}
	f.messages = append(f.messages, m)
}

// wait returns when every message is acked or nacked, or after timeout.
func (f *inFlight) wait(timeout time.Duration) {
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	for _, m := range f.messages {
		select {
		case <-m.Acked():
		case <-m.Nacked():
		case <-deadline.C:
			return
		}
	}
}

func settled(m *message.Message) bool {
	select {
	case <-m.Acked():
		return true
	case <-m.Nacked():
		return true
	default:
		return false
	}
}
