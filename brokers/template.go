package brokers

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// template is a name with {variables} and [parts that are left out if a variable in them is empty].
type template string

// expand replaces the variables by the results of lookup.
func (t template) expand(lookup func(name string) string) string {
	var out strings.Builder
	rest := string(t)
	for rest != "" {
		before, after, found := strings.Cut(rest, "[")
		expanded, _ := expandVars(before, lookup)
		out.WriteString(expanded)
		if !found {
			break
		}
		var part string
		part, rest, _ = strings.Cut(after, "]")
		if optional, complete := expandVars(part, lookup); complete {
			out.WriteString(optional)
		}
	}
	return out.String()
}

// expandVars replaces variables in s and reports whether all of them had a value.
func expandVars(s string, lookup func(name string) string) (expanded string, complete bool) {
	var out strings.Builder
	complete = true
	for {
		before, after, found := strings.Cut(s, "{")
		out.WriteString(before)
		if !found {
			return out.String(), complete
		}
		name, behind, _ := strings.Cut(after, "}")
		value := lookup(name)
		complete = complete && value != ""
		out.WriteString(value)
		s = behind
	}
}

// check reports syntax errors in t, and variables that are not allowed.
func (t template) check(allowed []string) error {
	depth := 0 // 1 in a variable, 2 in an optional part, 3 in a variable of an optional part
	start := 0
	var faults []error
	for i, c := range string(t) {
		switch {
		case c == '{' && depth&1 == 0:
			depth |= 1
			start = i + 1
		case c == '}' && depth&1 == 1:
			depth &^= 1
			if name := string(t[start:i]); !slices.Contains(allowed, name) {
				faults = append(faults, fmt.Errorf("unknown variable {%s}: known here are {%s}", name,
					strings.Join(allowed, "}, {")))
			}
		case c == '[' && depth == 0:
			depth = 2
		case c == ']' && depth == 2:
			depth = 0
		case strings.ContainsRune("{}[]", c):
			return fmt.Errorf("unexpected %q at byte %d", c, i)
		case c < ' ' || c == 0x7f:
			return fmt.Errorf("control character at byte %d", i)
		}
	}
	if depth != 0 {
		return errors.New("a { or [ is not closed")
	}
	return errors.Join(faults...)
}

// requires reports whether t has the variable outside optional parts.
func (t template) requires(name string) bool {
	var outside strings.Builder
	for rest := string(t); rest != ""; {
		before, after, _ := strings.Cut(rest, "[")
		outside.WriteString(before)
		_, rest, _ = strings.Cut(after, "]")
	}
	return strings.Contains(outside.String(), "{"+name+"}")
}
