package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/redrive-go/redrive/dlq"
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

// fix corrects a dead letter and sends it back to its consumer, whose outcome closes the entry (C36, C38). What died first is
// kept beside the correction, as an earlier revision.
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
	manager := sv.letters.Manager(sv.broker, dlq.WithManagerLogger(sv.logger))
	_, err = manager.EditAndRedrive(ctx, id, dlq.Edit{Payload: corrected}, dlq.By{
		Actor: "employees example", Note: "corrected " + c.String(), Version: entry.Version,
	})
	return err
}
