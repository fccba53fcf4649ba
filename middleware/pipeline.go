package middleware

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
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
	names    handlerNames
	special  bool // there are system events or a debug handler
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
	p.names.named = make(map[string]bool)
	if cfg.HandlerName == nil { // their names come from the router
		p.names.missing.Store(int32(len(cfg.Handlers))) //nolint:gosec // as many as a program has
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
	around := p.wrap(next)
	return func(m *message.Message) ([]*message.Message, error) {
		if !around.fine.Load() {
			if err := p.examine(m, around); err != nil {
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
