package middleware

import (
	"errors"
	"fmt"
	"strconv"
	"time"
)

// Verdict is what classification found out about an error.
type Verdict struct {
	Kind Kind
	// Rule names what decided: a mark, a rule's name, or the built-in rule with its detail ("sqlstate 40001").
	Rule string
	// Code is the error's own code, such as "40001", "1213" or "503"; empty when it has none.
	Code string
	// After is the delay that the error asks for, when HasAfter is set.
	After    time.Duration
	HasAfter bool
	// RulePanic says which rule panicked on the way; empty when none did.
	RulePanic string
}

// Classifier finds out what errors mean. It is immutable and safe for concurrent use.
type Classifier struct {
	rules   []Rule
	builtin bool
}

// NewClassifier returns a classifier that asks the handler's marks first, then rules in their order, then the
// built-in rules that the package comment lists. The error names every rule that cannot work.
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

// Classify returns what err means. It never panics, whatever err's methods and the rules do: an error that cannot be
// understood is [KindUnknown].
func (c *Classifier) Classify(err error) (v Verdict) {
	var rulePanic string
	defer func() {
		if r := recover(); r != nil {
			v = Verdict{Kind: KindUnknown, Rule: "classification panicked", RulePanic: fmt.Sprintf("classifying %T: %v", err, r)}
		}
		if rulePanic != "" {
			v.RulePanic = rulePanic
		}
	}()

	v = c.kind(err, &rulePanic)
	if v.Code == "" {
		v.Code = errorCode(err)
	}
	return v
}

func (c *Classifier) kind(err error, rulePanic *string) Verdict {
	if m, ok := errors.AsType[*MarkedError](err); ok {
		v := Verdict{Kind: m.Kind, Rule: "marked " + m.Kind.String(), After: m.After, HasAfter: m.HasAfter}
		if m.Kind == KindRetryable && !m.HasAfter {
			if status, ok := errors.AsType[*StatusError](m.Err); ok {
				v.After, v.HasAfter = status.RetryAfter, status.HasRetryAfter
			}
		}
		return v
	}
	for i := range c.rules {
		r := &c.rules[i]
		if r.matches(err, rulePanic) {
			return Verdict{Kind: r.Kind, Rule: r.Name, After: r.After, HasAfter: r.After > 0}
		}
	}
	if !c.builtin {
		return Verdict{Kind: KindUnknown, Rule: "no rule"}
	}
	for _, rule := range builtinRules {
		if v, ok := rule(err); ok {
			return v
		}
	}
	return Verdict{Kind: KindUnknown, Rule: "no rule"}
}

// matches keeps a rule that panics from deciding anything: the rules behind it are still asked.
func (r *Rule) matches(err error, rulePanic *string) (ok bool) {
	defer func() {
		if p := recover(); p != nil {
			*rulePanic = fmt.Sprintf("rule %q: %v", r.Name, p)
			ok = false
		}
	}()
	return r.Match(err)
}

// errorCode is the code that the first error of the chain has which has one, by one of the usual methods. It walks the
// chain itself, because errors.As would walk it once for every method.
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
