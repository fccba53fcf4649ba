package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
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
		return nil, fmt.Errorf("fields can only be set in a JSON object, and this payload is not one: %w", err)
	}
	maps.Copy(fields, c)
	return json.Marshal(fields)
}

// deadLetterOf returns the oldest dead letter of an employee in any status. An entry's id can be given instead, for
// events without an employee; which id an event has depends on which of many was stored first.
func (sv *service) deadLetterOf(ctx context.Context, employee string) (*dlq.Entry, error) {
	if id, err := strconv.ParseInt(employee, 10, 64); err == nil {
		return sv.letters.Store().Get(ctx, id)
	}
	list, err := sv.letters.Store().List(ctx, dlq.Filter{SourceTable: "employees", SourceID: employee},
		dlq.Page{Limit: 1, Order: driver.OldestFirst})
	if err != nil {
		return nil, err
	}
	if len(list.Entries) == 0 {
		return nil, fmt.Errorf("%s has no dead letter", employee)
	}
	return sv.letters.Store().Get(ctx, list.Entries[0].ID) // with its payload
}

// fix corrects a dead letter and sends it back to its consumer, whose outcome closes the entry. The original is kept as
// an earlier revision.
func (sv *service) fix(ctx context.Context, employee string, c changes) error {
	entry, err := sv.deadLetterOf(ctx, employee)
	if err != nil {
		return err
	}
	corrected, err := c.apply(entry.Body.Payload)
	if err != nil {
		return fmt.Errorf("entry %d: %w", entry.ID, err)
	}
	sv.ledger.Expect(entry.Origin.Topic, entry.EventID)
	manager := sv.letters.Manager(sv.broker)
	_, err = manager.EditAndRedrive(ctx, entry.ID, dlq.Edit{Payload: corrected}, dlq.By{
		Actor: "employees example", Note: "corrected " + c.String(), Version: entry.Version,
	})
	return err
}
