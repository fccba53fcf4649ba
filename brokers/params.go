package brokers

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-go/redrive/internal/duration"
	"github.com/redrive-go/redrive/internal/suggest"
)

// Params holds a driver's own parameters by their names without x-. After [Config.Resolve] it has a valid value for
// every declared parameter, so the getters cannot fail: they panic only for a name that the driver never declared, or
// declared with another Kind, which a driver's first test reveals.
type Params map[string]string

// String returns a value of kind String.
func (p Params) String(name string) string { return p.value(name) }

// Int returns a value of kind Int; 0 if it is empty.
func (p Params) Int(name string) int { return int(mustParse(name, p.value(name), parseInt)) }

// Bool returns a value of kind Bool; false if it is empty.
func (p Params) Bool(name string) bool { return mustParse(name, p.value(name), parseBool) }

// Duration returns a value of kind Duration; 0 if it is empty.
func (p Params) Duration(name string) time.Duration {
	return mustParse(name, p.value(name), parseDuration)
}

// Bytes returns a value of kind Size in bytes; 0 if it is empty.
func (p Params) Bytes(name string) int64 { return mustParse(name, p.value(name), parseSize) }

// Durations returns a value of kind DurationList; nil if it is empty.
func (p Params) Durations(name string) []time.Duration {
	return mustParse(name, p.value(name), parseDurations)
}

func (p Params) value(name string) string {
	v, ok := p[name]
	if !ok {
		panic(fmt.Sprintf("brokers: parameter %q is not declared by the driver, or the Config is not resolved", name))
	}
	return v
}

func mustParse[T any](name, text string, parse func(string) (T, error)) T {
	var zero T
	if text == "" {
		return zero
	}
	v, err := parse(text)
	if err != nil {
		panic(fmt.Sprintf("brokers: parameter %q is declared with another kind: %v", name, err))
	}
	return v
}

// resolve checks p against the declared parameters and fills in their defaults. where names the source of the values,
// for errors.
func (p Params) resolve(declared []Param, where string) error {
	var faults []error
	for _, name := range slices.Sorted(maps.Keys(p)) {
		i := slices.IndexFunc(declared, func(d Param) bool { return d.Name == name && !d.Native })
		if i < 0 && where == inConfig && passes(name, declared) {
			delete(p, name)
			continue
		}
		if i < 0 {
			faults = append(faults, unknownParam(where, name, declaredNames(declared)))
			continue
		}
		if err := declared[i].check(p[name]); err != nil {
			faults = append(faults, err)
		}
	}
	for _, d := range declared {
		if _, given := p[d.Name]; !given && !d.Native && d.Name != anyParam {
			p[d.Name] = d.Default
		}
	}
	return errors.Join(faults...)
}

// inConfig is the key of the parameters in a Config.
const inConfig = "params"

// anyParam is the name that stands for every parameter.
const anyParam = "*"

// passes reports whether a driver accepts unknown parameters, and name is not a misspelling of a known one.
func passes(name string, declared []Param) bool {
	lenient := slices.ContainsFunc(declared, func(d Param) bool { return d.Name == anyParam && !d.Native })
	return lenient && suggest.Nearest(name, declaredNames(declared)) == ""
}

func declaredNames(declared []Param) []string {
	var names []string
	for _, d := range declared {
		if !d.Native && d.Name != anyParam {
			names = append(names, d.Name)
		}
	}
	return names
}

// check parses value strictly. Empty means "not given", unless the kind has a use for it.
func (d Param) check(value string) error {
	fault := d.fault(value)
	switch {
	case fault == "":
		return nil
	case d.Secret || secretName(d.Name):
		return fmt.Errorf("parameter %s: the value %s", d.Name, fault)
	default:
		return fmt.Errorf("parameter %s=%q: %s", d.Name, shownValue(d.Name, value), fault)
	}
}

func (d Param) fault(value string) string {
	if value == "" && d.Default == "" {
		return ""
	}
	if len(d.OneOf) > 0 && !slices.Contains(d.OneOf, value) {
		return "must be one of " + strings.Join(d.OneOf, ", ")
	}
	var (
		n   int64
		err error
	)
	switch d.Type {
	case String:
	case Int:
		n, err = parseInt(value)
	case Bool:
		_, err = parseBool(value)
	case Duration:
		var v time.Duration
		v, err = parseDuration(value)
		n = int64(v)
	case Size:
		n, err = parseSize(value)
	case DurationList:
		_, err = parseDurations(value)
	}
	switch {
	case err != nil:
		return err.Error()
	case d.bounded() && n < d.Min:
		return "must be at least " + d.show(d.Min)
	case d.bounded() && d.Max > 0 && n > d.Max:
		return "must be at most " + d.show(d.Max)
	}
	return ""
}

func (d Param) bounded() bool { return d.Type == Int || d.Type == Duration || d.Type == Size }

func (d Param) show(n int64) string {
	if d.Type == Duration {
		return time.Duration(n).String()
	}
	return strconv.FormatInt(n, 10)
}

func parseInt(s string) (int64, error) {
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		return 0, errors.New("must be a whole number such as 20")
	}
	return int64(n), nil
}

func parseBool(s string) (bool, error) {
	switch s {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, errors.New("must be true or false")
}

func parseDuration(s string) (time.Duration, error) {
	d, err := duration.Parse(s)
	if err != nil {
		return 0, errors.New("must be a duration with a unit, such as 250ms, 30s or 1h30m")
	}
	if d < 0 {
		return 0, errors.New("must not be negative")
	}
	return d, nil
}

func parseSize(s string) (int64, error) {
	fault := errors.New("must be a number of bytes such as 1048576 or 1MiB")
	shift := 0
	for i, suffix := range []string{"KiB", "MiB", "GiB"} {
		if number, found := strings.CutSuffix(s, suffix); found {
			s, shift = number, 10*(i+1)
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || s[0] == '+' || n < 0 || n > math.MaxInt64>>shift {
		return 0, fault
	}
	return n << shift, nil
}

func parseDurations(s string) ([]time.Duration, error) {
	var list []time.Duration
	for part := range strings.SplitSeq(s, ",") {
		d, err := parseDuration(part)
		if err != nil {
			return nil, fmt.Errorf("%q in the list %w", part, err)
		}
		list = append(list, d)
	}
	return list, nil
}

// unknownParam reports the known parameters and, for a probable typo, which one was meant. The value is left out: it
// may be a misplaced secret.
func unknownParam(where, name string, known []string) error {
	known = slices.Sorted(slices.Values(known))
	list := "there are none"
	if len(known) > 0 {
		list = "known are " + strings.Join(known, ", ")
	}
	hint := ""
	if best := suggest.Nearest(name, known); best != "" {
		hint = fmt.Sprintf("did you mean %s? ", best)
	}
	return fmt.Errorf("%s: unknown parameter %q: %s%s", where, name, hint, list)
}
