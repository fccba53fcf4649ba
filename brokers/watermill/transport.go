package watermill

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/scheme"
)

// transport is a Pub/Sub together with the place where its delayed messages wait.
type transport struct {
	cfg        Config
	broker     brokers.Config // resolved
	ownsDelays bool
	identify   func(context.Context) (string, error) // the server's own name; nil if unknown

	mu         sync.Mutex
	closed     bool
	publishing sync.WaitGroup // calls of the Publisher
}

// Publish implements driver.Transport. Consecutive messages to one destination are one call of the publisher.
func (t *transport) Publish(ctx context.Context, out []driver.Outgoing) []error {
	errs := make([]error, len(out))
	for start := 0; start < len(out); {
		end := start + 1
		for out[start].To.Kind != driver.ToConsumer && end < len(out) && out[end].To == out[start].To {
			end++
		}
		err := t.publish(ctx, out[start:end])
		for ; start < end; start++ {
			errs[start] = err
		}
	}
	return errs
}

func (t *transport) publish(ctx context.Context, out []driver.Outgoing) error {
	topic := out[0].To.Topic
	switch out[0].To.Kind {
	case driver.ToTopic:
	case driver.ToConsumer:
		return t.putRetry(ctx, &out[0])
	case driver.ToDeadLetters:
		topic = out[0].To.Names.Dead
	}
	messages := make([]*message.Message, len(out))
	for i := range out {
		messages[i] = render(&out[i])
		messages[i].SetContext(ctx)
	}
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return brokers.ErrClosed
	}
	t.publishing.Add(1)
	t.mu.Unlock()
	defer t.publishing.Done()
	return t.cfg.Publisher.Publish(topic, messages...)
}

func render(o *driver.Outgoing) *message.Message {
	m := message.NewMessage(o.Message.UUID, o.Message.Payload)
	maps.Insert(m.Metadata, o.Headers())
	return m
}

// Declare implements driver.Transport.
func (t *transport) Declare(ctx context.Context, q driver.Queue) error {
	if err := t.mayRead(&q); err != nil {
		return err
	}
	if t.cfg.Initialize != nil {
		return errors.Join(t.cfg.Initialize(ctx, q.Topic, q.Group), t.cfg.Initialize(ctx, q.Names.Dead, brokers.DefaultGroup))
	}
	sub, done, err := t.subscriber(q.Group)
	if err != nil {
		return err
	}
	defer done()
	if initializer, ok := sub.(message.SubscribeInitializer); ok {
		return initializer.SubscribeInitialize(q.Topic)
	}
	return nil
}

// mayRead refuses a group other than the one that the only Subscriber reads for: the two would share messages.
func (t *transport) mayRead(q *driver.Queue) error {
	own := cmp.Or(t.broker.Group, brokers.DefaultGroup)
	if t.cfg.NewSubscriber == nil && q.Group != own {
		return fmt.Errorf("%w: group %q: the one Subscriber reads for group %q; configure NewSubscriber to read for several",
			brokers.ErrUnsupported, q.Group, own)
	}
	return nil
}

// subscriber returns one for a group, and a function that releases it.
func (t *transport) subscriber(group string) (sub message.Subscriber, done func(), err error) {
	if t.cfg.NewSubscriber == nil {
		return t.cfg.Subscriber, func() {}, nil
	}
	sub, err = t.cfg.NewSubscriber(group)
	if err != nil {
		return nil, nil, fmt.Errorf("subscriber of group %q: %w", group, err)
	}
	return sub, func() { _ = sub.Close() }, nil
}

// Receive implements driver.Transport.
func (t *transport) Receive(ctx context.Context, q driver.Queue) (driver.Stream, error) {
	if err := t.mayRead(&q); err != nil {
		return nil, err
	}
	s := &stream{
		t: t, in: make(chan received), closed: make(chan struct{}), failed: make(chan struct{}),
		received: map[*message.Message]struct{}{},
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	if err := s.open(&q); err != nil {
		_ = s.Close(ctx)
		return nil, err
	}
	return s, nil
}

// Capabilities implements driver.Transport.
func (t *transport) Capabilities() brokers.Capabilities {
	scheme, _, _ := strings.Cut(t.broker.URL, ":")
	caps := brokers.Capabilities{
		Scheme: scheme, Durable: t.cfg.Durable, Ordered: t.cfg.Ordered && t.broker.Concurrency == 1,
		Groups: t.cfg.NewSubscriber != nil, MaxConcurrency: t.cfg.MaxConcurrency,
		MaxMessageBytes: t.cfg.MaxMessageBytes, MaxHeaderBytes: t.cfg.MaxHeaderBytes,
	}
	if t.cfg.Delays != nil {
		delays := t.cfg.Delays.Capabilities()
		caps.MaxDelay, caps.DelayTolerance = delays.MaxDelay, delays.DelayTolerance+50*time.Millisecond
		caps.Durable = caps.Durable && delays.Durable
		if n := delays.MaxMessageBytes; n > 0 && (caps.MaxMessageBytes == 0 || n < caps.MaxMessageBytes) {
			caps.MaxMessageBytes = n
		}
	}
	return caps
}

// CanReschedule implements driver.RetryChecker.
func (t *transport) CanReschedule(time.Duration) error {
	if t.cfg.Delays != nil {
		return nil
	}
	return fmt.Errorf("a retry has nowhere to wait: configure Delays, by the environment variable that x-delays-env "+
		"names (%s) or in the Config, or never retry (MaxAttempts: 1): %w", DelaysEnv, brokers.ErrUnsupported)
}

// Reaches implements driver.Reacher. Retries wait in Delays under the name of the server, and every adapter of it there
// reads them. Native members of the group leave theirs to its adapters.
func (t *transport) Reaches(ctx context.Context, o *driver.Outgoing, from driver.Transport) (bool, error) {
	kind := kindOf(t.broker.URL)
	if other, ok := from.(*transport); ok {
		if kind != kindOf(other.broker.URL) || t.cfg.Server != other.cfg.Server {
			return false, nil
		}
		return t.sharesDelays(ctx, o.To, other)
	}
	if from == nil || from.Traits().ConsumerIsQueue || kind != scheme.Canonical(from.Capabilities().Scheme) {
		return false, nil
	}
	native, ok := from.(interface {
		ClusterID(ctx context.Context) (string, error)
	})
	if !ok || t.identify == nil {
		return true, nil
	}
	theirs, err := native.ClusterID(ctx)
	if err != nil {
		return false, err
	}
	mine, err := t.identify(ctx)
	return mine == theirs, err
}

// sharesDelays reports whether other reads the Delays of t, and true for those that do not know.
func (t *transport) sharesDelays(ctx context.Context, to *driver.Destination, other *transport) (bool, error) {
	if t.cfg.Delays == nil || other.cfg.Delays == nil {
		return t.cfg.Delays == nil, nil // nothing can be rescheduled without
	}
	type opened interface{ Transport() driver.Transport }
	mine, ok := t.cfg.Delays.(opened)
	theirs, known := other.cfg.Delays.(opened)
	if !ok || !known {
		return true, nil
	}
	here, ok := mine.Transport().(driver.Reacher)
	if !ok {
		return true, nil
	}
	return here.Reaches(ctx, &driver.Outgoing{Origin: &envelope.Origin{}, To: &driver.Destination{
		Kind:  driver.ToConsumer,
		Topic: RetryTopic(t.broker.URL, t.cfg.Server, to.Topic, to.Consumer), Consumer: delaysConsumer,
	}}, theirs.Transport())
}

// Traits implements driver.Transport. NackPause is not set: a nacked message would be redelivered at once.
func (t *transport) Traits() driver.Traits {
	return driver.Traits{Name: Scheme, SettleLocal: true, DelayRetriesOnly: true}
}

// Ping implements driver.Transport.
func (t *transport) Ping(ctx context.Context) error {
	var errs []error
	if t.cfg.Ping != nil {
		errs = append(errs, t.cfg.Ping(ctx))
	}
	if t.cfg.Delays != nil {
		errs = append(errs, t.cfg.Delays.Ping(ctx))
	}
	return errors.Join(errs...)
}

// Close implements driver.Transport. It closes the Publisher after its last call has returned, even if the engine has
// abandoned that call, and Close, by then. A Publisher that is closed during a call may panic: watermill-kafka v3.1.2
// sends on a channel that sarama has closed.
func (t *transport) Close(context.Context) error {
	var err error
	if t.cfg.Subscriber != nil {
		err = t.cfg.Subscriber.Close()
	}
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.publishing.Wait()
	err = errors.Join(err, t.cfg.Publisher.Close())
	if t.ownsDelays {
		err = errors.Join(err, t.cfg.Delays.Close())
	}
	return err
}
