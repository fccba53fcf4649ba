package middleware

import (
	"errors"
	"fmt"
	"time"
)

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
	return Rule{Name: name, Kind: kind, Match: func(err error) bool {
		return has[E](err)
	}}
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
