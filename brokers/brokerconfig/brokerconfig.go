// Package brokerconfig reads broker configuration from YAML, strictly: an unknown key is an error with its
// line, and durations are written as in Go, or in days: 90d.
//
//	url: amqp://rabbit.internal:5672/prod
//	username: orders
//	password: ${BROKER_PASSWORD}
//	group: billing
//	concurrency: 8
//	drain_timeout: 20s
//	naming: {preset: service-bus, project: easyweek}
//	params: {prefetch: 50}
//
// Values may refer to secrets elsewhere: ${NAME} is an environment variable, ${NAME:-default} one that may be unset,
// ${file:/run/secrets/broker} the content of a file without its last line break, and $${ a literal ${. References are
// replaced after the YAML is parsed, so no value can change its structure.
//
// It is a separate package so that programs without a configuration file compile no YAML. The keys are those of
// [brokers.Config] and correspond to the URL's parameters.
package brokerconfig

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/internal/duration"
)

// Load reads a broker's configuration from a file. Open it with brokers.OpenConfig, which does the checks that need the
// driver.
func Load(path string) (brokers.Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return brokers.Config{}, fmt.Errorf("brokerconfig: %w", err)
	}
	c, err := Parse(data)
	if err != nil {
		return brokers.Config{}, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// Parse reads a broker's configuration.
func Parse(data []byte) (c brokers.Config, err error) {
	err = Decode(data, &c)
	return c, err
}

// Decode reads YAML into the value that into points to, with the same strictness and the same replacements, for
// programs whose configuration includes a brokers.Config. Errors name lines and keys, and show none of the surrounding
// values.
func Decode(data []byte, into any) error {
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		return fmt.Errorf("brokerconfig: %w", located(err))
	}
	if len(file.Docs) > 1 {
		return errors.New("brokerconfig: the file holds several documents; write one")
	}
	if len(file.Docs) == 0 || file.Docs[0].Body == nil {
		return nil
	}
	body := file.Docs[0].Body
	var replace replacer
	ast.Walk(&replace, body)
	if err := errors.Join(replace.faults...); err != nil {
		return fmt.Errorf("brokerconfig: %w", err)
	}
	if err := errors.Join(misfits(body, reflect.TypeOf(into), "")...); err != nil {
		return fmt.Errorf("brokerconfig: %w", err)
	}
	if err := decode(body, into); err != nil {
		return fmt.Errorf("brokerconfig: %w", located(err))
	}
	return nil
}

func decode(node ast.Node, into any) error {
	return yaml.NodeToValue(node, into, yaml.Strict(), yaml.CustomUnmarshaler(readDuration))
}

// readDuration reads a duration as flags do. goccy/go-yaml 1.19 passes the text of the file, before the replacement.
func readDuration(into *time.Duration, data []byte) error {
	var text string
	if err := yaml.Unmarshal(data, &text); err != nil {
		return err
	}
	text, err := replace(text)
	if err != nil {
		return err
	}
	*into, err = duration.Parse(text)
	return err
}

// misfits are the values at key, and below it, that their keys cannot have. goccy/go-yaml 1.19 reports one at a time
// and without its key, and takes 1.5 for a whole number.
func misfits(node ast.Node, wanted reflect.Type, key string) (faults []error) {
	for wanted.Kind() == reflect.Pointer {
		wanted = wanted.Elem()
	}
	if anchor, ok := node.(*ast.AnchorNode); ok {
		node = anchor.Value
	}
	mapping, isMapping := node.(ast.MapNode)
	list, isList := node.(*ast.SequenceNode)
	switch kind := wanted.Kind(); {
	case isUnchecked(node, wanted):
	case isMapping && (kind == reflect.Map || kind == reflect.Struct):
		for pair := mapping.MapRange(); pair.Next(); {
			name := pair.Key().GetToken().Value
			if below := typeOf(wanted, name); below != nil {
				faults = append(faults, misfits(pair.Value(), below, strings.TrimPrefix(key+"."+name, "."))...)
			}
		}
	case isList && kind == reflect.Slice:
		for i, item := range list.Values {
			faults = append(faults, misfits(item, wanted.Elem(), fmt.Sprintf("%s[%d]", key, i))...)
		}
	case !fits(node, wanted):
		fault := strings.TrimPrefix(key+": "+misfit(node, wanted), ": ")
		faults = append(faults, fmt.Errorf("line %d: %s", node.GetToken().Position.Line, fault))
	}
	return faults
}

// isUnchecked reports whether a value is left to the library: null means the default, an alias is checked where its
// anchor is, and an interface, or a type that reads itself, takes other values than its kind.
func isUnchecked(node ast.Node, wanted reflect.Type) bool {
	_, readsYAML := reflect.PointerTo(wanted).MethodByName("UnmarshalYAML")
	_, readsText := reflect.PointerTo(wanted).MethodByName("UnmarshalText")
	return readsYAML || readsText || wanted.Kind() == reflect.Interface || node.Type() == ast.NullType ||
		node.Type() == ast.AliasType
}

// typeOf is the type of the values of a key, nil if there is no such key, which the library reports.
func typeOf(wanted reflect.Type, name string) reflect.Type {
	switch {
	case name == "<<": // merges keys
		return wanted
	case wanted.Kind() == reflect.Map:
		return wanted.Elem()
	}
	for _, field := range reflect.VisibleFields(wanted) {
		tag, _, _ := strings.Cut(field.Tag.Get("yaml"), ",")
		if field.IsExported() && cmp.Or(tag, strings.ToLower(field.Name)) == name {
			return field.Type
		}
	}
	return nil
}

// fits reports whether a type can have a value, and exactly this one.
func fits(node ast.Node, wanted reflect.Type) bool {
	value := reflect.New(wanted)
	if decode(node, value.Interface()) != nil {
		return false
	}
	var number float64
	_ = decode(node, &number) // 0 for a text, such as a duration
	if value.Elem().CanFloat() {
		return !math.IsNaN(number) && !math.IsInf(number, 0)
	}
	return !value.Elem().CanInt() && !value.Elem().CanUint() || number == math.Trunc(number)
}

// misfit is what a value is not.
func misfit(node ast.Node, wanted reflect.Type) string {
	if wanted != reflect.TypeFor[time.Duration]() {
		return "not " + cmp.Or(map[reflect.Kind]string{
			reflect.Bool: "true or false", reflect.String: "a text", reflect.Float32: "a number", reflect.Float64: "a number",
			reflect.Slice: "a list: write it in square brackets, such as [a, b]",
			reflect.Map:   "a mapping: write its keys below it", reflect.Struct: "a mapping: write its keys below it",
		}[wanted.Kind()], "a whole number")
	}
	fault := "not a duration such as 250ms, 30s or 1h30m"
	var text string
	if decode(node, &text) == nil {
		fault = strconv.Quote(text) + " is " + fault
	}
	var number float64
	if decode(node, &number) == nil {
		fault += ": write its unit"
	}
	return fault
}

// quoted are the values that the YAML library quotes in the message of an error.
var quoted = regexp.MustCompile(`"(\\.|[^"\\])*"`)

// located renders an error of the YAML library as line and message. Its own text quotes the surrounding lines, and its
// message about a value the value, and with them a password.
func located(err error) error {
	var fault yaml.Error
	if !errors.As(err, &fault) || fault.GetToken() == nil {
		return errors.New("the YAML cannot be read")
	}
	text := fault.GetMessage()
	if _, onlyAKey := fault.(*yaml.UnknownFieldError); !onlyAKey {
		text = quoted.ReplaceAllString(text, "...")
	}
	return fmt.Errorf("line %d: %s", fault.GetToken().Position.Line, text)
}

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
