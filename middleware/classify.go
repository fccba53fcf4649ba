package middleware

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
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

// sqlState reads the SQL standard's error code, which pgx, lib/pq and others give by this method.
func sqlState(err error) (Verdict, bool) {
	e, ok := asAble[interface{ SQLState() string }](err)
	if !ok {
		return noVerdict()
	}
	code := strings.ToUpper(e.SQLState())
	kind, why := sqlStateKind(code)
	if kind == KindUnknown {
		return noVerdict()
	}
	return Verdict{Kind: kind, Rule: fmt.Sprintf("sqlstate %s: %s", code, why), Code: code}, true
}

func sqlStateKind(code string) (Kind, string) {
	for _, known := range [...]struct {
		codes string // or their first two characters, their class
		kind  Kind
		why   string
	}{
		{"55P03", KindRetryable, "lock not available"},
		{"55006", KindRetryable, "object in use"},
		{"57014", KindRetryable, "statement timeout or cancelled"},
		{"23505", KindPermanent, "duplicate"},
		// The row that this one refers to is often created by an event that has not arrived yet.
		{"23503", KindRetryable, "foreign key not there yet"},
		{"25006", KindRetryable, "read-only: failover in progress"},
		{"26000", KindRetryable, "prepared statement gone with its connection"},
		{"08", KindRetryable, "connection"},
		{"40", KindRetryable, "transaction rolled back"},
		{"53", KindRetryable, "insufficient resources"},
		{"57", KindRetryable, "operator intervention"},
		{"58", KindRetryable, "system error"},
		{"XX", KindRetryable, "internal error"},
		{"0A", KindPermanent, "feature not supported"},
		{"21 22", KindPermanent, "invalid data"},
		{"23 44", KindPermanent, "constraint violated"},
		{"28", KindPermanent, "not authorized"},
		{"3D 3F", KindPermanent, "no such database or schema"},
		{"42", KindPermanent, "syntax error or access rule"},
		{"54", KindPermanent, "program limit exceeded"},
		{"P0", KindPermanent, "raised by a database function"},
	} {
		for prefix := range strings.FieldsSeq(known.codes) {
			if len(code) == 5 && strings.HasPrefix(code, prefix) {
				return known.kind, known.why
			}
		}
	}
	return KindUnknown, ""
}

// mysqlNumber reads the error number of go-sql-driver/mysql. Its *mysql.MySQLError has the number as a field without a
// method, so no interface can match it, and importing the driver would add it to every binary. Instead, the field is
// read by its name and kind from a type of exactly that name; everything else is left alone.
func mysqlNumber(err error) (Verdict, bool) {
	number, ok := errtree.Find(err, mysqlErrorNumber)
	if !ok {
		return noVerdict()
	}
	kind, why := mysqlKind(number)
	if kind == KindUnknown {
		return noVerdict()
	}
	code := strconv.FormatUint(number, 10)
	return Verdict{Kind: kind, Rule: fmt.Sprintf("mysql %s: %s", code, why), Code: code}, true
}

func mysqlErrorNumber(err error) (uint64, bool) {
	v := reflect.ValueOf(err)
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct || v.Elem().Type().Name() != "MySQLError" {
		return 0, false
	}
	f := v.Elem().FieldByName("Number")
	if !f.IsValid() || f.Kind() != reflect.Uint16 {
		return 0, false
	}
	return f.Uint(), true
}

// mysqlKind knows the numbers of the server (from 1000, MySQL and MariaDB) and the client (from 2000).
func mysqlKind(number uint64) (Kind, string) {
	for _, known := range [...]struct {
		kind    Kind
		why     string
		numbers []uint64
	}{
		{KindRetryable, "lock wait or deadlock", []uint64{1205, 1213, 1614, 3572, 3058}},
		{KindRetryable, "too many connections", []uint64{1040, 1129, 1203, 1226, 1637}},
		{KindRetryable, "connection lost or server shutting down", []uint64{
			1053, 1077, 1079, 1080, 1152, 1158, 1159, 1160, 1161, 1184, 1927, 4031, 2002, 2003, 2005, 2006, 2012, 2013,
		}},
		{KindRetryable, "read-only: failover in progress", []uint64{1290, 1792, 1836}},
		{KindRetryable, "statement interrupted or timed out", []uint64{1317, 3024, 1969, 1028}},
		{KindRetryable, "insufficient resources", []uint64{1021, 1037, 1041, 1114}},
		{KindRetryable, "foreign key not there yet", []uint64{1216, 1452}},
		{KindPermanent, "duplicate", []uint64{1062, 1169, 1586}},
		{KindPermanent, "constraint violated", []uint64{1048, 1364, 1217, 1451, 1557, 3819, 4025}},
		{KindPermanent, "invalid data", []uint64{
			1264, 1265, 1292, 1366, 1367, 1406, 1411, 1425, 1690, 1118, 3140, 3141, 3156,
		}},
		{KindPermanent, "no such table, column or syntax", []uint64{1054, 1064, 1109, 1136, 1146, 1305, 1318}},
		{KindPermanent, "not authorized", []uint64{1044, 1045, 1142, 1143, 1227, 1698}},
		{KindPermanent, "no such database", []uint64{1049}},
		{KindPermanent, "raised by a database function", []uint64{1644}},
	} {
		if slices.Contains(known.numbers, number) {
			return known.kind, known.why
		}
	}
	return KindUnknown, ""
}
