// Package engine turns a driver.Transport into a brokers.Broker: it implements everything promised to users that does
// not depend on the broker. One message passes through its files as follows:
//
//	publish.go        Publish: delay, size, stamp, destination; Reschedule, DeadLetter
//	subscriber.go     Subscribe: rules, handles                     source.go   sessions, one after the other
//	subscription.go   dispatch, await, drain                        delivery.go one delivery until it is settled
//	sender.go         timeout, batches, shedding
package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
)

// closeTimeout bounds the orderly end of a stream, and of the transport.
const closeTimeout = 5 * time.Second

// Config configures a [Broker]. See portable.Config, which is converted to it.
type Config struct {
	Config      brokers.Config
	Params      []brokers.Param
	Transport   driver.Transport
	Delays      brokers.Broker
	DelaysTopic string
	Context     context.Context
}

// Broker implements brokers.Broker above a transport.
type Broker struct {
	cfg          brokers.Config
	params       []brokers.Param
	transport    driver.Transport
	traits       driver.Traits
	caps         brokers.Capabilities
	shares       bool          // the transport is a driver.Sharer
	longest      time.Duration // the transport's longest delay
	lot          *lot          // for longer ones; nil without Delays
	namer        driver.Namer  // if nil, the naming scheme of cfg applies
	sender       *sender
	destinations destinations
	readers      readers
	expected     expected
	consumers    consumers
	reached      sync.Map // suppliers whose consumers read what is rescheduled here
	replays      atomic.Uint64
	acksLost     atomic.Uint64
	complaints   logLimit

	subscriptions gate          // shut when Close begins: subscribers drain
	calls         gate          // shut when they have drained
	done          chan struct{} // closed when Close is over
}

var _ brokers.Broker = (*Broker)(nil)

// New returns a broker on cfg.Transport.
func New(cfg Config) (*Broker, error) {
	if cfg.Transport == nil {
		return nil, errors.New("brokers: no transport")
	}
	b := &Broker{
		cfg:       cfg.Config,
		params:    cfg.Params,
		transport: cfg.Transport,
		traits:    cfg.Transport.Traits(),
		caps:      cfg.Transport.Capabilities(),
		readers:   readers{queues: map[string]*reader{}},
		consumers: consumers{known: map[string]*memory{}},
		done:      make(chan struct{}),

		subscriptions: gate{shut: make(chan struct{})}, calls: gate{shut: make(chan struct{})},
	}
	if b.traits.Name == "" {
		return nil, errors.New("brokers: the transport has no name")
	}
	b.traits.HoldLimit = cmp.Or(b.traits.HoldLimit, 20*time.Millisecond)
	b.namer, _ = cfg.Transport.(driver.Namer)
	_, b.shares = cfg.Transport.(driver.Sharer)
	b.sender = newSender(b)
	b.longest = b.caps.MaxDelay
	if cfg.Delays != nil {
		there := cfg.Delays.Capabilities()
		b.caps.MaxDelay = max(b.longest, there.MaxDelay)
		b.caps.DelayTolerance = max(b.caps.DelayTolerance, there.DelayTolerance+10*time.Millisecond)
		lot, err := openLot(b, cfg)
		if err != nil {
			return nil, err
		}
		b.lot = lot
	}
	return b, nil
}

// Transport returns the broker's transport, for drivers that add their own methods.
func (b *Broker) Transport() driver.Transport { return b.transport }

// Config returns the broker's configuration.
func (b *Broker) Config() brokers.Config { return b.cfg }

// Capabilities implements brokers.Broker.
func (b *Broker) Capabilities() brokers.Capabilities { return b.caps }

// CanReschedule implements middleware.RetryChecker: a pipeline that needs an unsupported delay is refused when it is
// created.
func (b *Broker) CanReschedule(delay time.Duration) error {
	if checker, ok := b.transport.(driver.RetryChecker); ok {
		if err := checker.CanReschedule(delay); err != nil {
			return fmt.Errorf("%s: %w", b.caps.Scheme, err)
		}
	}
	return b.delay(&driver.Outgoing{}, delay, time.Now())
}

// LongestDelay implements middleware.DelayLimiter.
func (b *Broker) LongestDelay() time.Duration { return b.caps.MaxDelay }

// Expect records what a pipeline has announced, for consumers that subscribe from now on: where topics are event names,
// its system events are delivered to them. middleware.New calls it.
func (b *Broker) Expect(delays []time.Duration, events []string) {
	all := b.expected.add(delays, events)
	if e, ok := b.transport.(driver.Expecter); ok {
		e.Expect(all)
	}
}

// AcksFailed counts the deliveries that were handled but whose ack did not reach the broker: they are redelivered.
func (b *Broker) AcksFailed() uint64 { return b.acksLost.Load() }

// Replays counts the deliveries that were acked without a handler, because the consumer had already handled the same
// one.
func (b *Broker) Replays() uint64 { return b.replays.Load() }

// Ping implements brokers.Broker. It fails after Close.
func (b *Broker) Ping(ctx context.Context) error {
	if !b.calls.enter() {
		return fmt.Errorf("%s: %w", b.traits.Name, brokers.ErrClosed)
	}
	defer b.calls.Done()
	if err := ctx.Err(); err != nil {
		return err
	}
	return bounded(ctx, &b.traits, b.transport.Ping)
}

// Close implements brokers.Broker. Messages can still be published until the last handler has finished or the drain
// timeout has passed.
func (b *Broker) Close() error {
	if !b.subscriptions.close() {
		<-b.done
		return nil
	}
	defer close(b.done)
	b.subscriptions.Wait()
	if b.lot != nil {
		if err := b.lot.close(); err != nil {
			b.warn("delays closed with an error", err)
		}
	}
	b.calls.close()
	b.calls.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if err := bounded(ctx, &b.traits, b.transport.Close); err != nil {
		b.warn("closed with an error", err)
	}
	return nil
}

// gate registers what is in progress, until it is shut. Done ends what has entered, and Wait returns after all of it.
type gate struct {
	sync.WaitGroup

	shut chan struct{} // closed when nothing more may enter
	mu   sync.Mutex    // guards close against another one, and Add against Wait
}

// enter registers a call or a subscription. It reports false if the gate is shut.
func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	open := !isClosed(g.shut)
	if open {
		g.Add(1)
	}
	return open
}

// close shuts the gate. It reports false if it was shut.
func (g *gate) close() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	open := !isClosed(g.shut)
	if open {
		close(g.shut)
	}
	return open
}

// bounded calls f with ctx and returns when f does or, for a transport that does not promise to observe its contexts,
// when ctx has ended; then f is abandoned.
func bounded(ctx context.Context, traits *driver.Traits, f func(context.Context) error) error {
	_, err := boundedOf(ctx, traits, func(ctx context.Context) (struct{}, error) { return struct{}{}, f(ctx) }, nil)
	return err
}

// boundedOf is bounded for calls with a result. late, unless nil, receives a result that arrives after the caller has
// returned.
func boundedOf[T any](ctx context.Context, traits *driver.Traits, f func(context.Context) (T, error), late func(T)) (
	T, error,
) {
	if traits.Prompt || traits.Local {
		return f(ctx)
	}
	type answer struct {
		value T
		err   error
	}
	answers, left := make(chan answer), make(chan struct{})
	go func() {
		value, err := f(ctx)
		select {
		case answers <- answer{value, err}:
		case <-left:
			if err == nil && late != nil {
				late(value)
			}
		}
	}()
	select {
	case a := <-answers:
		return a.value, a.err
	case <-ctx.Done():
		close(left)
		var none T
		return none, context.Cause(ctx)
	}
}

// Depths counts the messages waiting in a transport that supports it. It fails after Close.
func (b *Broker) Depths(ctx context.Context, counter brokers.DepthReporter) ([]brokers.Depth, error) {
	if !b.calls.enter() {
		return nil, fmt.Errorf("%s: depths: %w", b.traits.Name, brokers.ErrClosed)
	}
	defer b.calls.Done()
	found, err := counter.Depths(ctx)
	b.markDeadLetters(found)
	return found, err
}

// markDeadLetters changes the ready messages of a dead letter queue to dead letters, of the consumer that they died in.
// A queue is one if the naming scheme gives its name to the dead letters of another counted queue.
func (b *Broker) markDeadLetters(found []brokers.Depth) {
	owners := map[string]brokers.Depth{}
	for _, d := range found {
		dead := b.namesFor(d.Topic, d.Group).Dead
		if _, known := owners[dead]; !known && dead != d.Topic {
			owners[dead] = d
		}
	}
	for i, d := range found {
		if of, dead := owners[d.Topic]; dead && d.Kind == brokers.DepthReady {
			found[i].Topic, found[i].Group, found[i].Kind = of.Topic, of.Group, brokers.DepthDeadLetter
		}
	}
}

// logLimit keeps one cause from filling the log: what failed for the same reason within quiet is one line, and the
// next one reports how many there were.
type logLimit struct {
	mu    sync.Mutex
	known map[complaint]silence
}

type complaint struct{ what, cause string }

type silence struct {
	since time.Time
	times int
}

const (
	quiet         = 30 * time.Second
	maxComplaints = 256
)

// warn logs what failed and why, unless it has done so a moment ago.
func (b *Broker) warn(what string, err error, args ...any) {
	key := complaint{what, err.Error()}
	now := time.Now()
	c := &b.complaints
	c.mu.Lock()
	s := c.known[key]
	if now.Sub(s.since) < quiet {
		c.known[key] = silence{s.since, s.times + 1}
		c.mu.Unlock()
		return
	}
	if c.known == nil || len(c.known) >= maxComplaints {
		c.known = map[complaint]silence{}
	}
	c.known[key] = silence{since: now}
	c.mu.Unlock()
	if s.times > 0 {
		args = append(args, slog.Int("times_before", s.times))
	}
	//nolint:sloglint // the callers' sentences are constants
	b.cfg.Logger.Warn(b.traits.Name+": "+what, append(args, slog.Any("error", err))...)
}
