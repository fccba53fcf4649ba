package brokertest

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/logbuffer"
	"github.com/redrive-go/redrive/internal/wait"
	"github.com/redrive-go/redrive/middleware"
)

// world is the environment of one case. The methods that begin with casePrefix are the cases.
type world struct {
	*testing.T
	h       Harness
	backend Backend
	prefix  string // of topics, so that cases on one server do not share any

	tolerance time.Duration // of the brokers' delays
	late      string        // the delivery that came late, or empty

	began time.Time
	logs  logbuffer.Buffer // warnings and errors of brokers and pipelines
	mu    sync.Mutex
	all   []*consumer
	gates []func() // which open the gates of the case
}

func newWorld(t *testing.T, h Harness) *world {
	t.Helper()
	w := &world{T: t, h: h, prefix: "t" + watermill.NewShortUUID(), began: time.Now()}
	t.Cleanup(w.explain) // after everything is closed
	w.backend = h.Backend(t)
	return w
}

// explain logs the runs and warnings of a failed case, so that the cause can be found without running it again.
func (w *world) explain() {
	if !w.Failed() {
		return
	}
	var text strings.Builder
	for i, c := range w.all {
		fmt.Fprintf(&text, "consumer %d:\n", i+1)
		for _, r := range c.seen() {
			fmt.Fprintf(&text, "  %s after %s: attempt %d of %s, origin %+v, headers %q\n",
				r.At.Format(time.RFC3339Nano), r.At.Sub(w.began), r.Attempt, r.id(), r.Origin, r.Message.Metadata)
		}
	}
	w.Logf("runs of the handlers:\n%s\nwarnings and errors:\n%s", ends(text.String()), ends(w.logs.String()))
}

// ends returns the beginning and the end of a long text.
func ends(s string) string {
	const most = 4_000
	if len(s) <= 2*most {
		return s
	}
	return s[:most] + "\n...\n" + s[len(s)-most:]
}

// logger writes to the case's log.
func (w *world) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(&w.logs, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// skipIf skips the case if its broker cannot do what it needs.
func (w *world) skipIf(cannot bool, reason string) {
	w.Helper()
	if cannot {
		w.Skip(reason)
	}
}

// open opens a broker on the case's backend and closes it at the end of the case.
func (w *world) open(change ...func(*brokers.Config)) brokers.Broker {
	w.Helper()
	b, err := w.tryOpen(change...)
	require.NoError(w, err)
	return b
}

func (w *world) tryOpen(change ...func(*brokers.Config)) (brokers.Broker, error) {
	w.Helper()
	cfg := brokers.Config{Group: defaultGroup, DrainTimeout: 5 * time.Second, PublishTimeout: w.h.Wait, Logger: w.logger()}
	for _, c := range change {
		c(&cfg)
	}
	b, err := w.backend.Open(cfg)
	if err == nil {
		w.Cleanup(func() { require.NoError(w, b.Close()) })
		w.tolerance = b.Capabilities().DelayTolerance
	}
	return b, err
}

func (w *world) openTopic(name string, change ...func(*brokers.Config)) (b brokers.Broker, topic string) {
	w.Helper()
	return w.open(change...), w.topic(name)
}

func group(name string) func(*brokers.Config) { return func(c *brokers.Config) { c.Group = name } }

func concurrency(n int) func(*brokers.Config) { return func(c *brokers.Config) { c.Concurrency = n } }

func naming(s brokers.NameScheme) func(*brokers.Config) {
	return func(c *brokers.Config) { c.Naming = s }
}

func draining(d time.Duration) func(*brokers.Config) {
	return func(c *brokers.Config) { c.DrainTimeout = d }
}

// openFor opens a broker for n concurrent handlers, or for as many as the broker supports.
func (w *world) openFor(n int, change ...func(*brokers.Config)) (b brokers.Broker, atOnce int) {
	w.Helper()
	b = w.open(append(change, concurrency(n))...)
	if limit := b.Capabilities().MaxConcurrency; limit > 0 {
		n = min(n, limit)
	}
	return b, n
}

// topic returns the name of the case's own topic.
func (w *world) topic(name string) string { return w.prefix + "-" + name }

// scaled returns how long d of a timeline takes on this backend.
func (w *world) scaled(d time.Duration) time.Duration {
	return time.Duration(float64(d) * w.h.Factor).Round(time.Millisecond)
}

// deadline returns a channel that fires when a wait for something that must happen has failed.
func (w *world) deadline() <-chan time.Time {
	if w.h.Virtual {
		return time.After(10_000 * time.Hour)
	}
	return time.After(w.h.Wait)
}

type run struct {
	At      time.Time
	Attempt int
	Message *message.Message // a copy
	Origin  envelope.Origin
	Context context.Context
}

func (r run) id() string { return r.Message.UUID }

func (r run) payload() string { return string(r.Message.Payload) }

// consumer is a router with one handler behind a pipeline, and the runs of that handler.
type consumer struct {
	w      *world
	router *message.Router
	cancel context.CancelFunc // of Run's context
	ended  chan struct{}

	mu      sync.Mutex
	runs    []run
	changed chan struct{} // holds a token when runs has grown
}

// consume starts a handler on topic and returns once it is subscribed. The ports of cfg default to b. It stops at the
// end of the case, or when stop is called.
func (w *world) consume(b brokers.Broker, topic string, cfg middleware.Config, handle func(r run) error) *consumer {
	w.Helper()
	c := w.newConsumer(b, cfg)
	c.router.AddConsumerHandler("handler", topic, b.Subscriber(), func(m *message.Message) error {
		return handle(c.record(m))
	})
	c.start()
	return c
}

func (w *world) newConsumer(b brokers.Broker, cfg middleware.Config) *consumer {
	w.Helper()
	cfg.Rescheduler = cmp.Or[middleware.Rescheduler](cfg.Rescheduler, b)
	cfg.DeadLetters = cmp.Or[middleware.DeadLetterSink](cfg.DeadLetters, b)
	cfg.Logger = w.logger()
	pipeline, err := middleware.New(cfg)
	require.NoError(w, err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(w, err)
	router.AddMiddleware(pipeline.Middleware)
	c := &consumer{w: w, router: router, ended: make(chan struct{}), changed: make(chan struct{}, 1)}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, c)
	return c
}

func (c *consumer) start() {
	c.w.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	go func() {
		defer close(c.ended)
		assert.NoError(c.w, c.router.Run(ctx), "the router")
	}()
	select {
	case <-c.router.Running():
	case <-c.ended:
		c.w.FailNow()
	case <-c.w.deadline():
		c.w.Fatal("the router did not start")
	}
	c.w.Cleanup(func() {
		for _, open := range c.w.gates {
			open()
		}
		c.stop()
	})
}

// stop closes the router and waits for it. It may be called twice.
func (c *consumer) stop() {
	if err := c.router.Close(); err != nil {
		c.w.Errorf("close router: %v", err)
	}
	<-c.ended
	c.cancel()
}

func (c *consumer) record(m *message.Message) run {
	control, err := envelope.ReadControl(m)
	r := run{At: time.Now(), Attempt: control.RetryCount + 1, Message: m.Copy(), Context: m.Context()}
	if err != nil {
		r.Attempt = 0
	}
	if o, ok := envelope.OriginFrom(m.Context()); ok {
		r.Origin = *o
	}
	r.Message.Payload = append([]byte(nil), m.Payload...)
	c.mu.Lock()
	c.runs = append(c.runs, r)
	c.mu.Unlock()
	wait.Signal(c.changed)
	return r
}

// seen returns the runs so far.
func (c *consumer) seen() []run {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]run(nil), c.runs...)
}

// wait waits until enough is true of the runs so far. what names the awaited event in the failure message.
func (c *consumer) wait(what string, enough func(runs []run) bool) []run {
	c.w.Helper()
	deadline := c.w.deadline()
	for {
		runs := c.seen()
		if enough(runs) {
			return runs
		}
		select {
		case <-c.changed:
			deadline = c.w.deadline() // progress
		case <-deadline:
			c.w.Fatalf("timed out waiting for %s; the handler ran %d times", what, len(runs))
		}
	}
}

// waitRuns waits until the handler has run n times.
func (c *consumer) waitRuns(n int) []run {
	c.w.Helper()
	return c.wait("more runs", func(runs []run) bool { return len(runs) >= n })
}

// exactly waits until the handler has run n times, and checks that it does not run again.
func (c *consumer) exactly(n int) []run {
	c.w.Helper()
	c.waitRuns(n)
	c.quiet()
	require.Len(c.w, c.seen(), n, "runs of the handler")
	return c.seen()
}

// receive returns the next value of c. what names it in the failure message.
func receive[T any](w *world, c <-chan T, what string) (next T) {
	w.Helper()
	select {
	case next = <-c:
	case <-w.deadline():
		w.Fatalf("timed out waiting for %s", what)
	}
	return next
}

// quiet checks that the handler does not run again.
func (c *consumer) quiet() {
	c.w.Helper()
	before := len(c.seen())
	c.w.pass(c.w.h.Quiet)
	require.Len(c.w, c.seen(), before, "the handler ran again")
}

// pass waits for d; in virtual time for an hour, which costs nothing.
func (w *world) pass(d time.Duration) {
	if w.h.Virtual {
		d = time.Hour
	}
	pause(d)
}

func pause(d time.Duration) {
	<-time.After(d) // real time: for brokers that do not support virtual time
}

func (w *world) publish(b brokers.Broker, topic string, messages ...*message.Message) {
	w.Helper()
	p := b.Publisher()
	require.NoError(w, p.Publish(topic, messages...))
	require.NoError(w, p.Close())
}

// defaultGroup is the group of brokers for which a case names none.
const defaultGroup = "billing"

// deadLetters removes n dead letters of the default group from their queue.
func (w *world) deadLetters(b brokers.Broker, topic string, n int) []*message.Message {
	w.Helper()
	return w.read(b, brokers.NameScheme{}.For(topic, defaultGroup).Dead, n)
}

// read removes n messages from a queue, and checks that it had no more.
func (w *world) read(b brokers.Broker, queue string, n int) []*message.Message {
	w.Helper()
	if w.backend.Read != nil {
		found := w.backend.Read(w.T, queue, n)
		require.Len(w, found, n, "messages in %s", queue)
		return found
	}
	sub, in := w.subscribe(b, queue, brokers.WithGroup("reader"))
	var found []*message.Message
	for len(found) < n {
		m := receive(w, in, fmt.Sprintf("message %d of %d in %s", len(found)+1, n, queue))
		found = append(found, m.Copy())
		m.Ack()
	}
	more := time.After(w.h.Quiet)
	select {
	case m := <-in:
		w.Fatalf("%s has more than %d messages: %s", queue, n, m.UUID)
	case <-more:
	}
	require.NoError(w, sub.Close())
	return found
}

// gate returns a channel that blocks handlers until open is called. It is also opened at the end of the case, before
// its consumers stop, so that after a failure no router waits for its handlers.
func (w *world) gate() (gate chan struct{}, open func()) {
	gate = make(chan struct{})
	open = sync.OnceFunc(func() { close(gate) })
	w.gates = append(w.gates, open)
	return gate, open
}

func waitsFor(gate <-chan struct{}) func(r run) error {
	return func(run) error { <-gate; return nil }
}

// succeeds is a handler that does nothing.
func succeeds(run) error { return nil }

// fails is a handler that always fails.
func fails(run) error { return errFails }

// failsOn is a handler that fails with err for messages with that payload.
func failsOn(payload string, err error) func(r run) error {
	return func(r run) error {
		if r.payload() == payload {
			return err
		}
		return nil
	}
}

// failsBefore is a handler that fails until that attempt.
func failsBefore(attempt int) func(r run) error {
	return failsIf(func(r run) bool { return r.Attempt < attempt })
}

// failsUntil is a handler that fails until fixed is true.
func failsUntil(fixed *atomic.Bool) func(r run) error {
	return failsIf(func(run) bool { return !fixed.Load() })
}

// failsIf is a handler that fails if the condition is met.
func failsIf(condition func(r run) bool) func(r run) error {
	return func(r run) error {
		if condition(r) {
			return errFails
		}
		return nil
	}
}
