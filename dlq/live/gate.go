package live

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// gate is closed by a pause, for all subscriptions of a process.
type gate struct {
	mu      sync.Mutex
	used    bool
	paused  bool
	problem string
	changed chan struct{} // closed at the next change
}

func newGate() *gate { return &gate{changed: make(chan struct{})} }

// set opens or closes the gate, and reports whether that is a change.
func (g *gate) set(paused bool) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.paused == paused {
		return false
	}
	g.paused = paused
	close(g.changed)
	g.changed = make(chan struct{})
	return true
}

func (g *gate) state() (used, paused bool, problem string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.used, g.used && g.paused, g.problem
}

// current returns whether the gate is closed, and a channel that is closed at the next change.
func (g *gate) current() (paused bool, changed <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.paused, g.changed
}

func (g *gate) fault(problem string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.problem = problem
}

// Subscriber puts the gate in front of a subscriber. When an operator pauses the service, its subscriptions end as at a
// shutdown: handlers finish, and other messages return to the broker, for other processes. When intake is resumed, they
// are opened again. Use it with subscribers that keep messages for an absent group, as those of package brokers do.
func (m *Monitor) Subscriber(inner message.Subscriber) message.Subscriber {
	m.gate.mu.Lock()
	m.gate.used = true
	m.gate.mu.Unlock()
	s := &gated{inner: inner, gate: m.gate}
	s.open, s.close = context.WithCancel(context.Background())
	return s
}

type gated struct {
	inner   message.Subscriber
	gate    *gate
	open    context.Context // ends when the subscriber is closed
	close   context.CancelFunc
	running sync.WaitGroup
}

// String is the name of the subscriber behind the gate in Watermill's contexts and metrics.
func (s *gated) String() string {
	if named, ok := s.inner.(fmt.Stringer); ok {
		return named.String()
	}
	return "live.Subscriber"
}

// Subscribe implements message.Subscriber. It makes the first subscription even during a pause, to return its error.
func (s *gated) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	sub, cancel := context.WithCancel(ctx)
	messages, err := s.inner.Subscribe(sub, topic)
	if err != nil {
		cancel()
		return nil, err
	}
	out := make(chan *message.Message)
	s.running.Go(func() {
		defer close(out)
		s.forward(ctx, topic, messages, cancel, out)
	})
	return out, nil
}

// resubscribePause is the pause before a failed subscription is retried.
const resubscribePause = time.Second

// forward forwards messages until ctx ends or the subscriber is closed, with a new subscription after each pause.
func (s *gated) forward(
	ctx context.Context, topic string, messages <-chan *message.Message, cancel context.CancelFunc,
	out chan<- *message.Message,
) {
	for {
		if paused := s.untilPause(messages, cancel, out); !paused {
			return // the subscriber has ended the subscription
		}
		if messages = s.resubscribe(ctx, topic, &cancel); messages == nil {
			return
		}
	}
}

// untilPause forwards messages until their channel is closed, and reports whether that was because of a pause.
func (s *gated) untilPause(messages <-chan *message.Message, cancel context.CancelFunc,
	out chan<- *message.Message,
) (ended bool) {
	defer cancel()
	for {
		paused, changed := s.gate.current()
		if paused {
			ended = true
			cancel()
			changed = nil
		}
		select {
		case m, open := <-messages:
			if !open {
				return ended
			}
			if paused { // received before the pause took effect: leave it to another process
				m.Nack()
				continue
			}
			select {
			case out <- m:
			case <-m.Context().Done():
			}
		case <-changed:
		}
	}
}

// resubscribe subscribes again when the gate is open; it returns nil when the subscriber or the context has ended.
func (s *gated) resubscribe(ctx context.Context, topic string, cancel *context.CancelFunc) <-chan *message.Message {
	for {
		paused, changed := s.gate.current()
		if cmp.Or(ctx.Err(), s.open.Err()) != nil {
			return nil
		}
		var wait <-chan time.Time
		if !paused {
			sub, stop := context.WithCancel(ctx)
			messages, err := s.inner.Subscribe(sub, topic)
			if err == nil {
				s.gate.fault("")
				*cancel = stop
				return messages
			}
			stop()
			s.gate.fault("subscribing to " + topic + ": " + err.Error())
			wait = time.After(resubscribePause)
		}
		select {
		case <-ctx.Done():
		case <-s.open.Done():
		case <-changed:
		case <-wait:
		}
	}
}

// Close closes the subscriber behind the gate, and waits until nothing more is delivered.
func (s *gated) Close() error {
	s.close()
	err := s.inner.Close()
	s.running.Wait()
	return err
}

// SubscribeInitialize implements message.SubscribeInitializer if the subscriber behind the gate does.
func (s *gated) SubscribeInitialize(topic string) error {
	if init, ok := s.inner.(message.SubscribeInitializer); ok {
		return init.SubscribeInitialize(topic)
	}
	return nil
}
