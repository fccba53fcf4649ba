package brokerconfig

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// replacer replaces ${...} in the string values of a YAML tree, and collects the errors.
type replacer struct{ faults []error }

// Visit implements ast.Visitor.
func (r *replacer) Visit(node ast.Node) ast.Visitor {
	switch n := node.(type) {
	case *ast.MappingValueNode:
		n.Value = verbatim(n.Value)
		ast.Walk(r, n.Value) // keys are not values
		if text, ok := n.Value.(*ast.StringNode); ok && (text.Value == "true" || text.Value == "false") {
			at := text.GetToken() // itself: the library knows the text of no other
			at.Value = text.Value
			n.Value = ast.Bool(at) // a target that is a text takes it, too
		}
		return nil
	case *ast.StringNode:
		r.replaceIn(n, &n.Value)
	case *ast.LiteralNode:
		r.replaceIn(n, &n.Value.Value)
		return nil
	case *ast.SequenceNode:
		for i, value := range n.Values {
			n.Values[i] = verbatim(value)
		}
	}
	return r
}

// verbatim makes a text of a number that would change on the way through a Go number and back, such as 0123, 0x1F, +5,
// 1_000 and 1.10: the target may be a text, such as a password. A target that is a number takes the text, too.
func verbatim(node ast.Node) ast.Node {
	switch n := node.(type) {
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		if text := n.GetToken(); fmt.Sprint(n.(ast.ScalarNode).GetValue()) != text.Value {
			return ast.String(text)
		}
	}
	return node
}

func (r *replacer) replaceIn(node ast.Node, value *string) {
	replaced, err := replace(*value)
	if err != nil {
		r.faults = append(r.faults, fmt.Errorf("line %d: %w", node.GetToken().Position.Line, err))
		return
	}
	*value = replaced
}

// replace replaces the references in text, from left to right and only once: the content of a variable is not expanded
// again.
func replace(text string) (string, error) {
	var out strings.Builder
	for {
		before, after, found := strings.Cut(text, "${")
		if !found {
			out.WriteString(text)
			return out.String(), nil
		}
		if literal, escaped := strings.CutSuffix(before, "$"); escaped {
			out.WriteString(literal + "${")
			text = after
			continue
		}
		out.WriteString(before)
		reference, rest, closed := strings.Cut(after, "}")
		if !closed {
			return "", errors.New("a ${ is not closed by }; write $${ for the characters themselves")
		}
		value, err := resolve(reference)
		if err != nil {
			return "", err
		}
		out.WriteString(value)
		text = rest
	}
}

var variable = regexp.MustCompile(`^[\w.()-]+$`)

func resolve(reference string) (string, error) {
	if path, isFile := strings.CutPrefix(reference, "file:"); isFile {
		content, err := os.ReadFile(path)
		if err != nil {
			return "", fmt.Errorf("${file:...}: %w", err)
		}
		return strings.TrimSuffix(strings.TrimSuffix(string(content), "\n"), "\r"), nil
	}
	name, fallback, hasFallback := strings.Cut(reference, ":-")
	if !variable.MatchString(name) { // it may be a part of a password
		return "", errors.New("a ${...} is not a reference: write ${NAME}, ${NAME:-default} or ${file:/path}")
	}
	if value, set := os.LookupEnv(name); set && value != "" {
		return value, nil
	}
	if !hasFallback {
		return "", fmt.Errorf("${%s}: the environment variable is not set; set it, or write ${%s:-default}", name, name)
	}
	return fallback, nil
}
