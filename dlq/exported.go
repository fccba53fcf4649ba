package dlq

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/wire"
)

// exportedOf converts a line of an export to its entry with bodies. Missing fields are derived from the others.
func exportedOf(l *wire.Letter) (*driver.Exported, error) {
	x := &driver.Exported{}
	e := &x.Entry
	e.SetWire(&l.Entry)
	current := false
	for i := range l.Bodies {
		var body Body
		if err := body.SetWire(&l.Bodies[i]); err != nil {
			return nil, err
		}
		if body.SHA256 != digest(body.Payload) {
			return nil, fmt.Errorf("%w: revision %d is damaged: its payload does not match its SHA-256", ErrInvalid,
				body.Revision)
		}
		if body.Revision == e.Revision {
			current = true
			e.Size = int64(len(body.Payload))
		}
		x.Bodies = append(x.Bodies, body)
	}
	switch {
	case !current:
		return nil, fmt.Errorf("%w: the body of revision %d is missing", ErrInvalid, e.Revision)
	case len(l.Entry.Key) != 0 && len(l.Entry.Key) != len(e.Key):
		return nil, fmt.Errorf("%w: the key has %d bytes, and must have %d", ErrInvalid, len(l.Entry.Key), len(e.Key))
	case e.CreatedAt.IsZero():
		return nil, fmt.Errorf("%w: created_at is missing", ErrInvalid)
	case !e.Status.Valid():
		return nil, fmt.Errorf("%w: status %.40q is missing or unknown", ErrInvalid, e.Status)
	case e.Attempts < 0 || e.RedriveCount < 0 || e.RedriveBudget < 0 || e.DeathRedrive < 0 || e.Version < 0:
		return nil, fmt.Errorf("%w: attempts, redrive_count, redrive_budget, death_redrive and version must not be negative",
			ErrInvalid)
	}
	if e.Key == (driver.Key{}) {
		e.Key = keyOf(&e.Origin, e.Handler, e.EventID, x.Bodies[0].Payload, 0)
	}
	completeExported(e)
	return x, nil
}

// completeExported fills in fields that a line of another program may lack.
func completeExported(e *Entry) {
	e.Cause = Normalize(e.ErrorMessage)
	if e.Fingerprint == "" {
		e.Fingerprint = Fingerprint(e.Handler, e.ErrorClass, e.ErrorCode, e.ErrorMessage)
	}
	if e.DiedAt.IsZero() {
		e.DiedAt = e.CreatedAt
	}
	if e.FirstFailureAt.IsZero() {
		e.FirstFailureAt = e.CreatedAt
	}
	if e.LastSeenAt.IsZero() {
		e.LastSeenAt = e.DiedAt
	}
	if e.ChangedAt.IsZero() {
		e.ChangedAt = e.DiedAt
		if e.ResolvedAt.After(e.ChangedAt) {
			e.ChangedAt = e.ResolvedAt
		}
	}
	if e.ChangedBy == "" {
		e.ChangedBy = e.DiedBy()
		if e.ResolvedBy != "" {
			e.ChangedBy = e.ResolvedBy
		}
	}
	e.SeenCount, e.Version = max(e.SeenCount, 1), max(e.Version, 1)
}

func readLine(data []byte) (*driver.Exported, error) {
	if isTableRow(data) {
		return readTableRow(data)
	}
	var line wire.Letter
	if err := json.Unmarshal(data, &line); err != nil {
		if unknown, ok := errors.AsType[*wire.VersionError](err); ok {
			return nil, fmt.Errorf("%w: the export format: %w", ErrInvalid, unknown)
		}
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if line.Redacted {
		return nil, fmt.Errorf("%w: this export was made for a role that may not see everything, without the hidden values: "+
			"export again with a role that may", ErrInvalid)
	}
	return exportedOf(&line)
}
