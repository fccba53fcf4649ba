package middleware

import (
	"errors"
	"fmt"
	"time"
)

// Rule is what errors of one sort mean. The rules of [Config.Rules] are consulted in their order, after the marks that
// the handler itself has set and before the built-in rules; the first that matches decides.
type Rule struct {
	// Name is kept on the decision, the log line and the dead letter, so that an operator sees why: "card number invalid".
	// Required.
	Name string
	// Match reports whether the rule is about err. It must be safe for concurrent use. A Match that panics is logged
	// and does not match. Required.
	Match func(err error) bool
	// Kind is what a matching error means. KindUnknown leaves it to [Config.OnUnknown].
	Kind Kind
	// After is the delay before the next run, for KindRetryable and KindDefer. Defaults to what the backoff says,
	// and to [Config.DeferDelay].
	After time.Duration
}

// MatchError is a [Rule] about every error for which errors.Is(err, target) holds.
func MatchError(target error, kind Kind, name string) Rule {
	return Rule{Name: name, Kind: kind, Match: func(err error) bool { return errors.Is(err, target) }}
}

// MatchType is a [Rule] about every error in whose chain errors.As finds an E:
//
//	middleware.MatchType[*ValidationError](middleware.KindPermanent, "validation")
func MatchType[E error](kind Kind, name string) Rule {
	return Rule{Name: name, Kind: kind, Match: func(err error) bool {
		return has[E](err)
	}}
}

// MatchFunc is a [Rule] about every error for which match returns true.
func MatchFunc(match func(err error) bool, kind Kind, name string) Rule {
	return Rule{Name: name, Kind: kind, Match: match}
}

func (r Rule) validate(where string) error {
	var errs []error
	if r.Name == "" {
		errs = append(errs, fmt.Errorf("%s: Name is required: it tells an operator why a message was decided so", where))
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
