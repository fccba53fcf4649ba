package middleware

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/wait"
)

// Pipeline decides what happens to every message whose handler fails. It is created by [New], immutable, and safe for
// concurrent use by any number of handlers and routers. It needs no Close.
type Pipeline struct {
	cfg      Config
	base     *policy
	handlers map[string]*policy
	sinks    []DeadLetterSink
	redrives RedriveRecorder
	circuits *circuits
	stamper  Stamper
	roster   *handlerNames // nil if there is nothing to check
	special  bool          // there are system events or a debug handler
	made     time.Time

	// unpublished counts the deliveries in a row that could not be settled; it determines the pause before a nack.
	unpublished atomic.Int64
	// looked is set when Plugin has found no fault with the subscribers.
	looked atomic.Bool
	// undecorated makes sure that a publish failure reported too late to be settled is logged only once.
	undecorated sync.Once
	// shared are the publishers that PublisherDecorator has decorated.
	shared shared
}

// New returns a pipeline, or an error that names every fault of cfg at once.
func New(cfg Config) (*Pipeline, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("middleware: invalid config: %w", err)
	}
	cfg.setDefaults()
	if _, ok := cfg.Rescheduler.(held); ok {
		cfg.Rescheduler = nil
	}
	general := cfg.general()
	p := &Pipeline{
		cfg:     cfg,
		base:    newPolicy(general),
		special: len(cfg.SystemEvents) > 0 || cfg.Debug != nil,
		made:    time.Now(),
	}
	if len(cfg.Handlers) > 0 {
		p.handlers = make(map[string]*policy, len(cfg.Handlers))
		for name, h := range cfg.Handlers {
			p.handlers[name] = newPolicy(h.or(general))
		}
	}
	if len(cfg.Handlers) > 0 && cfg.HandlerName == nil { // their names come from the router
		p.roster = &handlerNames{pipeline: p, named: make(map[string]bool)}
	}
	p.sinks = []DeadLetterSink{cfg.DeadLetters}
	if several, ok := cfg.DeadLetters.(Sinks); ok {
		p.sinks = several
	}
	p.redrives, _ = cfg.DeadLetters.(RedriveRecorder)
	p.stamper, _ = cfg.Observer.(Stamper)
	p.announce()
	if cfg.Breaker != nil {
		p.circuits = newCircuits(p, *cfg.Breaker)
	}
	return p, nil
}

// announce passes the expected waits and events to the rescheduler.
func (p *Pipeline) announce() {
	e, ok := p.cfg.Rescheduler.(Expecter)
	if !ok {
		return
	}
	delays := plannedDelays(p.base)
	for _, own := range p.handlers {
		delays = append(delays, plannedDelays(own)...)
	}
	e.Expect(delays, slices.Sorted(maps.Keys(p.cfg.SystemEvents)))
}

// maxPlanned bounds the number of announced waits: later ones in a long series equal the longest one, or are waited for
// in steps.
const maxPlanned = 32

// plannedDelays returns the waits of a policy; those of a randomized backoff are unknown.
func plannedDelays(policy *policy) []time.Duration {
	var delays []time.Duration
	for retry := 1; retry < min(policy.MaxAttempts, maxPlanned) && !draws(policy.Backoff); retry++ {
		if d := backoffDelay(policy.Backoff, retry, 0); d > 0 {
			delays = append(delays, min(d, envelope.MaxDelay))
		}
	}
	slices.Sort(delays)
	return slices.Compact(delays)
}

// Middleware is for router.AddMiddleware. It is complete: Watermill's Recoverer, Timeout, CorrelationID, Retry and
// PoisonQueue are not needed next to it, and Retry and PoisonQueue must not be used inside it. Deduplicator and
// InstantAck would lose messages next to it: [Pipeline.Plugin] returns an error that matches [ErrMiswired] before the
// router starts; without the plugin it is logged with the first message. Middleware is equivalent to the following, at
// a fraction of the cost:
//
//	Normalize(Decide(Recover(Timeout(handler))))
//
// It returns an error, which nacks the message, only to return the message at shutdown or if it could not be settled
// anywhere.
func (p *Pipeline) Middleware(next message.HandlerFunc) message.HandlerFunc {
	refusal := p.roster.register()
	around := surroundingsOf(next)
	return func(m *message.Message) ([]*message.Message, error) {
		if !around.fine.Load() {
			if err := p.examine(m, around); err != nil {
				return nil, err
			}
		}
		if refusal != nil {
			if err := p.refuse(m.Context(), refusal); err != nil {
				return nil, err
			}
		}
		produced, wait, err := p.deliver(m, next)
		if wait == settled {
			return produced, err
		}
		return p.deliverAgain(m, next, wait)
	}
}

// deliverAgain runs a message that waits in this process until it is settled.
//
//go:noinline
func (p *Pipeline) deliverAgain(m *message.Message, next message.HandlerFunc,
	wait time.Duration,
) (produced []*message.Message, err error) {
	for wait != settled {
		if err := p.hold(m.Context(), wait); err != nil {
			return nil, err
		}
		produced, wait, err = p.deliver(m, next)
	}
	return produced, err
}

// settled is the wait of a delivery that is not run again here.
const settled time.Duration = -1

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
		ctx.deadline = p.made.Add(r.start + r.policy.Timeout)
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
	if len(produced) > 0 {
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
	took     time.Duration // by the handler
	newID    bool          // the message had no id
	returned bool          // the handler has returned
}

var runs = sync.Pool{New: func() any { return &run{start: untimed} }}

// end returns the run to the pool. r must not be used afterwards.
func (r *run) end() {
	r.before.free()
	r.message, r.next, r.parent, r.context, r.circuit = nil, nil, nil, nil, nil
	r.observed.Message, r.observed.Origin = nil, nil // large objects only; the texts are those of one message
	r.start, r.newID, r.returned = untimed, false, false
	runs.Put(r)
}

// untimed is the start of an attempt whose duration is not needed.
const untimed time.Duration = -1

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
	if p.special {
		if handled, err := p.handleSpecial(m); handled {
			return false, settled, err
		}
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
	if _, err := r.pipeline.failed(&failure{run: r, err: ErrGoexit, exiting: true}); err != nil {
		r.message.Nack()
		return
	}
	r.message.Ack()
}

//go:noinline
func (r *run) failed(err error) (time.Duration, error) {
	return r.pipeline.failed(&failure{run: r, err: err})
}

// reports reports whether anything but the message's producer needs to know of a success.
func (r *run) reports() bool {
	p := r.pipeline
	return p.cfg.Observer != nil || r.context.control.RedriveID != "" && p.redrives != nil ||
		p.logs(r.parent, slog.LevelDebug)
}

// stop records how long a returned handler took.
func (r *run) stop() {
	if r.took = 0; r.start != untimed {
		r.took = time.Since(r.pipeline.made) - r.start
	}
}

// succeeded reports a success.
//
//go:noinline
func (r *run) succeeded() {
	p, parent := r.pipeline, r.context.parent // includes the observer's values
	if r.context.control.RedriveID != "" && p.redrives != nil {
		r.redriven()
	}
	if p.cfg.Observer != nil {
		r.finished(OutcomeSuccess)
	}
	if p.logs(parent, slog.LevelDebug) {
		p.logSuccess(parent, r)
	}
}

//go:noinline
func (r *run) redriven() {
	r.pipeline.redriven(r.context.parent, &r.context.control)
}

// redriven reports the success to the dead letter's entry. If that fails the message is acked anyway: running it again
// would be worse than an entry that an operator has to close.
func (p *Pipeline) redriven(parent context.Context, c *envelope.Control) {
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

func (p *Pipeline) policyOf(ctx context.Context) *policy {
	if p.handlers != nil {
		if own, ok := p.handlers[p.handlerName(ctx)]; ok {
			return own
		}
	}
	return p.base
}

// handlerName is the router's name for the handler, or that of the configured function; "" if the function panics.
func (p *Pipeline) handlerName(ctx context.Context) string {
	if p.cfg.HandlerName == nil {
		return message.HandlerNameFromCtx(ctx)
	}
	return p.configuredName(ctx)
}

//go:noinline
func (p *Pipeline) configuredName(ctx context.Context) string {
	return guardedValue("", func() string { return p.cfg.HandlerName(ctx) })
}

// isShutdown distinguishes the end of this process from a deadline set by a subscriber: a message whose deadline passed
// must be counted as a failure, or it would loop forever.
func isShutdown(parent context.Context) bool {
	err := parent.Err()
	return err != nil && !errors.Is(err, context.DeadlineExceeded)
}

//go:noinline
func (p *Pipeline) giveBack(parent context.Context, err error) error {
	why, cause := "this consumer is shutting down", context.Cause(parent)
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

// hold waits with the message unacked, for pipelines without a rescheduler.
func (p *Pipeline) hold(parent context.Context, delay time.Duration) error {
	if wait.For(parent, delay) != nil {
		if isShutdown(parent) {
			return p.giveBack(parent, parent.Err())
		}
		_ = wait.For(context.WithoutCancel(parent), delay) // the subscriber's deadline has passed: better late than early
	}
	return nil
}
