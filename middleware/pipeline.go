package middleware

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
)

// Pipeline decides what becomes of every message that a handler fails on. It is made by [New], immutable, and safe for
// concurrent use by any number of handlers and routers. It has nothing to close.
type Pipeline struct {
	cfg      Config
	base     *policy
	handlers map[string]*policy
	sinks    []DeadLetterSink
	redrives RedriveRecorder
	circuits *circuits
	stamper  Stamper
	special  bool // there are system events or a debug handler
	made     time.Time

	// unpublished counts the deliveries in a row that could not be settled; it sets the pace of nacks.
	unpublished atomic.Int64
}

// New returns a pipeline, or an error that names every fault of cfg at once.
func New(cfg Config) (*Pipeline, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("middleware: invalid config: %w", err)
	}
	p := &Pipeline{
		cfg:     cfg,
		base:    newPolicy(cfg.HandlerConfig),
		special: len(cfg.SystemEvents) > 0 || cfg.Debug != nil,
		made:    time.Now(),
	}
	if len(cfg.Handlers) > 0 {
		p.handlers = make(map[string]*policy, len(cfg.Handlers))
		for name, h := range cfg.Handlers {
			p.handlers[name] = newPolicy(h.or(cfg.HandlerConfig))
		}
	}
	p.sinks = []DeadLetterSink{cfg.DeadLetters}
	if several, ok := cfg.DeadLetters.(Sinks); ok {
		p.sinks = several
	}
	p.redrives, _ = cfg.DeadLetters.(RedriveRecorder)
	p.stamper, _ = cfg.Observer.(Stamper)
	if cfg.Breaker != nil {
		p.circuits = newCircuits(p, *cfg.Breaker)
	}
	return p, nil
}

// Middleware is for router.AddMiddleware. It is complete: Watermill's Recoverer, Timeout, CorrelationID, Retry and
// PoisonQueue are not needed beside it, and Retry and PoisonQueue must not stand inside of it. It does what this does,
// at a fraction of the cost:
//
//	Normalize(Decide(Recover(Timeout(handler))))
//
// It returns an error, which nacks the message, only to give the message back at shutdown or when it could not be
// settled anywhere.
func (p *Pipeline) Middleware(next message.HandlerFunc) message.HandlerFunc {
	return func(m *message.Message) ([]*message.Message, error) {
		for {
			produced, wait, err := p.deliver(m, next)
			if wait == settled {
				return produced, err
			}
			if err := p.hold(m.Context(), wait); err != nil {
				return nil, err
			}
		}
	}
}

// settled is the wait of a delivery that needs no further run here.
const settled time.Duration = -1

// deliver runs the handler once. Success costs one allocation, the context; everything else is built on the way out
// of a failure.
func (p *Pipeline) deliver(m *message.Message, next message.HandlerFunc) (produced []*message.Message, wait time.Duration, err error) {
	parent := m.Context()
	if isShutdown(parent) {
		return nil, settled, p.giveBack(parent, parent.Err())
	}
	policy := p.policyOf(parent)
	ctx := &attemptContext{parent: parent}
	if p.cfg.Observer != nil {
		ctx.observed = observations.Get().(*observation)
		defer ctx.forget()
	}
	run := running{pipeline: p, message: m, context: ctx, policy: policy, start: untimed}
	err = run.before.take(m, &ctx.control)
	ctx.limit = limitOf(&ctx.control, policy)
	if err != nil {
		return nil, settled, p.malformed(m, ctx, err)
	}
	if ctx.control.Clamped || ctx.control.RetryCountInvalid {
		p.logUnreadable(m, ctx)
	}
	if p.special {
		if handled, err := p.handleSpecial(m); handled {
			return nil, settled, err
		}
	}
	if p.circuits != nil {
		var refusal *CircuitOpenError
		if run.circuit, refusal = p.circuits.admit(parent, m); refusal != nil {
			wait, err := p.refused(m, ctx, refusal)
			return nil, wait, err
		}
	}
	if ctx.control.MessageID == "" {
		ctx.control.MessageID, run.newID = envelope.NewID(), true
	}
	if policy.Timeout > 0 || p.cfg.Observer != nil {
		run.start = time.Since(p.made)
	}
	if policy.Timeout > 0 {
		ctx.deadline = p.made.Add(run.start + policy.Timeout)
	}
	if p.cfg.Observer != nil {
		ctx.parent = p.observeStarted(parent, &run)
	}
	produced, err = run.handler(next)
	if err != nil {
		wait, err := p.failed(&failure{running: run, err: err})
		return nil, wait, err
	}
	run.before.free()
	p.succeeded(&run, produced)
	return produced, settled, nil
}

// running is one attempt on its way. It lives on the stack.
type running struct {
	pipeline *Pipeline
	message  *message.Message
	context  *attemptContext
	policy   *policy
	circuit  *circuit
	before   snapshot
	start    time.Duration // since the pipeline was made: the monotonic clock is enough, and half the price; or untimed
	newID    bool          // the message had none
}

// untimed is the start of an attempt whose duration nobody asks for.
const untimed time.Duration = -1

// handler runs next. A panic becomes an error. A handler that calls runtime.Goexit never returns here, so its message
// is settled, and acked or nacked, on the way out of its goroutine.
func (r *running) handler(next message.HandlerFunc) (produced []*message.Message, err error) {
	parent := r.message.Context()
	returned := false
	defer func() {
		r.context.release()
		r.message.SetContext(parent)
		if returned {
			return
		}
		if value := recover(); value != nil {
			produced, err = nil, newPanicError(value)
			return
		}
		r.pipeline.exited(*r) //nolint:contextcheck // the message brings its context
	}()
	r.message.SetContext(r.context)
	produced, err = next(r.message)
	returned = true
	return produced, err
}

// exited settles the message of a goroutine that is ending.
func (p *Pipeline) exited(r running) {
	if _, err := p.failed(&failure{running: r, err: ErrGoexit, exiting: true}); err != nil {
		r.message.Nack()
		return
	}
	r.message.Ack()
}

func (p *Pipeline) succeeded(r *running, produced []*message.Message) {
	if r.circuit != nil {
		r.circuit.succeeded()
	}
	if len(produced) > 0 {
		correlate(r.message, produced)
	}
	parent := r.context.parent // what the observer has put there comes along
	if r.context.control.RedriveID != "" && p.redrives != nil {
		p.redriven(parent, r.context.attempt())
	}
	if p.cfg.Observer != nil {
		p.observeFinished(parent, Finished{Delivery: &r.context.observed.Delivery, Outcome: OutcomeSuccess, Ran: true, Duration: time.Since(p.made) - r.start})
	}
	if p.cfg.Logger.Enabled(parent, slog.LevelDebug) {
		p.logSuccess(parent, r)
	}
}

// correlate hands the correlation id on, as Watermill's CorrelationID does.
func correlate(m *message.Message, produced []*message.Message) {
	id := m.Metadata[envelope.KeyCorrelationID]
	if id == "" {
		return
	}
	for _, out := range produced {
		if out == nil || out.Metadata[envelope.KeyCorrelationID] != "" {
			continue
		}
		if out.Metadata == nil {
			out.Metadata = make(message.Metadata, 1)
		}
		out.Metadata[envelope.KeyCorrelationID] = id
	}
}

// redriven tells the dead letter's entry that it worked. When that fails the message is acked all the same: running it
// again would be worse than an entry that an operator has to close.
func (p *Pipeline) redriven(parent context.Context, a Attempt) {
	err := p.try(parent, nil, OutcomeSuccess, func(ctx context.Context) error {
		return p.redrives.Redriven(ctx, a.RedriveID, a.MessageID, time.Now())
	})
	if err != nil {
		p.cfg.Logger.LogAttrs(parent, slog.LevelError, "redriven message succeeded, but its dead letter could not be told",
			slog.String("redrive_id", logText(a.RedriveID)), slog.String("message_id", logText(a.MessageID)),
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

// handlerName is the configured function's answer; one that panics has none.
func (p *Pipeline) handlerName(ctx context.Context) (name string) {
	defer func() { _ = recover() }()
	return p.cfg.HandlerName(ctx)
}

// isShutdown tells our own end from a deadline that a subscriber has set: a message whose deadline passed must be
// counted as a failure, or it would go round for ever.
func isShutdown(parent context.Context) bool {
	err := parent.Err()
	return err != nil && !errors.Is(err, context.DeadlineExceeded)
}

func (p *Pipeline) giveBack(parent context.Context, err error) error {
	p.cfg.Logger.LogAttrs(parent, slog.LevelInfo, "message given back: this consumer is shutting down",
		slog.String("handler", p.handlerName(parent)), slog.String("error", logText(errorText(err))))
	return fmt.Errorf("middleware: %w: %w", ErrGivenBack, context.Canceled)
}

// hold waits with the message unacked, for pipelines without a rescheduler.
func (p *Pipeline) hold(parent context.Context, delay time.Duration) error {
	if !wait(parent, delay) {
		if isShutdown(parent) {
			return p.giveBack(parent, parent.Err())
		}
		wait(context.WithoutCancel(parent), delay) // the subscriber's deadline has passed: rather late than early
	}
	return nil
}
