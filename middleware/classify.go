package middleware

import (
	"errors"
	"fmt"
	"strconv"
	"time"
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
// not match, and later rules are still consulted.
func (c *Classifier) Classify(err error) Verdict {
	v := c.kind(err)
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
	for i := range c.rules {
		r := &c.rules[i]
		verdict := Verdict{Kind: r.Kind, Rule: r.Name, After: r.After, HasAfter: r.After > 0}
		match := func(err error) (Verdict, bool) { return verdict, r.Match(err) }
		if v, ok := matched(r.Name, err, match, &rulePanic); ok {
			return v
		}
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
	for depth := 0; err != nil && depth < deepest; depth++ {
		switch e := err.(type) { //nolint:errorlint // walks the chain itself
		case interface{ Code() string }:
			return e.Code()
		case interface{ SQLState() string }:
			return e.SQLState()
		case interface{ Code() int }:
			return strconv.Itoa(e.Code())
		}
		err = errors.Unwrap(err)
	}
	return ""
}
