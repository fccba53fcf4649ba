package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"strconv"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
)

// Revise gives an entry a new revision of its body.
func (s *Store) Revise(ctx context.Context, r driver.Revision) (*dlq.Entry, error) {
	if err := r.Validate(); err != nil {
		return nil, fmt.Errorf("sqlstore: revise: %w", err)
	}
	return writing(ctx, s, "revise", func(tx *sql.Tx) (*dlq.Entry, error) {
		rows, err := s.lockEntries(ctx, tx, []int64{r.EntryID})
		if err != nil {
			return nil, err
		}
		before := rows[r.EntryID]
		if before == nil {
			return nil, fmt.Errorf("entry %d: %w", r.EntryID, dlq.ErrNotFound)
		}
		c := driver.Change{Action: driver.ActionEdit, Version: r.Version, Actor: r.Actor, Note: r.Note, At: r.At}
		after, err := c.Apply(*before)
		if err != nil {
			return nil, err
		}
		if err := s.addRevision(ctx, tx, &after, r.Body); err != nil {
			return nil, err
		}
		detail := map[string]string{"revision": strconv.Itoa(after.Revision)}
		maps.Copy(detail, r.Detail)
		all := changes{store: s, tx: tx, audit: []driver.AuditRecord{{
			At: r.At, Actor: r.Actor, Action: driver.ActionEdit, Note: r.Note, EntryID: r.EntryID,
			From: before.Status, To: after.Status, Version: after.Version, Detail: detail,
		}}}
		all.change(before, &after)
		return &after, all.writeAll(ctx)
	})
}

// addRevision stores a body as the latest revision, and makes it the entry's.
func (s *Store) addRevision(ctx context.Context, tx *sql.Tx, e *dlq.Entry, body *dlq.Body) error {
	var last int
	if err := s.queryRow(ctx, tx, "SELECT max(revision) FROM dlq_bodies WHERE entry_id = ?",
		e.ID).Scan(&last); err != nil {
		return err
	}
	e.Revision, e.Size = last+1, int64(len(body.Payload))
	revised := *body
	revised.Revision = e.Revision
	values, err := bodyValues(s.dialect, e.ID, &revised)
	if err != nil {
		return err
	}
	return s.insertBodies(ctx, tx, [][]any{values})
}
