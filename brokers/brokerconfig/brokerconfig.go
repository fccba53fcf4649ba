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
	"os"
	"reflect"
	"regexp"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

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
	if err := yaml.NodeToValue(body, into, yaml.Strict(), yaml.CustomUnmarshaler(readDuration)); err != nil {
		if duration := checkDurations(body, err); duration != nil {
			err = duration
		} else {
			err = located(err)
		}
		return fmt.Errorf("brokerconfig: %w", err)
	}
	return nil
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

// checkDurations finds the value that readDuration rejected, which goccy/go-yaml 1.19 reports without its line.
func checkDurations(body ast.Node, err error) error {
	var fault error
	for _, kind := range []ast.NodeType{ast.StringType, ast.BoolType, ast.IntegerType, ast.FloatType} {
		for _, n := range ast.Filter(kind, body) {
			value, unit := n.GetToken().Value, ": write its unit"
			switch n := n.(type) {
			case *ast.StringNode:
				value, unit = n.Value, "" // with its references replaced
			case *ast.BoolNode:
				unit = ""
			}
			if _, refused := duration.Parse(value); refused != nil && refused.Error() == err.Error() {
				fault = fmt.Errorf("line %d: %q is not a duration such as 250ms, 30s or 1h30m%s", n.GetToken().Position.Line,
					value, unit)
			}
		}
	}
	return fault
}

// quoted are the values that the YAML library quotes in the message of a syntax error.
var quoted = regexp.MustCompile(`"(\\.|[^"\\])*"`)

// located renders an error of the YAML library as line and message. Its own text quotes the surrounding lines, and its
// message about a value the value, and with them a password.
func located(err error) error {
	var fault yaml.Error
	if !errors.As(err, &fault) || fault.GetToken() == nil {
		return errors.New("the YAML cannot be read")
	}
	at, text := fault.GetToken(), fault.GetMessage()
	if strings.HasSuffix(text, " was used where sequence is expected") {
		return fmt.Errorf("line %d: not a list: write it in square brackets, such as [a, b]", at.Position.Line)
	}
	switch fault := fault.(type) {
	case *yaml.SyntaxError:
		text = quoted.ReplaceAllString(text, "...")
	case *yaml.TypeError:
		text = unfit(at, fault.DstType)
	case *yaml.OverflowError:
		text = unfit(at, fault.DstType)
	}
	return fmt.Errorf("line %d: %s", at.Position.Line, text)
}

// unfit names the key of a value and what it should be; the YAML library names the types of Go.
func unfit(value *token.Token, wanted reflect.Type) string {
	key := ""
	if value.Prev != nil && value.Prev.Type == token.MappingValueType && value.Prev.Prev != nil {
		key = value.Prev.Prev.Value + ": "
	}
	kind := map[reflect.Kind]string{reflect.Bool: "true or false", reflect.String: "a text", reflect.Float64: "a number"}
	return key + "not " + cmp.Or(kind[wanted.Kind()], "a whole number")
}
