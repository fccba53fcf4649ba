package payload

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/big"
	"slices"
	"sync/atomic"
	"time"

	"github.com/itchyny/gojq"

	"github.com/redrive-go/redrive/dlq/driver"
)

// Limits of a jq expression, and of its work on one payload.
const (
	jqTimeout     = time.Second
	maxJQOutput   = 16 << 20
	maxExpression = 16 << 10 // nesting of this depth takes tens of megabytes of stack
)

// ErrNotEvaluated means that the evaluator is at fault, not the expression or the payload: a run tries again.
var ErrNotEvaluated = errors.New("jq: the expression was not evaluated")

// Evaluator evaluates jq expressions on payloads. It is safe for concurrent use.
type Evaluator interface {
	// Evaluate returns the result of the expression on a JSON payload. Unchanged parts keep their bytes: the order of the
	// keys, the white space, and numbers that no float64 can hold. The error may wrap [ErrNotEvaluated].
	Evaluate(ctx context.Context, expression string, payload []byte) ([]byte, error)
}

// Check reports whether an expression is valid.
func Check(expression string) error {
	_, err := compile(expression)
	return err
}

// Edit evaluates an expression on the payload of a body and returns a new body, or nil if nothing changed.
func Edit(ctx context.Context, with Evaluator, expression string, b *driver.Body) (*driver.Body, error) {
	payload, err := with.Evaluate(ctx, expression, b.Payload)
	if err != nil {
		return nil, err
	}
	if err := checkSize(payload, b.Payload); err != nil {
		return nil, err
	}
	if bytes.Equal(payload, b.Payload) {
		return nil, nil //nolint:nilnil // no change has no body
	}
	after := *b
	after.Headers, after.Payload = maps.Clone(b.Headers), payload
	after.Rehash()
	return &after, nil
}

// checkSize refuses a result that is large and larger than the original.
func checkSize(result, original []byte) error {
	if len(result) > maxJQOutput && len(result) > len(original) {
		return fmt.Errorf("the result has %d bytes, more than %d", len(result), maxJQOutput)
	}
	return nil
}

// InProcess evaluates in the calling process. Its time is limited where the expression can be interrupted, its memory
// is not: it is for expressions of people who could end the process anyway. [Child] is for others.
type InProcess struct{ last atomic.Pointer[program] }

var _ Evaluator = (*InProcess)(nil)

// Evaluate implements [Evaluator].
func (e *InProcess) Evaluate(ctx context.Context, expression string, payload []byte) ([]byte, error) {
	p := e.last.Load()
	if p == nil || p.expression != expression {
		var err error
		if p, err = compile(expression); err != nil {
			return nil, err
		}
		e.last.Store(p)
	}
	input, err := decodeJSON(payload)
	if err != nil {
		return nil, fmt.Errorf("the payload is not JSON: %w", err)
	}
	output, err := p.run(ctx, input)
	if err != nil {
		return nil, err
	}
	return spliceJSON(payload, output)
}

// program is a compiled expression. It only sees the payload: no environment, no files, no further input.
type program struct {
	expression string
	code       *gojq.Code
}

func compile(expression string) (*program, error) {
	if len(expression) > maxExpression {
		return nil, fmt.Errorf("jq expression: %w: it has %d bytes, more than %d", driver.ErrInvalid, len(expression),
			maxExpression)
	}
	query, err := gojq.Parse(expression)
	var code *gojq.Code
	if err == nil {
		code, err = gojq.Compile(query)
	}
	if err != nil {
		return nil, fmt.Errorf("jq expression: %w: %w", driver.ErrInvalid, err)
	}
	return &program{expression, code}, nil
}

// run returns the one result of the expression.
func (p *program) run(ctx context.Context, input any) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, jqTimeout)
	defer cancel()
	results := p.code.RunWithContext(ctx, input)
	output, ok := results.Next()
	if !ok {
		return nil, errors.New("jq: the expression has no result for this payload")
	}
	if err, failed := output.(error); failed {
		if errors.Is(err, context.DeadlineExceeded) {
			return nil, errTooLong
		}
		return nil, fmt.Errorf("jq: %w", err)
	}
	if second, more := results.Next(); more {
		if err, failed := second.(error); failed {
			return nil, fmt.Errorf("jq: %w", err)
		}
		return nil, errors.New("jq: the expression has more than one result for this payload")
	}
	return output, nil
}

var errTooLong = fmt.Errorf("jq: the expression did not end within %s", jqTimeout)

// decodeJSON reads one JSON value, with numbers as they are written.
func decodeJSON(data []byte) (any, error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one value")
	}
	return value, nil
}

// spliceJSON writes value as JSON, with the original's bytes wherever it has the same value in the same place.
func spliceJSON(original []byte, value any) ([]byte, error) {
	trimmed := bytes.TrimLeft(original, " \t\r\n")
	lead := original[:len(original)-len(trimmed)]
	body := bytes.TrimRight(trimmed, " \t\r\n")
	was, err := decodeJSON(body)
	if err != nil {
		return nil, fmt.Errorf("splice: %w", err)
	}
	out, err := spliceValue(slices.Clone(lead), body, was, value, 0)
	if err != nil {
		return nil, err
	}
	return append(out, trimmed[len(body):]...), nil
}

// maxSpliceDepth limits the work: each level reads the levels below it again. Deeper changes are rewritten.
const maxSpliceDepth = 64

func spliceValue(out []byte, raw json.RawMessage, was, value any, depth int) ([]byte, error) {
	if sameJSON(was, value) {
		return append(out, raw...), nil
	}
	if depth < maxSpliceDepth {
		switch value := value.(type) {
		case map[string]any:
			if was, ok := was.(map[string]any); ok {
				return spliceObject(out, raw, was, value, depth+1)
			}
		case []any:
			if was, ok := was.([]any); ok {
				return spliceArray(out, raw, was, value, depth+1)
			}
		}
	}
	return appendJSON(out, value)
}

// sameJSON reports whether two values are written the same. gojq's own comparison considers 9007199254740993 equal to
// 9007199254740992.0.
func sameJSON(a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		return ok && maps.EqualFunc(a, b, sameJSON)
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, sameJSON)
	case json.Number:
		switch b.(type) {
		case json.Number, int, float64, *big.Int:
			written, err := gojq.Marshal(b)
			return err == nil && string(written) == a.String()
		}
		return false
	default: // nil, bool, string
		switch b.(type) {
		case nil, bool, string:
			return a == b
		}
		return false
	}
}

// spliceObject keeps the remaining members in their order, and appends new ones.
func spliceObject(out []byte, raw json.RawMessage, was, value map[string]any, depth int) ([]byte, error) {
	members, tail, err := rawMembers(raw)
	if err != nil {
		return nil, err
	}
	out = append(out, '{')
	start := len(out)
	next := func() {
		if len(out) > start {
			out = append(out, ',')
		}
	}
	last := make(map[string]int, len(members))
	for i, m := range members {
		last[m.key] = i
	}
	for i, m := range members {
		now, there := value[m.key]
		if !there || last[m.key] != i { // of a duplicate key the last one counts, for gojq and for most readers
			continue
		}
		next()
		out = append(out, m.name...)
		if out, err = spliceValue(out, m.value, was[m.key], now, depth); err != nil {
			return nil, err
		}
	}
	for _, key := range slices.Sorted(maps.Keys(value)) {
		if _, written := last[key]; written {
			continue
		}
		next()
		if out, err = appendJSON(out, key); err != nil {
			return nil, err
		}
		out = append(out, ':')
		if out, err = appendJSON(out, value[key]); err != nil {
			return nil, err
		}
	}
	return append(out, tail...), nil
}

func spliceArray(out []byte, raw json.RawMessage, was, value []any, depth int) ([]byte, error) {
	var elements []json.RawMessage
	if err := json.Unmarshal(raw, &elements); err != nil {
		return nil, fmt.Errorf("splice: %w", err)
	}
	out = append(out, '[')
	for i, now := range value {
		if i > 0 {
			out = append(out, ',')
		}
		var err error
		if i < len(elements) && i < len(was) {
			out, err = spliceValue(out, elements[i], was[i], now, depth)
		} else {
			out, err = appendJSON(out, now)
		}
		if err != nil {
			return nil, err
		}
	}
	return append(out, ']'), nil
}

// rawMember is a member of an object: its key, the key as it is written with the colon and the space around it, and the
// value.
type rawMember struct {
	key   string
	name  []byte
	value json.RawMessage
}

// rawMembers splits an object into its members and its end, the closing brace with the space before it.
func rawMembers(raw json.RawMessage) (members []rawMember, tail []byte, err error) {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	if _, err := decoder.Token(); err != nil {
		return nil, nil, fmt.Errorf("splice: %w", err)
	}
	start := decoder.InputOffset() // More moves it over white space
	for decoder.More() {
		token, err := decoder.Token()
		if err != nil {
			return nil, nil, fmt.Errorf("splice: %w", err)
		}
		m := rawMember{key: token.(string)} //nolint:forcetypeassert // the keys of valid JSON are strings
		if err := decoder.Decode(&m.value); err != nil {
			return nil, nil, fmt.Errorf("splice: %w", err)
		}
		end := decoder.InputOffset() - int64(len(m.value))
		m.name = bytes.Replace(raw[start:end], []byte(","), nil, 1) // the one before the key, if any, which is rewritten
		if start == 1 {
			m.name = raw[start:end]
		}
		members = append(members, m)
		start = decoder.InputOffset()
	}
	return members, raw[start:], nil
}

// appendJSON writes a value of gojq, without the escapes for HTML.
func appendJSON(out []byte, value any) ([]byte, error) {
	data, err := gojq.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("splice: %w", err)
	}
	return append(out, data...), nil
}

// lines around a change
