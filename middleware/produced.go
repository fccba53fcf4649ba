package middleware

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
)

// Watermill's router publishes the messages that a handler returned after all middlewares are done. If one could not be
// published then, the consumed message would be nacked, uncounted and forever. So produced messages carry the attempt
// that they belong to, and the publisher reports its errors to it.

// ProducedError is the error of an attempt whose handler succeeded but whose messages could not all be published.
type ProducedError struct{ Err error }

// Error returns the publisher's error.
func (e *ProducedError) Error() string { return "produced message not published: " + errorText(e.Err) }

// Unwrap returns the publisher's error.
func (e *ProducedError) Unwrap() error { return e.Err }

// attempt is a successful run of a handler whose messages are being published. It implements [envelope.Producer].
type attempt struct {
	message  *message.Message
	messages []*message.Message

	mu     sync.Mutex
	run    *run        // nil once the attempt is reported
	left   int         // messages left to publish
	used   atomic.Bool // by a publisher that reports
	failed bool
	err    error // of a failed attempt that could not be settled
}

// present returns the messages that are not nil: the router panics on one that is, which would not be counted.
//
//go:noinline
func present(produced []*message.Message) []*message.Message {
	if !slices.Contains(produced, nil) {
		return produced
	}
	return slices.DeleteFunc(slices.Clone(produced), func(m *message.Message) bool { return m == nil })
}

// produced hands the run over to the attempt, which ends with the last of its messages. The router acks the message
// only then, so the ack counts as their confirmation if the publisher does not report (because it is neither ours nor
// decorated).
//
//go:noinline
func (r *run) produced(produced []*message.Message) {
	correlate(r.message, produced)
	for _, m := range produced {
		envelope.StartOver(m, &r.context.control)
	}
	r.stop()
	r.circuit = nil // already notified: publishing tells nothing about the handler's dependency
	reports := r.reports()
	if message.HandlerNameFromCtx(r.parent) == "" { // no router: the caller publishes and acks
		if reports {
			r.succeeded()
		}
		r.end()
		return
	}
	a := &attempt{run: r, message: r.message, messages: slices.Clone(produced), left: len(produced)}
	for _, m := range produced {
		m.SetContext(envelope.WithProducer(m.Context(), a))
	}
	if !reports {
		return
	}
	select {
	case <-r.message.Acked(): // by the handler, which confirms nothing
		time.AfterFunc(r.pipeline.cfg.PublishTimeout, func() {
			if !a.used.Load() {
				a.await() // the publisher does not report
			}
		})
	default:
		go a.await()
	}
}

// await ends the attempt with the router's ack or nack of the consumed message, if the publisher has not ended it.
func (a *attempt) await() {
	acked := false
	select {
	case <-a.message.Acked():
		acked = true
	case <-a.message.Nacked():
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.run == nil {
		return
	}
	if acked {
		a.succeeded()
		return
	}
	p := a.run.pipeline
	p.undecorated.Do(func() {
		p.log(a.run.parent, LevelCritical, "a produced message was not published and the router has nacked the consumed "+
			"one, uncounted: "+
			"with router.AddPlugin(pipeline.Plugin) this counts as a failed attempt", p.originAttrs(a.run.parent)...)
	})
	a.run.finished(OutcomeNotSettled)
	a.end()
}

func (a *attempt) succeeded() {
	if a.run.reports() {
		a.run.succeeded()
	}
	a.end()
}

func (a *attempt) end() {
	a.run.end()
	a.run = nil
}

// Publish publishes messages of the attempt. If that fails, the attempt has failed: it is retried or dead-lettered,
// confirmed, its other messages are dropped, and nil is returned for the router to ack.
func (a *attempt) Publish(publish func(...*message.Message) error, messages ...*message.Message) error {
	a.used.Store(true)
	a.mu.Lock()
	if a.failed && a.owns(messages) {
		defer a.mu.Unlock()
		return a.err
	}
	a.mu.Unlock()
	err := guarded(func() error { return publish(messages...) })
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.run == nil {
		return err // reported before: these messages are not the attempt's
	}
	if err == nil {
		if a.left -= len(messages); a.left <= 0 {
			a.succeeded()
		}
		return nil
	}
	a.failed, a.err = true, a.fail(publish, &ProducedError{Err: err})
	return a.err
}

func (a *attempt) owns(messages []*message.Message) bool {
	return !slices.ContainsFunc(messages, func(m *message.Message) bool { return !slices.Contains(a.messages, m) })
}

// fail settles the consumed message as that of a failed attempt.
func (a *attempt) fail(publish func(...*message.Message) error, err error) error {
	r := a.run
	p, m, next := r.pipeline, r.message, r.next
	r.continueWith(lasting(m.Context()))
	wait, err := r.failed(err)
	a.end()
	if wait == settled {
		return err
	}
	// Without a rescheduler it waits here, and the messages that the next run produces replace those that could not be
	// published.
	again, err := p.deliverAgain(m, next, wait)
	if err != nil || len(again) == 0 {
		return err
	}
	return envelope.PublishProduced(publish, again...)
}

// routed returns the context that the router gave a message, if a subscriber attaches no origin: the first of those
// from which ctx is derived that names the handler. A context of a foreign type, whose parent is unknown, ends the
// search; it has ended if the delivery has, so a shutdown is never missed.
func routed(ctx context.Context) context.Context {
	return guardedValue(ctx, func() context.Context {
		parent := reflect.Indirect(reflect.ValueOf(ctx)).FieldByName("Context").Interface().(context.Context)
		if message.HandlerNameFromCtx(parent) == message.HandlerNameFromCtx(ctx) {
			return routed(parent)
		}
		return ctx
	})
}

// PublisherDecorator is for router.AddPublisherDecorators, if a handler's messages go to a publisher from outside this
// module: if one cannot be published, the attempt has failed, and the consumed message is retried or dead-lettered.
// Without it the router nacks the message: it is redelivered at once, its attempts are not counted, and it is never
// dead-lettered. A publisher that several handlers share is closed with the last of them: the router closes it with the
// first one that stops, while the others may still have results to publish. [Pipeline.Plugin] adds it.
func (p *Pipeline) PublisherDecorator(publisher message.Publisher) (message.Publisher, error) {
	if publisher == nil {
		return nil, fmt.Errorf("middleware: %w: PublisherDecorator got no publisher", ErrMiswired)
	}
	return &producing{Publisher: publisher, leave: p.shared.join(publisher)}, nil
}

// shared counts the handlers of each publisher.
type shared struct {
	mu    sync.Mutex
	users map[message.Publisher]int
}

// join returns a function that reports whether the caller was the publisher's last handler.
func (s *shared) join(publisher message.Publisher) (leave func() bool) {
	if !reflect.ValueOf(publisher).Comparable() {
		return func() bool { return true }
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users == nil {
		s.users = make(map[message.Publisher]int)
	}
	s.users[publisher]++
	return func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.users[publisher]--; s.users[publisher] > 0 {
			return false
		}
		delete(s.users, publisher)
		return true
	}
}

type producing struct {
	message.Publisher

	leave func() bool
	left  atomic.Bool
}

// Close implements message.Publisher.
func (p *producing) Close() error {
	if p.left.Swap(true) || !p.leave() {
		return nil
	}
	return p.Publisher.Close()
}

// Publish implements message.Publisher.
func (p *producing) Publish(topic string, messages ...*message.Message) error {
	return envelope.PublishProduced(func(messages ...*message.Message) error {
		return p.Publisher.Publish(topic, messages...)
	}, messages...)
}

// correlate passes the correlation id on, as Watermill's CorrelationID does.
func correlate(m *message.Message, produced []*message.Message) {
	id := envelope.CorrelationID(m)
	if id == "" {
		return
	}
	for _, out := range produced {
		if out.Metadata[envelope.KeyCorrelationID] != "" {
			continue
		}
		if out.Metadata = maps.Clone(out.Metadata); out.Metadata == nil { // messages of a handler may share it
			out.Metadata = make(message.Metadata, 1)
		}
		out.Metadata[envelope.KeyCorrelationID] = id
	}
}
