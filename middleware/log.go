package middleware

import (
	"context"
	"log/slog"
	"strconv"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
)

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
		attrs = append(attrs,
			slog.String(envelope.KeyRetryCount, logText(m.Metadata[envelope.KeyRetryCount])),
			slog.String("retries", "none: an unknown counter gets one run"))
	}
	if c.control.Clamped {
		key := envelope.KeyOriginalDelay
		if _, ok := m.Metadata[key]; !ok {
			key = envelope.KeyWatermillDelayedFor
		}
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
