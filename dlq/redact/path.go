package redact

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// step is one part of a path: a name, an index, or anything; deep matches at any depth below.
type step struct {
	name  string
	index int // -1 when it is a name or anything
	any   bool
	deep  bool
}

// location is a parsed path.
type location []step

// element is a position in a document: a member's name, or an index.
type element struct {
	name  string
	index int // -1 for a member of an object
}

// parsePath reads a path; see the package comment for the syntax.
func parsePath(text string) (location, error) {
	rest, ok := strings.CutPrefix(text, "$")
	if !ok {
		return nil, errors.New("a path begins with $: such as $.card.number or $..iban")
	}
	var steps location
	for rest != "" {
		s := step{index: -1, deep: strings.HasPrefix(rest, "..")}
		if s.deep {
			rest = rest[1:]
		}
		var err error
		switch {
		case s.deep && strings.HasPrefix(rest, ".["):
			rest, err = s.bracket(rest[1:])
		case rest[0] == '.':
			rest, err = s.member(rest[1:])
		case rest[0] == '[':
			rest, err = s.bracket(rest)
		default:
			err = fmt.Errorf("expected . or [ before %q", rest)
		}
		if err != nil {
			return nil, err
		}
		steps = append(steps, s)
	}
	return steps, nil
}

// member reads name or *.
func (s *step) member(text string) (rest string, err error) {
	end := strings.IndexAny(text, ".[")
	if end < 0 {
		end = len(text)
	}
	s.name, rest = text[:end], text[end:]
	if s.name == "" {
		return "", errors.New("a name is missing after the dot")
	}
	if s.name == "*" {
		s.any = true
	}
	return rest, nil
}

// bracket reads ['name'], ["name"], [0] or [*].
func (s *step) bracket(text string) (rest string, err error) {
	if len(text) > 1 && (text[1] == '\'' || text[1] == '"') {
		name, rest, ok := strings.Cut(text[2:], text[1:2]+"]")
		if !ok {
			return "", fmt.Errorf("the bracket of %q is not closed", text)
		}
		s.name = name
		return rest, nil
	}
	inside, rest, ok := strings.Cut(text[1:], "]")
	if !ok {
		return "", fmt.Errorf("the bracket of %q is not closed", text)
	}
	if inside == "*" {
		s.any = true
		return rest, nil
	}
	if s.index, err = strconv.Atoi(inside); err != nil || s.index < 0 {
		return "", fmt.Errorf("[%s]: an index from 0, a quoted name, or *", inside)
	}
	return rest, nil
}

func (s *step) matches(e element) bool {
	switch {
	case s.any:
		return true
	case s.index >= 0:
		return e.index == s.index
	default:
		return e.index < 0 && e.name == s.name
	}
}

// reached is how many steps of a path match down to a position.
type reached struct{ path, steps int }

// below returns what is reached at the position e below another. A path with .. reaches several steps, each only once,
// so that the work does not grow with the number of ways to match. The result is behind at in its array, for the next
// call to overwrite.
func (r *Rules) below(at []reached, e element) []reached {
	next := at[len(at):]
	for _, now := range at {
		s := &r.paths[now.path][now.steps]
		if s.deep && (len(next) == 0 || next[len(next)-1] != now) {
			next = append(next, now)
		}
		if s.matches(e) {
			next = append(next, reached{now.path, now.steps + 1})
		}
	}
	return next
}
