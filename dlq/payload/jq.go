package payload

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"time"

	"github.com/itchyny/gojq"

	"github.com/redrive-go/redrive/dlq/driver"
)

// Bounds of a jq expression on one payload.
const (
	jqTimeout   = time.Second
	maxJQOutput = 16 << 20
)

// Program is a compiled jq expression. It is safe for concurrent use.
type Program struct{ code *gojq.Code }

// Compile compiles an expression. It sees the payload and nothing else: no environment, no files, no further input.
func Compile(expression string) (*Program, error) {
	query, err := gojq.Parse(expression)
	if err != nil {
		return nil, fmt.Errorf("jq expression: %w: %w", driver.ErrInvalid, err)
	}
	code, err := gojq.Compile(query)
	if err != nil {
		return nil, fmt.Errorf("jq expression: %w: %w", driver.ErrInvalid, err)
	}
	return &Program{code: code}, nil
}

// Edit runs the expression over the payload of a body and returns a new body, or nil when nothing changed. What the expression did
// not touch keeps its bytes: the order of the keys, the white space, and numbers that no float64 can hold.
func (p *Program) Edit(ctx context.Context, b *driver.Body) (*driver.Body, error) {
	input, err := decodeJSON(b.Payload)
	if err != nil {
		return nil, fmt.Errorf("the payload is not JSON: %w", err)
	}
	output, err := p.run(ctx, input)
	if err != nil {
		return nil, err
	}
	payload, err := spliceJSON(b.Payload, output)
	if err != nil {
		return nil, err
	}
	if len(payload) > maxJQOutput && len(payload) > len(b.Payload) {
		return nil, fmt.Errorf("the result has %d bytes, more than %d", len(payload), maxJQOutput)
	}
	if bytes.Equal(payload, b.Payload) {
		return nil, nil //nolint:nilnil // no change is not a body
	}
	after := *b
	after.Headers, after.Payload = maps.Clone(b.Headers), payload
	after.Rehash()
	return &after, nil
}

// run returns the one result of the expression.
func (p *Program) run(ctx context.Context, input any) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, jqTimeout)
	defer cancel()
	results := p.code.RunWithContext(ctx, input)
	output, ok := results.Next()
	if !ok {
		return nil, errors.New("jq: the expression gives nothing for this payload")
	}
	if err, failed := output.(error); failed {
		if errors.Is(err, context.DeadlineExceeded) {
			return nil, fmt.Errorf("jq: the expression did not end within %s", jqTimeout)
		}
		return nil, fmt.Errorf("jq: %w", err)
	}
	if second, more := results.Next(); more {
		if err, failed := second.(error); failed {
			return nil, fmt.Errorf("jq: %w", err)
		}
		return nil, errors.New("jq: the expression gives more than one result for this payload")
	}
	return output, nil
}

// decodeJSON reads one JSON value, its numbers as they are written.
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
