package middleware

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/wait"
)

// run is one delivery in progress. It is pooled: a goroutine's first 2 kB of stack have no room for it.
type run struct {
	pipeline *Pipeline
	message  *message.Message
	next     message.HandlerFunc
	parent   context.Context // the message's own
	context  *attemptContext // the handler's
	policy   *policy
	circuit  *circuit
	before   snapshot
	observed observation   // for the observer
	start    time.Duration // since the pipeline was created: the monotonic clock is enough, at half the price; or untimed
	took     time.Duration // by the handler; or untimed
	newID    bool          // the message had no id
	returned bool          // the handler has returned
	exiting  bool          // the handler's goroutine is ending: nothing can be returned or run again in it
}

const (
	settled time.Duration = -1 // the wait of a delivery that is not run again here
	untimed time.Duration = -1 // the start of an attempt whose duration is not needed, or not known yet
)

var runs = sync.Pool{New: func() any { return &run{start: untimed, took: untimed} }}

// end returns the run to the pool. r must not be used afterwards.
func (r *run) end() {
	r.before.free()
	r.message, r.next, r.parent, r.context, r.circuit = nil, nil, nil, nil, nil
	r.observed.Message, r.observed.Origin = nil, nil // large objects only; the texts are those of one message
	r.start, r.took, r.newID, r.returned, r.exiting = untimed, untimed, false, false, false
	runs.Put(r)
}

// deliver runs the handler once. Success costs one allocation, the context; everything else is built when an attempt
// fails. Watermill starts a goroutine for every message, with a stack of 2 kB, so the path to the handler must fit into
// that: state that few messages need is in functions that are not inlined, and state that every message needs is in a
// pooled run.
func (p *Pipeline) deliver(m *message.Message, next message.HandlerFunc) (produced []*message.Message,
	wait time.Duration, err error,
) {
	parent := m.Context()
	if isShutdown(parent) {
		return nil, settled, p.giveBack(parent, parent.Err())
	}
	r := runs.Get().(*run)
	r.pipeline, r.message, r.next, r.parent, r.policy = p, m, next, parent, p.policyOf(parent)
	ctx := &attemptContext{parent: parent}
	r.context = ctx
	if !r.before.take(m, &ctx.control) {
		err = ctx.control.Read(m)
	}
	ctx.limit = limitOf(&ctx.control, r.policy)
	if err != nil || p.special || p.circuits != nil || ctx.control.Clamped || ctx.control.RetryCountInvalid {
		if run, wait, err := r.admit(err); !run {
			r.end()
			return nil, wait, err
		}
	}
	if ctx.control.MessageID == "" {
		ctx.control.MessageID, r.newID = envelope.NewID(), true
		setID(m, ctx.control.MessageID) // the handler sees the same id as logs, retries and the dead letter
	}
	if r.policy.Timeout > 0 || p.cfg.Observer != nil {
		r.start = time.Since(p.made)
	}
	if r.policy.Timeout > 0 {
		ctx.deadline = p.made.Add(r.start).Add(r.policy.Timeout) // the sum of two durations may overflow
	}
	if p.cfg.Observer != nil {
		r.observeStarted()
	}
	if produced, err = r.handle(); err != nil {
		wait, err = r.failed(err)
		r.end()
		return nil, wait, err
	}
	if r.circuit != nil {
		r.circuit.succeeded()
	}
	if produced = present(produced); len(produced) > 0 {
		r.produced(produced)
		return produced, settled, nil
	}
	if r.reports() {
		r.stop()
		r.succeeded()
	}
	r.end()
	return nil, settled, nil
}

// deliverAgain runs a message that waits in this process until it is settled.
//
//go:noinline
func (p *Pipeline) deliverAgain(m *message.Message, next message.HandlerFunc,
	wait time.Duration,
) (produced []*message.Message, err error) {
	for wait != settled {
		parent := lasting(m.Context())
		m.SetContext(parent)
		if !outlast(parent, wait) {
			return nil, p.giveBack(parent, parent.Err())
		}
		produced, wait, err = p.deliver(m, next)
	}
	return produced, err
}

// admit handles cases that few messages need before they are run. It reports false for messages that are settled
// without a run.
//
//go:noinline
func (r *run) admit(malformed error) (run bool, wait time.Duration, err error) {
	p, m, ctx := r.pipeline, r.message, r.context
	if malformed != nil {
		return false, settled, r.malformed(malformed)
	}
	if ctx.control.Clamped || ctx.control.RetryCountInvalid {
		p.logUnreadable(m, ctx)
	}
	if p.special && p.handleSpecial(m, &ctx.control) {
		return false, settled, nil
	}
	if p.circuits != nil {
		var refusal *CircuitOpenError
		if r.circuit, refusal = p.circuits.admit(r.parent, m, ctx.control.MessageID); refusal != nil {
			wait, err := r.refused(refusal)
			return false, wait, err
		}
	}
	return true, 0, nil
}

// handle runs the handler. A panic becomes an error. A handler that calls runtime.Goexit never returns here, so its
// message is settled, and acked or nacked, while its goroutine exits.
func (r *run) handle() (produced []*message.Message, err error) {
	defer r.handled(&produced, &err)
	r.message.SetContext(r.context)
	produced, err = r.next(r.message)
	r.returned = true
	return produced, err
}

// handled must be deferred directly: recover does not work in nested calls.
func (r *run) handled(produced *[]*message.Message, err *error) {
	r.context.release()
	r.message.SetContext(r.parent)
	if r.returned {
		return
	}
	if value := recover(); value != nil {
		*produced, *err = nil, newPanicError(value)
		return
	}
	r.exited()
}

// exited settles the message of a goroutine that is ending.
//
//go:noinline
func (r *run) exited() {
	r.exiting = true
	if _, err := r.failed(ErrGoexit); err != nil {
		r.message.Nack()
		return
	}
	r.message.Ack()
}

// failed ends a failed attempt. The message is restored as received before anything is decided.
//
//go:noinline
func (r *run) failed(err error) (time.Duration, error) {
	growStack(0)
	p, m := r.pipeline, r.message
	select {
	case <-m.Acked(): // by the handler: the delivery has ended, and only this can settle the message
		origin, _ := envelope.OriginFrom(m.Context())
		r.continueWith(envelope.WithOrigin(context.WithoutCancel(m.Context()), origin))
	case <-m.Nacked(): // by the handler: the broker has redelivered the message, and a retry would double it
		ctx, end := context.WithCancelCause(context.WithoutCancel(m.Context()))
		end(errNacked)
		r.continueWith(ctx)
	default:
	}
	r.before.restore(m)
	if r.newID {
		setID(m, r.context.control.MessageID)
	}
	now := time.Now()
	d := r.delivery(now)
	r.stop()
	d.ran, d.exiting, d.duration = true, r.exiting, r.took
	dec := p.decide(m, r.policy, r.context, err, now)
	if r.circuit != nil {
		r.circuit.ended(&dec)
	}
	return p.settle(d, dec)
}

// continueWith makes live, a context with the values of the message's own, determine whether this consumer shuts down.
func (r *run) continueWith(live context.Context) {
	r.message.SetContext(live)
	r.context.parent = merged{live, r.context.parent}
}

// lasting returns ctx as long as the delivery lasts: a middleware outside may have derived it and given it an end, like
// Watermill's Timeout, which has ended when the results are published and before a held message is run again.
func lasting(ctx context.Context) context.Context {
	if _, already := ctx.(merged); already {
		return ctx
	}
	live, ok := envelope.DeliveryContext(ctx)
	if !ok {
		live = routed(ctx)
	}
	return merged{live, ctx}
}

// merged is a context with the values of another.
type merged struct {
	context.Context
	values context.Context
}

// Value implements context.Context.
func (m merged) Value(key any) any { return m.values.Value(key) }

// causeOf is context.Cause, which looks for the cause among the values.
func causeOf(ctx context.Context) error {
	if m, ok := ctx.(merged); ok {
		return causeOf(m.Context) //nolint:contextcheck // the one that ends
	}
	return context.Cause(ctx)
}

// delivery is everything needed to settle a failed delivery.
type delivery struct {
	message  *message.Message // as it was received
	next     *message.Message // what it becomes if it is run again here; otherwise nil
	parent   context.Context  // the message's own, with the observer's values
	control  envelope.Control
	handler  string
	origin   envelope.Origin
	attempt  Attempt
	at       time.Time
	duration time.Duration
	ran      bool      // the handler was called
	exiting  bool      // see run
	observed *Delivery // nil without an observer
}

func (r *run) delivery(at time.Time) *delivery {
	p, m, c := r.pipeline, r.message, r.context
	parent := m.Context()
	d := &delivery{
		message: m, parent: c.parent, control: c.control, handler: p.handlerName(parent), origin: originOf(parent),
		attempt: c.attempt(), at: at,
	}
	if p.cfg.Observer != nil {
		if r.observed.Message == nil {
			r.describe() // it was not started
		}
		d.observed = &r.observed.Delivery
	}
	return d
}

// unstarted is the delivery of a message whose handler is not called.
func (r *run) unstarted() *delivery {
	if c := &r.context.control; c.MessageID == "" {
		c.MessageID = envelope.NewID()
		setID(r.message, c.MessageID)
	}
	return r.delivery(time.Now())
}

// malformed dead-letters a message that cannot be read, with its exact bytes.
func (r *run) malformed(err error) error {
	d := r.unstarted()
	_, err = r.pipeline.settle(d, decideMalformed(d.attempt, err))
	return err
}

// refused handles a delivery that met an open circuit: the handler was not called and no attempt is consumed.
func (r *run) refused(refusal *CircuitOpenError) (time.Duration, error) {
	p, m := r.pipeline, r.message
	if isShutdown(m.Context()) {
		return settled, p.giveBack(m.Context(), m.Context().Err())
	}
	d := r.unstarted()
	dec := Decision{
		Outcome: OutcomeDefer,
		Verdict: Verdict{Kind: KindDefer, Rule: "circuit open", After: refusal.Remaining, HasAfter: true},
		Attempt: d.attempt,
		Err:     refusal,
	}
	if p.cfg.Breaker.WhenOpen == OpenSkip && d.control.RedriveID == "" {
		dec.Outcome = OutcomeSkip // except for a redriven message: an operator wants to know its result
	} else {
		p.decideDefer(&dec, m, d.at)
	}
	return p.settle(d, dec)
}

// setID stores a foreign message's new id, so that the handler, the retry and the dead letter all see it.
func setID(m *message.Message, id string) {
	m.UUID = cmp.Or(m.UUID, id)
	m.Metadata = maps.Clone(m.Metadata)
	if m.Metadata == nil {
		m.Metadata = make(message.Metadata, 1)
	}
	m.Metadata[envelope.KeyMessageID] = id
}

// originOf is the origin attached by the driver, or what a plain Watermill subscriber's router knows.
func originOf(ctx context.Context) envelope.Origin {
	if o, ok := envelope.OriginFrom(ctx); ok {
		return *o
	}
	return envelope.Origin{Topic: message.SubscribeTopicFromCtx(ctx)}
}

// reports reports whether anything but the message's producer needs to know of a success.
func (r *run) reports() bool {
	p := r.pipeline
	return p.cfg.Observer != nil || r.context.control.RedriveID != "" && p.redrives != nil ||
		p.logs(r.parent, slog.LevelDebug)
}

// stop records how long a handler took that has returned: once, also if its results cannot be published.
func (r *run) stop() {
	if r.start != untimed && r.took == untimed {
		r.took = time.Since(r.pipeline.made) - r.start
	}
}

// succeeded reports a success.
//
//go:noinline
func (r *run) succeeded() {
	p, parent := r.pipeline, r.context.parent // includes the observer's values
	p.redriven(parent, &r.context.control)
	r.finished(OutcomeSuccess)
	if p.logs(parent, slog.LevelDebug) {
		p.logSuccess(parent, r)
	}
}

// redriven reports the success of a redriven message to its dead letter's entry. If that fails the message is acked
// anyway: running it again would be worse than an entry that an operator has to close.
func (p *Pipeline) redriven(parent context.Context, c *envelope.Control) {
	if c.RedriveID == "" || p.redrives == nil {
		return
	}
	origin := originOf(parent)
	err := p.try(parent, nil, OutcomeSuccess, func(ctx context.Context) error {
		return p.redrives.Redriven(ctx, envelope.Redriven{
			EntryID: c.RedriveID, Number: c.RedriveCount, MessageID: c.MessageID,
			Topic: origin.Topic, Consumer: origin.Consumer, At: time.Now(),
		})
	})
	if err != nil {
		p.log(parent, slog.LevelError, "redriven message succeeded, but its dead letter could not be updated",
			slog.String("redrive_id", logText(c.RedriveID)), slog.String("message_id", logText(c.MessageID)),
			slog.String("error", logText(errorText(err))))
	}
}

// isShutdown distinguishes the end of this process from a deadline set by a subscriber: a message whose deadline passed
// must be counted as a failure, or it would loop forever.
func isShutdown(parent context.Context) bool {
	err := parent.Err()
	return err != nil && !errors.Is(err, context.DeadlineExceeded)
}

//go:noinline
func (p *Pipeline) giveBack(parent context.Context, err error) error {
	why, cause := "this consumer is shutting down", causeOf(parent)
	switch {
	case cause == nil:
		why = "the pipeline does not fit the router"
	case !errorIs(cause, context.Canceled):
		why = logText(errorText(cause)) // the subscriber's reason, such as a lost lease
	}
	p.log(parent, slog.LevelInfo, "message returned: "+why,
		slog.String("handler", p.handlerName(parent)), slog.String("error", logText(errorText(err))))
	return fmt.Errorf("middleware: %w: %w", ErrGivenBack, context.Canceled)
}

// outlast waits for d, and reports false as soon as the consumer shuts down. A subscriber's deadline is not a shutdown:
// better late than early.
func outlast(parent context.Context, d time.Duration) bool {
	start := time.Now()
	if wait.For(parent, d) != nil {
		if isShutdown(parent) {
			return false
		}
		_ = wait.For(context.WithoutCancel(parent), d-time.Since(start))
	}
	return true
}

// growStack makes the stack large enough for the way of a failed message to its broker, at once and while few frames
// have to be copied: a router starts each message with the smallest, which would be copied whenever it has to double.
// The stack grows when the function begins; with n = 0 its memory is not touched.
//
//go:noinline
func growStack(n int) byte {
	if n == 0 {
		return 0
	}
	var room [8 << 10]byte
	return room[n]
}
