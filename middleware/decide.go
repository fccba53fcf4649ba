package middleware

import (
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware/internal/errtree"
)

// Outcome is what happens to a delivery.
type Outcome int

const (
	// OutcomeSuccess acks the message and publishes the messages that the handler produced.
	OutcomeSuccess Outcome = iota + 1
	// OutcomeRetry reschedules the message and counts one more failure.
	OutcomeRetry
	// OutcomeDeadLetter stores the message with the reason, and does not retry it automatically.
	OutcomeDeadLetter
	// OutcomeSkip logs, counts and acks the message.
	OutcomeSkip
	// OutcomeDefer reschedules the message without counting a failure.
	OutcomeDefer
	// OutcomeReturn nacks the message without counting a failure, because this consumer is shutting down or has lost it.
	OutcomeReturn
	// OutcomeNotSettled nacks the message after a pause, because neither retry nor dead letter could be published.
	OutcomeNotSettled
)

// String returns the outcome's name in metrics and logs.
func (o Outcome) String() string {
	names := [...]string{
		OutcomeSuccess: "success", OutcomeRetry: "retry", OutcomeDeadLetter: "dead_letter", OutcomeSkip: "skip",
		OutcomeDefer: "defer", OutcomeReturn: "return", OutcomeNotSettled: "not_settled",
	}
	if o < OutcomeSuccess || o > OutcomeNotSettled {
		return fmt.Sprintf("Outcome(%d)", int(o))
	}
	return names[o]
}

// Decision is what a pipeline does about a failed attempt, and why.
type Decision struct {
	Outcome Outcome
	// Verdict is the result of classification.
	Verdict Verdict
	// Reason is why the message is dead; empty unless Outcome is [OutcomeDeadLetter].
	Reason envelope.Reason
	// Attempt is the run that failed.
	Attempt Attempt
	// Delay is the wait of [OutcomeRetry] and [OutcomeDefer].
	Delay time.Duration
	// Base is the delay from which the backoff derived Delay: the original delay, or its own base. It is 0 if there is
	// none, and if the error specified the delay.
	Base time.Duration
	// Err is the handler's error, wrapped in an [ExhaustedError] or matching [ErrExpired] if a limit decided.
	Err error
}

// minDefer keeps a handler that defers by 0 from running in a hot loop.
const minDefer = 100 * time.Millisecond

// Decide returns what the pipeline would do about err on this delivery of m, without doing it: for chains composed by
// hand, for tests, and for tools that explain a configuration. m must be unchanged since it was received, with its
// context.
func (p *Pipeline) Decide(m *message.Message, err error) Decision {
	policy := p.policyOf(m.Context())
	control, malformed := envelope.ReadControl(m)
	a := &attemptContext{control: control, limit: limitOf(&control, policy)}
	if malformed != nil {
		return decideMalformed(a.attempt(), malformed)
	}
	return p.decide(m, policy, a, err, time.Now())
}

func decideMalformed(a Attempt, err error) Decision {
	return Decision{
		Outcome: OutcomeDeadLetter,
		Reason:  envelope.ReasonMalformed,
		Verdict: Verdict{Kind: KindPermanent, Rule: "malformed envelope"},
		Attempt: a,
		Err:     err,
	}
}

func (p *Pipeline) decide(m *message.Message, policy *policy, a *attemptContext, err error, now time.Time) Decision {
	err = errtree.Finite(err)
	d := Decision{Verdict: policy.classifier.Classify(err), Attempt: a.attempt(), Err: err}
	kind := d.Verdict.Kind
	if errorIs(err, ErrMiswired) { // of a pipeline inside this one: the program is at fault, not the message
		d.Outcome = OutcomeReturn
		return d
	}
	if isShutdown(m.Context()) && (kind != KindPermanent && kind != KindSkip || errorIs(causeOf(m.Context()), errNacked)) {
		// A cancelled context makes clients fail with all sorts of errors, not only with context.Canceled. None of them may
		// cost the message an attempt, least of all its last one.
		d.Outcome = OutcomeReturn
		return d
	}
	switch kind {
	case KindSkip:
		d.Outcome = OutcomeSkip
	case KindDefer:
		d.Outcome = OutcomeDefer
	case KindPermanent:
		d.Outcome = policy.OnPermanent
	case KindRetryable:
		d.Outcome = OutcomeRetry
	default:
		d.Outcome = policy.OnUnknown
	}

	switch d.Outcome {
	case OutcomeDeadLetter:
		d.Reason = reasonOf(err, envelope.ReasonPermanent)
	case OutcomeRetry:
		p.decideRetry(&d, m, policy, &a.control, now)
	case OutcomeDefer:
		p.decideDefer(&d, m, now)
	default:
	}
	return d
}

func (p *Pipeline) decideRetry(d *Decision, m *message.Message, policy *policy, c *envelope.Control, now time.Time) {
	if d.Attempt.IsLast() {
		d.Outcome, d.Reason = OutcomeDeadLetter, reasonOf(d.Err, envelope.ReasonExhausted)
		d.Err = &ExhaustedError{Attempts: d.Attempt.Number, Err: d.Err}
		return
	}
	if d.Verdict.HasAfter {
		d.Delay = d.Verdict.After
	} else {
		d.Delay = backoffDelay(policy.Backoff, d.Attempt.Number, c.OriginalDelay)
		d.Base = base(policy.Backoff, c.OriginalDelay)
	}
	d.Delay = min(max(0, d.Delay), p.longest)
	if policy.MaxAge <= 0 {
		return
	}
	if age := now.Add(d.Delay).Sub(created(m, c, now)); age > policy.MaxAge {
		d.expire(age, policy.MaxAge)
	}
}

func (p *Pipeline) decideDefer(d *Decision, m *message.Message, now time.Time) {
	d.Delay = p.cfg.DeferDelay
	if d.Verdict.HasAfter {
		d.Delay = d.Verdict.After
	}
	d.Delay = min(max(minDefer, d.Delay), p.longest)
	since, ok := envelope.DeferredSince(m)
	if !ok || since.After(now) { // RecordDeferral replaces a time in the future by now
		return
	}
	if age := now.Sub(since); age > p.cfg.MaxDeferAge {
		d.expire(age, p.cfg.MaxDeferAge)
	}
}

// reasonOf distinguishes bugs in the handler, however often it was run.
func reasonOf(err error, otherwise envelope.Reason) envelope.Reason {
	if _, panicked := errorAs[*PanicError](err); panicked || errorIs(err, ErrGoexit) {
		return envelope.ReasonPanic
	}
	return otherwise
}

func (d *Decision) expire(age, limit time.Duration) {
	d.Outcome, d.Reason, d.Delay, d.Base = OutcomeDeadLetter, envelope.ReasonExpired, 0, 0
	d.Err = &ExpiredError{Age: age, Limit: limit, Err: d.Err}
}

// backoffDelay is one second if the user's backoff panics.
func backoffDelay(b Backoff, retry int, original time.Duration) time.Duration {
	return guardedValue(time.Second, func() time.Duration { return b.Delay(retry, original) })
}

// created is when the message was created, or the end of its original delay, as far as it is known: the earliest of its
// timestamp, that of its first failure, and that of this delivery, which is a retry's. A time in the future is ignored.
// A redriven message starts over with its first failure, which is after the delay.
func created(m *message.Message, c *envelope.Control, now time.Time) time.Time {
	earliest := now
	consider := func(at time.Time) {
		if !at.IsZero() && at.Before(earliest) {
			earliest = at
		}
	}
	if first, ok := envelope.FirstFailure(m); ok {
		consider(first)
	}
	if c.RedriveID != "" {
		return earliest
	}
	if e, err := envelope.FromMessage(m); err == nil {
		consider(e.Timestamp())
	}
	consider(originOf(m.Context()).Timestamp)
	return earliest.Add(c.OriginalDelay)
}
