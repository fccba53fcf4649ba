package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	brokerdriver "github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/dlq/collector"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/sqldb"
	"github.com/redrive-go/redrive/internal/wait"
)

// reachTime is how long a server waits at its start for brokers that do not answer: it should listen before a liveness
// probe gives up.
const reachTime = 10 * time.Second

// attemptTime is how long one attempt to open a broker may take. Database drivers wait without end for a server that
// accepts connections and says nothing.
const attemptTime = time.Minute

var errNoAnswer = fmt.Errorf("no answer: %w", context.DeadlineExceeded)

// reopening has the pauses between the attempts of a server to open a broker.
var reopening = wait.Backoff{First: time.Second, Longest: 30 * time.Second}

// lateBroker is a broker that the first call opens: a command needs few of the configured brokers, and one that is down
// when a server starts must not keep the server from working with the others. A command tries once. A server tries in
// the background until the broker is open, and until then calls fail at once with the reason.
type lateBroker struct {
	name   string
	open   func(ctx context.Context) (brokers.Broker, error)
	server bool // set by reach, before the first call
	logger *slog.Logger

	ctx    context.Context //nolint:containedctx // for attempts to open, which outlive the calls that wait for them
	cancel context.CancelCauseFunc
	begin  sync.Once
	task   sync.WaitGroup
	tried  chan struct{} // closed when broker or err is set for the first time

	mu     sync.Mutex     // guards the fields below
	broker brokers.Broker // nil until it is open
	err    error          // of the last attempt
}

// reach waits until every broker of a server has been tried. The error has the faults that a person has to correct: an
// invalid configuration, a refused user, a certificate. They end the start, because that is when they are noticed: a
// deployment fails while the previous server still runs.
func reach(ctx context.Context, late map[string]brokers.Broker) error {
	ctx, cancel := context.WithTimeoutCause(ctx, reachTime, errNoAnswer)
	defer cancel()
	var faults []error
	atOnce(late, func(b brokers.Broker) error {
		late := b.(*lateBroker)
		late.server = true
		_, err := late.try(ctx)
		late.note(nil, err) // also that there is no answer
		return err
	}, func(name string, err error) {
		if err != nil && !unreachable(err) {
			faults = append(faults, fmt.Errorf("broker %s: %w", name, err))
		}
	})
	return errors.Join(faults...)
}

// unreachable reports whether a broker did not open because its server does not answer, or not yet.
func unreachable(err error) bool {
	if _, file := errors.AsType[*fs.PathError](err); file {
		return false // of a certificate; its cause looks like that of a connection
	}
	op, ok := errors.AsType[*net.OpError](err)
	alert := ok && op.Op == "remote error" // of TLS
	return errors.Is(err, brokerdriver.ErrTemporary) || sqldb.Unreachable(err) && !alert
}

func (b *lateBroker) attempts() {
	for failures := 1; ; failures++ {
		ctx, cancel := context.WithTimeoutCause(b.ctx, attemptTime, errNoAnswer)
		broker, err := b.open(ctx)
		cancel()
		first := b.note(broker, err)
		if err == nil || !b.server {
			return
		}
		pause := reopening.After(failures)
		if !first || unreachable(err) { // otherwise the server does not start
			b.logger.ErrorContext(b.ctx, "a broker is not reachable; it is tried again", "broker", b.name, "pause", pause,
				"error", err)
		}
		if wait.For(b.ctx, pause) != nil {
			return
		}
	}
}

// note keeps the result of an attempt, unless the broker is open, and reports whether it is the first.
func (b *lateBroker) note(broker brokers.Broker, err error) (first bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.broker != nil:
		return false
	case b.err == nil:
		close(b.tried)
		first = true
	case err == nil:
		b.logger.Info("the broker is reachable", "broker", b.name)
	}
	b.broker, b.err = broker, err
	return first
}

// try returns the open broker, or why the last attempt to open it failed. It waits for the first attempt, which in a
// server reach does.
func (b *lateBroker) try(ctx context.Context) (brokers.Broker, error) {
	b.begin.Do(func() { b.task.Go(b.attempts) })
	select {
	case <-b.tried:
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.broker == nil && b.err == nil {
		return nil, context.Cause(ctx)
	}
	return b.broker, b.err
}

// with makes a call to the open broker, as a brokers.Broker or as one of the abilities that a broker may have. Why a
// server's broker is not open is only a text: a deadline in it is not that of a call that may have had an effect.
func with[T any](ctx context.Context, b *lateBroker, do func(T) error) error {
	broker, err := b.try(ctx)
	able, ok := broker.(T)
	switch {
	case ok:
		return do(able)
	case err == nil:
		err = errors.ErrUnsupported
	case b.server:
		return fmt.Errorf("broker %s is not reachable yet: %s; it is tried again at least every %s", b.name, err.Error(),
			reopening.Longest)
	}
	return fmt.Errorf("broker %s: %w", b.name, err)
}

// Unwrap returns the open broker, so that what only some brokers count is found; nil if it is not open.
func (b *lateBroker) Unwrap() brokers.Broker {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.broker
}

// Publisher implements brokers.Broker.
func (b *lateBroker) Publisher() message.Publisher { return &lateClient{lateBroker: b} }

// Subscriber implements brokers.Broker. Subscribe fails until the broker is open: the collector shows why, and retries.
func (b *lateBroker) Subscriber(opts ...brokers.SubscriberOption) message.Subscriber {
	return &lateClient{b, opts}
}

// Reschedule implements brokers.Broker.
func (b *lateBroker) Reschedule(ctx context.Context, to envelope.Origin, m *message.Message, d time.Duration) error {
	return with(ctx, b, func(open brokers.Broker) error { return open.Reschedule(ctx, to, m, d) })
}

// RescheduleAll implements redrive.BatchRedriver.
func (b *lateBroker) RescheduleAll(ctx context.Context, to []envelope.Origin, all []*message.Message) (errs []error) {
	err := with(ctx, b, func(open brokers.Broker) error {
		errs = redrive.RescheduleAll(ctx, open, to, all, collector.MaxCalls)
		return nil
	})
	if err != nil {
		errs = slices.Repeat([]error{err}, len(all))
	}
	return errs
}

// DeadLetter implements brokers.Broker.
func (b *lateBroker) DeadLetter(ctx context.Context, d *envelope.DeadLetter) error {
	return with(ctx, b, func(open brokers.Broker) error { return open.DeadLetter(ctx, d) })
}

// Readers implements brokers.ReaderCounter. A broker that does not answer in time may be reachable nevertheless.
func (b *lateBroker) Readers(ctx context.Context, origin envelope.Origin) (n int, err error) {
	err = with(ctx, b, func(open brokers.ReaderCounter) error { n, err = open.Readers(ctx, origin); return err })
	if err == nil {
		return n, nil
	}
	if down := b.Ping(ctx); down != nil && ctx.Err() == nil {
		err = fmt.Errorf("%w: %w", redrive.ErrUnreachable, down)
	}
	return 0, err
}

// Depths implements brokers.DepthReporter.
func (b *lateBroker) Depths(ctx context.Context) (depths []brokers.Depth, err error) {
	err = with(ctx, b, func(open brokers.DepthReporter) error { depths, err = open.Depths(ctx); return err })
	return depths, err
}

// Capabilities implements brokers.Broker: none until the broker is open.
func (b *lateBroker) Capabilities() (c brokers.Capabilities) {
	if open := b.Unwrap(); open != nil {
		c = open.Capabilities()
	}
	return c
}

// Ping implements brokers.Broker.
func (b *lateBroker) Ping(ctx context.Context) error {
	return with(ctx, b, func(open brokers.Broker) error { return open.Ping(ctx) })
}

// Close implements brokers.Broker. It also ends an attempt to open the broker.
func (b *lateBroker) Close() error {
	b.cancel(errNoAnswer)
	b.begin.Do(func() { b.note(nil, brokers.ErrClosed) })
	b.task.Wait()
	if open := b.Unwrap(); open != nil {
		return open.Close()
	}
	return nil
}

// lateClient is the publisher and the subscriber of a lateBroker. Closing it does nothing.
type lateClient struct {
	*lateBroker

	opts []brokers.SubscriberOption
}

func (c *lateClient) Publish(topic string, messages ...*message.Message) error {
	ctx := c.ctx
	if len(messages) > 0 {
		ctx = messages[0].Context()
	}
	return with(ctx, c.lateBroker, func(b brokers.Broker) error { return b.Publisher().Publish(topic, messages...) })
}

func (c *lateClient) Subscribe(ctx context.Context, topic string) (messages <-chan *message.Message, err error) {
	err = with(ctx, c.lateBroker, func(open brokers.Broker) error {
		messages, err = open.Subscriber(c.opts...).Subscribe(ctx, topic)
		return err
	})
	return messages, err
}

func (c *lateClient) Close() error { return nil }
