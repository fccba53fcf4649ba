package middleware

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware/internal/errtree"
)

// Verdict is the result of classifying an error.
type Verdict struct {
	Kind Kind
	// Rule names the deciding mark or rule, or the built-in rule with its detail ("sqlstate 40001").
	Rule string
	// Code is the error's own code, such as "40001", "1213" or "503"; empty if it has none.
	Code string
	// After is the delay that the error asks for, when HasAfter is set.
	After    time.Duration
	HasAfter bool
	// RulePanic names a rule that panicked during classification; empty if none did.
	RulePanic string
}

// Classifier determines what errors mean. It is immutable and safe for concurrent use.
type Classifier struct {
	rules   []Rule
	builtin bool
}

// NewClassifier returns a classifier that consults the handler's marks first, then rules in their order, then the
// built-in rules listed in the package comment. The error names every invalid rule.
func NewClassifier(rules ...Rule) (*Classifier, error) {
	if err := validateRules("rule", rules); err != nil {
		return nil, fmt.Errorf("middleware: %w", err)
	}
	return &Classifier{rules: append([]Rule(nil), rules...), builtin: true}, nil
}

func validateRules(where string, rules []Rule) error {
	var errs []error
	for i, r := range rules {
		name := fmt.Sprintf("%s %d", where, i+1)
		if r.Name != "" {
			name += fmt.Sprintf(" (%q)", r.Name)
		}
		errs = append(errs, r.validate(name))
	}
	return errors.Join(errs...)
}

// Classify returns what err means. It never panics, whatever err's methods and the rules do: a rule that panics does
// not match, and later rules are still consulted. The error of a publisher is no verdict on the message: a
// [ProducedError] is retryable, or deferred, unless it matches [envelope.ErrTooLarge], or a rule that does not match
// the publisher's error alone.
func (c *Classifier) Classify(err error) Verdict {
	err = errtree.Finite(err)
	v := c.kind(err)
	if p, ok := errorAs[*ProducedError](err); ok && v.Kind != KindDefer && !errorIs(err, envelope.ErrTooLarge) {
		v.Kind, v.Rule = KindRetryable, "produced message not published"
		if own, ok := c.ruled(err, p.Err, &v.RulePanic); ok {
			v = own
		}
	}
	if v.Code == "" {
		v.Code = guardedValue("", func() string { return errorCode(err) })
	}
	return v
}

func (c *Classifier) kind(err error) Verdict {
	var rulePanic string
	if v, ok := matched("mark", err, marked, &rulePanic); ok {
		return v
	}
	if v, ok := c.ruled(err, nil, &rulePanic); ok {
		return v
	}
	if c.builtin {
		for _, rule := range builtinRules {
			if v, ok := matched("built-in", err, rule, &rulePanic); ok {
				return v
			}
		}
	}
	return Verdict{Kind: KindUnknown, Rule: "no rule", RulePanic: rulePanic}
}

// ruled applies the rules, except those that also match but, if it is not nil.
func (c *Classifier) ruled(err, but error, rulePanic *string) (Verdict, bool) {
	for i := range c.rules {
		r := &c.rules[i]
		verdict := Verdict{Kind: r.Kind, Rule: r.Name, After: r.After, HasAfter: r.After > 0}
		match := func(err error) (Verdict, bool) {
			return verdict, r.Match(err) && (but == nil || !r.Match(but))
		}
		if v, ok := matched(r.Name, err, match, rulePanic); ok {
			return v, true
		}
	}
	return Verdict{}, false
}

// matched applies one rule. The first panic is kept for the operator.
func matched(name string, err error, rule func(error) (Verdict, bool), rulePanic *string) (v Verdict, ok bool) {
	defer func() {
		if p := recover(); p != nil {
			if *rulePanic == "" {
				*rulePanic = fmt.Sprintf("rule %q: %v", name, p)
			}
			v, ok = Verdict{}, false
		}
		v.RulePanic = *rulePanic
	}()
	return rule(err)
}

func marked(err error) (Verdict, bool) {
	m, ok := errors.AsType[*MarkedError](err)
	if !ok {
		return Verdict{}, false
	}
	v := Verdict{Kind: m.Kind, Rule: "marked " + m.Kind.String(), After: m.After, HasAfter: m.HasAfter}
	if m.Kind == KindRetryable && !m.HasAfter {
		if status, ok := errorAs[*StatusError](m.Err); ok {
			v.After, v.HasAfter = status.RetryAfter, status.HasRetryAfter
		}
	}
	return v, true
}

// errorCode is the code of the first error in the chain that has one, by one of the usual methods. It walks the chain
// itself, because errors.As would walk it once per method.
func errorCode(err error) string {
	for ; err != nil; err = errors.Unwrap(err) {
		switch e := err.(type) { //nolint:errorlint // walks the chain itself
		case interface{ Code() string }:
			return e.Code()
		case interface{ SQLState() string }:
			return e.SQLState()
		case interface{ Code() int }:
			return strconv.Itoa(e.Code())
		}
	}
	return ""
}

// Kind is what an error means for its message. It is the result of classification; what happens then also depends on
// the limits and on [Config.OnPermanent] and [Config.OnUnknown]: see [Outcome].
type Kind int

const (
	// KindUnknown is an error that matches no rule. It is retried unless [Config.OnUnknown] specifies otherwise.
	KindUnknown Kind = iota
	// KindRetryable is an error that may be gone at the next attempt.
	KindRetryable
	// KindPermanent is an error that no retry can fix: the message is dead-lettered at once.
	KindPermanent
	// KindSkip is an error that settles the message: it is logged, counted and acked.
	KindSkip
	// KindDefer means that it is too early: the message is redelivered later and no attempt is consumed.
	KindDefer
)

// String returns the name of k.
func (k Kind) String() string {
	names := [...]string{"unknown", "retryable", "permanent", "skip", "defer"}
	if k < KindUnknown || k > KindDefer {
		return fmt.Sprintf("Kind(%d)", int(k))
	}
	return names[k]
}

// MarkedError is an error that the handler has marked with its meaning. It is created by [Permanent], [Retryable],
// [Skip], [Defer] and [RetryAfter], has the text of the error that it wraps, and unwraps to it for errors.Is and
// errors.As. If marks are nested, the outermost counts.
type MarkedError struct {
	Kind Kind
	// After is the delay that the handler requests. Only [RetryAfter] and [Defer] set it.
	After time.Duration
	// HasAfter distinguishes a delay of 0 from none.
	HasAfter bool
	Err      error
}

// Error returns the text of the wrapped error.
func (e *MarkedError) Error() string { return e.Err.Error() }

// Unwrap returns the wrapped error.
func (e *MarkedError) Unwrap() error { return e.Err }

// Permanent marks err as an error that no retry can fix. Permanent(nil) is nil, as with all marks, so a handler may
// write: return middleware.Permanent(validate(order)).
func Permanent(err error) error { return mark(err, MarkedError{Kind: KindPermanent}) }

// Retryable marks err as worth another attempt, overriding any rule.
func Retryable(err error) error { return mark(err, MarkedError{Kind: KindRetryable}) }

// Skip marks err as settling the message: it is logged as a warning, counted and acked, and not kept anywhere.
func Skip(err error) error { return mark(err, MarkedError{Kind: KindSkip}) }

// Defer makes the message return after d without consuming an attempt, as long as [Config.MaxDeferAge] allows. A
// handler that has no specific error passes [ErrNotYet]: Defer(nil, d) is nil, which means success.
func Defer(err error, d time.Duration) error {
	return mark(err, MarkedError{Kind: KindDefer, After: max(0, d), HasAfter: true})
}

// RetryAfter marks err as retryable and sets how long to wait instead of the backoff, for example because a remote
// service specified a time. An attempt is consumed.
func RetryAfter(err error, d time.Duration) error {
	return mark(err, MarkedError{Kind: KindRetryable, After: max(0, d), HasAfter: true})
}

func mark(err error, m MarkedError) error {
	if err == nil {
		return nil
	}
	m.Err = errtree.Finite(err)
	return &m
}

// Rule determines what a class of errors means. The rules of [Config.Rules] are consulted in order, after the handler's
// own marks and before the built-in rules; the first match decides.
type Rule struct {
	// Name is recorded in the decision, the log line and the dead letter, so that an operator sees the reason: "card
	// number invalid". Required.
	Name string
	// Match reports whether the rule applies to err. It must be safe for concurrent use. A panic in Match is logged and
	// counts as no match. Required.
	Match func(err error) bool
	// Kind is what a matching error means. KindUnknown leaves it to [Config.OnUnknown].
	Kind Kind
	// After is the delay before the next run, for KindRetryable and KindDefer. Defaults to the backoff and to
	// [Config.DeferDelay], respectively.
	After time.Duration
}

// MatchError returns a [Rule] for every error for which errors.Is(err, target) holds.
func MatchError(target error, kind Kind, name string) Rule {
	return Rule{Name: name, Kind: kind, Match: func(err error) bool { return errors.Is(err, target) }}
}

// MatchType returns a [Rule] for every error in whose chain errors.As finds an E:
//
//	middleware.MatchType[*ValidationError](middleware.KindPermanent, "validation")
func MatchType[E error](kind Kind, name string) Rule {
	return Rule{Name: name, Kind: kind, Match: has[E]}
}

// MatchFunc returns a [Rule] for every error for which match returns true.
func MatchFunc(match func(err error) bool, kind Kind, name string) Rule {
	return Rule{Name: name, Kind: kind, Match: match}
}

func (r Rule) validate(where string) error {
	var errs []error
	if r.Name == "" {
		errs = append(errs, fmt.Errorf("%s: Name is required: it shows an operator the reason for a decision", where))
	}
	if r.Match == nil {
		errs = append(errs, fmt.Errorf("%s: Match is required", where))
	}
	if r.Kind < KindUnknown || r.Kind > KindDefer {
		errs = append(errs, fmt.Errorf("%s: unknown Kind %d", where, int(r.Kind)))
	}
	if r.After < 0 {
		errs = append(errs, fmt.Errorf("%s: After is %s: a delay cannot be negative", where, r.After))
	}
	return errors.Join(errs...)
}
