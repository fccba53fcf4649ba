package payload

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
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
