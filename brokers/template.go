package brokers

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// template is a name with {variables}. A variable may have a separator in front, as in {.group}, which disappears with
// it if it is empty.
type template string

var variable = regexp.MustCompile(`\{([^{}a-z]?)([a-z]*)\}`)

// expand replaces the variables by the results of lookup.
func (t template) expand(lookup func(name string) string) string {
	return variable.ReplaceAllStringFunc(string(t), func(found string) string {
		parts := variable.FindStringSubmatch(found)
		value := lookup(parts[2])
		if value == "" {
			return ""
		}
		return parts[1] + value
	})
}

// check reports syntax errors in t, and variables that are not allowed.
func (t template) check(allowed []string) error {
	var faults []error
	for _, parts := range variable.FindAllStringSubmatch(string(t), -1) {
		if !slices.Contains(allowed, parts[2]) {
			faults = append(faults, fmt.Errorf("unknown variable {%s}: known here are {%s}", parts[2],
				strings.Join(allowed, "}, {")))
		}
	}
	switch rest := variable.ReplaceAllString(string(t), ""); {
	case strings.ContainsAny(rest, "{}"):
		faults = append(faults, errors.New("write a variable as {name} or {.name}, with one separator in front"))
	case strings.ContainsFunc(string(t), func(r rune) bool { return r < ' ' || r == 0x7f }):
		faults = append(faults, errors.New("has a control character"))
	}
	return errors.Join(faults...)
}

// requires reports whether t has the variable without a separator, so that it must not be empty.
func (t template) requires(name string) bool { return strings.Contains(string(t), "{"+name+"}") }
