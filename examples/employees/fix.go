package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/envelope"
)

// changes are fields to set in a JSON object, as the flag -set collects them.
type changes map[string]json.RawMessage

// String implements flag.Value.
func (c changes) String() string { return strings.Join(slices.Sorted(maps.Keys(c)), ",") }

// Set implements flag.Value: the value is JSON if it can be read as such, else text.
func (c changes) Set(assignment string) error {
	field, value, ok := strings.Cut(assignment, "=")
	if !ok || field == "" {
		return fmt.Errorf("%q: write field=value", assignment)
	}
	if !json.Valid([]byte(value)) {
		text, err := json.Marshal(value)
		if err != nil {
			return err
		}
		value = string(text)
	}
	c[field] = json.RawMessage(value)
	return nil
}

// apply returns payload with the changes made.
func (c changes) apply(payload []byte) ([]byte, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(payload, &fields); err != nil {
		return nil, fmt.Errorf("fields can only be set in a JSON object, and this payload is none: %w", err)
	}
	maps.Copy(fields, c)
	return json.Marshal(fields)
}

// fix corrects a dead letter and sends it back to its consumer (C36, C38). The entry keeps the payload that died; what
// goes out is the corrected one, and its outcome closes the entry.
func (sv *service) fix(ctx context.Context, id int64, c changes) error {
	entry, err := sv.letters.Store().Get(ctx, id)
	if err != nil {
		return err
	}
	corrected, err := c.apply(entry.Body.Payload)
	if err != nil {
		return fmt.Errorf("entry %d: %w", id, err)
	}
	sv.tally.expect(entry.Origin.Topic, entry.EventID)
	back := dlq.RedriverFunc(func(ctx context.Context, origin envelope.Origin, m *message.Message, delay time.Duration) error {
		m.Payload = corrected
		return sv.broker.Reschedule(ctx, origin, m, delay)
	})
	_, err = sv.letters.Manager(back, dlq.WithManagerLogger(sv.logger)).Redrive(ctx, id, dlq.By{
		Actor: "employees example", Note: "corrected " + c.String(), Version: entry.Version,
	})
	return err
}
