package middleware

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
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
	sinks    Sinks
	redrives RedriveRecorder
	circuits *circuits
	stamper  Stamper
	names    handlerNames
	special  bool // there are system events or a debug handler
	made     time.Time
	longest  time.Duration // the longest delay of a retry or deferral
	holds    bool          // the rescheduler cannot delay

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
	var several bool
	if p.sinks, several = cfg.DeadLetters.(Sinks); !several {
		p.sinks = Sinks{cfg.DeadLetters}
	}
	p.redrives, _ = cfg.DeadLetters.(RedriveRecorder)
	p.stamper, _ = cfg.Observer.(Stamper)
	p.announce()
	p.longest = envelope.MaxDelay
	if l, ok := cfg.Rescheduler.(DelayLimiter); ok {
		d := max(0, l.LongestDelay())
		p.longest, p.holds = min(cmp.Or(d, p.longest), p.longest), d == 0
	}
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

// LevelCritical is the level of dead letters and of messages that could not be settled: above slog.LevelError. A logger
// with [envelope.LevelName] writes it as CRITICAL.
const LevelCritical = envelope.LevelCritical

// maxLogged bounds every text in a log line that comes from a message or an error.
const maxLogged = 1 << 10

// logText bounds a text and escapes control characters: no content may split a log line.
func logText(s string) string {
	s = cut(s, maxLogged)
	if strings.IndexFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }) < 0 {
		return s
	}
	q := strconv.Quote(s)
	return q[1 : len(q)-1]
}

// logDecision writes one line for one failed delivery. Nothing is built if the level is disabled.
func (p *Pipeline) logDecision(level slog.Level, text string, d *delivery, dec *Decision, more ...slog.Attr) {
	if !p.logs(d.parent, level) {
		return
	}
	attrs := append(p.deliveryAttrs(d), slog.String("outcome", dec.Outcome.String()))
	if dec.Outcome == OutcomeRetry || dec.Outcome == OutcomeDefer {
		attrs = append(attrs, slog.Duration("delay", dec.Delay))
	}
	if dec.Base > 0 {
		attrs = append(attrs, slog.Duration("base", dec.Base))
	}
	if dec.Verdict.Kind != KindUnknown { // otherwise no rule has matched
		attrs = append(attrs, slog.String("kind", dec.Verdict.Kind.String()), slog.String("rule", logText(dec.Verdict.Rule)))
	}
	if dec.Reason != "" {
		attrs = append(attrs, slog.String("reason", string(dec.Reason)))
	}
	if dec.Err != nil {
		attrs = append(attrs, slog.String("error", logText(errorText(dec.Err))))
	}
	if dec.Verdict.RulePanic != "" {
		attrs = append(attrs, slog.String("rule_panic", logText(dec.Verdict.RulePanic)))
	}
	if p.cfg.LogPayload {
		attrs = append(attrs, slog.Any("headers", logHeaders(d.message.Metadata)),
			slog.String("content", logText(string(d.message.Payload[:min(len(d.message.Payload), maxLogged)]))))
	}
	p.log(d.parent, level, text, append(attrs, more...)...)
}

func (p *Pipeline) logSuccess(parent context.Context, r *run) {
	d := &delivery{
		message: r.message, parent: parent, control: r.context.control, handler: p.handlerName(parent),
		origin: originOf(parent), attempt: r.context.attempt(),
	}
	attrs := p.deliveryAttrs(d)
	if r.start != untimed {
		attrs = append(attrs, slog.Duration("duration", r.took))
	}
	p.log(parent, slog.LevelDebug, "message handled", attrs...)
}

// logUnreadable reports control headers that no well-behaved producer writes and what is done instead. It does so on
// the first attempt, since later ones of the message have the same headers.
func (p *Pipeline) logUnreadable(m *message.Message, c *attemptContext) {
	if _, deferred := envelope.DeferredSince(m); deferred || c.control.RetryCount > 0 {
		return
	}
	ctx := m.Context()
	attrs := append(p.originAttrs(ctx), slog.String("message_id", logText(c.control.MessageID)))
	if c.control.RetryCountInvalid {
		key := envelope.KeyRetryCount
		text := envelope.RecordFailure(m, envelope.Failure{}).Metadata[envelope.KeyInvalidRetryCount]
		if m.Metadata[key] != text {
			key = "retry_count" // of the body
		}
		attrs = append(attrs, slog.String(key, logText(text)),
			slog.String("retries", "none: an unknown counter gets one run"))
	}
	if c.control.Clamped {
		keys := []string{envelope.KeyOriginalDelay, envelope.KeyWatermillDelayedFor, envelope.KeyDelay} // the first counts
		key := keys[max(0, slices.IndexFunc(keys, func(k string) bool { _, ok := m.Metadata[k]; return ok }))]
		attrs = append(attrs, slog.String(key, logText(m.Metadata[key])),
			slog.Duration("original_delay", c.control.OriginalDelay))
	}
	p.log(ctx, slog.LevelWarn, "message has invalid control headers", attrs...)
}

// originAttrs reports which handler a message was for and where it came from.
func (p *Pipeline) originAttrs(ctx context.Context) []slog.Attr {
	return []slog.Attr{slog.String("handler", p.handlerName(ctx)), slog.String("topic", logText(originOf(ctx).Topic))}
}

func (p *Pipeline) deliveryAttrs(d *delivery) []slog.Attr {
	retries := slog.Int("retry_count", d.control.RetryCount)
	if d.control.RetryCountInvalid {
		retries = slog.String("retry_count", "unreadable")
	}
	attrs := make([]slog.Attr, 0, 21)
	attrs = append(attrs,
		slog.String("handler", d.handler),
		slog.String("topic", d.origin.Topic),
		slog.String("message_id", logText(d.attempt.MessageID)),
		slog.Int("attempt", d.attempt.Number),
		slog.Int("max_attempts", d.attempt.Max),
		retries,
	)
	if d.control.OriginalDelay > 0 {
		attrs = append(attrs, slog.Duration("original_delay", d.control.OriginalDelay))
	}
	if d.control.Clamped {
		attrs = append(attrs, slog.Bool("original_delay_clamped", true))
	}
	if d.origin.Exchange != "" || d.origin.RoutingKey != "" { // RabbitMQ's default exchange has the empty name
		attrs = append(attrs, slog.String("exchange", logText(d.origin.Exchange)))
	}
	if d.origin.RoutingKey != "" {
		attrs = append(attrs, slog.String("routing_key", logText(d.origin.RoutingKey)))
	}
	return attrs
}

// logHeaders is a map, which slog handlers write with sorted keys.
func logHeaders(md message.Metadata) map[string]string {
	out := make(map[string]string, len(md))
	for k, v := range md {
		out[logText(k)] = logText(v)
	}
	return out
}
