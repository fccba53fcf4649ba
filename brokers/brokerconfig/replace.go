package brokerconfig

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// replacer replaces ${...} in the string values of a YAML tree, and collects the errors.
type replacer struct{ faults []error }

// Visit implements ast.Visitor.
func (r *replacer) Visit(node ast.Node) ast.Visitor {
	switch n := node.(type) {
	case *ast.MappingValueNode:
		ast.Walk(r, n.Value) // keys are not values
		return nil
	case *ast.StringNode:
		r.replaceIn(n, &n.Value)
	case *ast.LiteralNode:
		r.replaceIn(n, &n.Value.Value)
		return nil
	}
	return r
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

func resolve(reference string) (string, error) {
	if path, isFile := strings.CutPrefix(reference, "file:"); isFile {
		content, err := os.ReadFile(path)
		if err != nil {
			return "", fmt.Errorf("${file:...}: %w", err)
		}
		return strings.TrimSuffix(strings.TrimSuffix(string(content), "\n"), "\r"), nil
	}
	name, fallback, hasFallback := strings.Cut(reference, ":-")
	if name == "" || strings.ContainsAny(name, " \t$:{") {
		return "", fmt.Errorf("${%s} is not a reference: write ${NAME}, ${NAME:-default} or ${file:/path}", reference)
	}
	if value, set := os.LookupEnv(name); set && value != "" {
		return value, nil
	}
	if !hasFallback {
		return "", fmt.Errorf("${%s}: the environment variable is not set; set it, or write ${%s:-default}", name, name)
	}
	return fallback, nil
}
