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
	_, reads := reflect.New(wanted).Interface().(yaml.InterfaceUnmarshaler) // keys that are not its fields
	kind := wanted.Kind()
	switch n := node.(type) {
	case *ast.NullNode, *ast.AnchorNode, *ast.AliasNode:
		return nil // the default, or left to the library
	case ast.MapNode:
		for pair := n.MapRange(); (kind == reflect.Struct || kind == reflect.Map) && !reads && pair.Next(); {
			name := pair.Key().GetToken().Value
			if below := typeOf(wanted, name); below != nil {
				faults = append(faults, misfits(pair.Value(), below, strings.TrimPrefix(key+"."+name, "."))...)
			}
		}
		if kind == reflect.Struct || kind == reflect.Map {
			return faults
		}
	case *ast.SequenceNode:
		if kind == reflect.Slice {
			for i, item := range n.Values {
				faults = append(faults, misfits(item, wanted.Elem(), fmt.Sprintf("%s[%d]", key, i))...)
			}
			return faults
		}
	}
	if fault := misfit(node, wanted); fault != "" {
		fault = strings.TrimPrefix(key+": "+fault, ": ")
		return []error{fmt.Errorf("line %d: %s", node.GetToken().Position.Line, fault)}
	}
	return nil
}

// typeOf is the type of the values of a key, nil if there is no such key, which the library reports.
func typeOf(wanted reflect.Type, name string) reflect.Type {
	if wanted.Kind() == reflect.Map {
		return wanted.Elem()
	}
	for _, field := range reflect.VisibleFields(wanted) {
		if tag, _, _ := strings.Cut(field.Tag.Get("yaml"), ","); cmp.Or(tag, strings.ToLower(field.Name)) == name {
			return field.Type
		}
	}
	return nil
}

// misfit is what a value is not, empty if it fits.
func misfit(node ast.Node, wanted reflect.Type) string {
	var number float64
	var text string
	value, isNumber := reflect.New(wanted), decode(node, &number) == nil
	err := decode(node, value.Interface())
	unlike := value.Elem().CanFloat() && math.IsNaN(number-number) || value.Elem().CanInt() && number != math.Trunc(number)
	fault := "not " + cmp.Or(map[reflect.Kind]string{
		reflect.Bool: "true or false", reflect.String: "a text", reflect.Float64: "a number",
		reflect.Slice: "a list: write it in square brackets, such as [a, b]",
		reflect.Map:   "a mapping: write its keys below it", reflect.Struct: "a mapping: write its keys below it",
	}[wanted.Kind()], "a whole number")
	if wanted == reflect.TypeFor[time.Duration]() {
		fault = "not a duration such as 250ms, 30s or 1h30m"
		if decode(node, &text) == nil {
			fault = strconv.Quote(text) + " is " + fault
		}
		if isNumber {
			fault += ": write its unit"
		}
	}
	if err == nil && !unlike {
		return ""
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
