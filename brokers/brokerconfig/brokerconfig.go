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
	wrong := misfits{anchors: map[string]ast.Node{}}
	wrong.find(body, reflect.TypeOf(into), "")
	if err := errors.Join(wrong.faults...); err != nil {
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

// misfits finds the values that their keys cannot have. goccy/go-yaml 1.19 reports one at a time and without its key,
// and takes 1.5 for a whole number.
type misfits struct {
	anchors map[string]ast.Node
	faults  []error
}

// find looks at the value of a key, and at those below it.
func (f *misfits) find(node ast.Node, wanted reflect.Type, key string) {
	for wanted.Kind() == reflect.Pointer {
		wanted = wanted.Elem()
	}
	kind := wanted.Kind()
	switch reflect.New(wanted).Interface().(type) {
	case yaml.BytesUnmarshaler, yaml.BytesUnmarshalerContext, yaml.InterfaceUnmarshaler, yaml.InterfaceUnmarshalerContext,
		yaml.NodeUnmarshaler, yaml.NodeUnmarshalerContext:
		kind = reflect.Invalid // its keys are not its fields
	}
	switch n := node.(type) {
	case *ast.NullNode:
		return // the default
	case *ast.AnchorNode:
		f.find(n.Value, wanted, key)
		f.anchors[n.Name.GetToken().Value] = n.Value // not before: it may contain its own alias
		return
	case *ast.AliasNode:
		if named, ok := f.anchors[n.Value.GetToken().Value]; ok {
			f.find(named, wanted, key)
		}
		return // the library reports the others
	case ast.MapNode:
		if kind == reflect.Struct || kind == reflect.Map {
			f.findBelow(n, wanted, key)
			return
		}
	case *ast.SequenceNode:
		if kind == reflect.Slice {
			for i, item := range n.Values {
				f.find(item, wanted.Elem(), fmt.Sprintf("%s[%d]", key, i))
			}
			return
		}
	}
	if fault := misfit(node, wanted); fault != "" {
		if key != "" {
			fault = key + ": " + fault
		}
		f.faults = append(f.faults, fmt.Errorf("line %d: %s", node.GetToken().Position.Line, fault))
	}
}

// findBelow looks at the values of a mapping. The library reports keys that do not exist.
func (f *misfits) findBelow(node ast.MapNode, wanted reflect.Type, at string) {
	for pair := node.MapRange(); pair.Next(); {
		if pair.Key().IsMergeKey() {
			f.find(pair.Value(), wanted, at)
			continue
		}
		name := pair.Key().GetToken().Value
		key := strings.TrimPrefix(at+"."+name, ".")
		if wanted.Kind() == reflect.Map {
			f.find(pair.Value(), wanted.Elem(), key)
			continue
		}
		for _, field := range reflect.VisibleFields(wanted) {
			if tag, _, _ := strings.Cut(field.Tag.Get("yaml"), ","); cmp.Or(tag, strings.ToLower(field.Name)) == name {
				f.find(pair.Value(), field.Type, key)
			}
		}
	}
}

// misfit is what a value is not, empty if it fits.
func misfit(node ast.Node, wanted reflect.Type) string {
	var number float64
	value, isNumber := reflect.New(wanted), decode(node, &number) == nil
	err := decode(node, value.Interface())
	unlike := value.Elem().CanFloat() && math.IsNaN(number-number) || value.Elem().CanInt() && number != math.Trunc(number)
	if wanted == reflect.TypeFor[time.Duration]() && err != nil {
		var text string
		fault := "not a duration such as 250ms, 30s or 1h30m"
		if decode(node, &text) == nil {
			fault = strconv.Quote(text) + " is " + fault
		}
		if isNumber {
			fault += ": write its unit"
		}
		return fault
	}
	if err == nil && !unlike {
		return ""
	}
	return "not " + cmp.Or(map[reflect.Kind]string{
		reflect.Bool: "true or false", reflect.String: "a text", reflect.Float64: "a number",
		reflect.Slice: "a list: write it in square brackets, such as [a, b]",
		reflect.Map:   "a mapping: write its keys below it", reflect.Struct: "a mapping: write its keys below it",
	}[wanted.Kind()], "a whole number")
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
