package sqlstore

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
)

// Change does one action on some entries, in one transaction.
func (s *Store) Change(ctx context.Context, c driver.Change) ([]driver.Result, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("sqlstore: %w", err)
	}
	return writing(ctx, s, string(c.Action), func(tx *sql.Tx) ([]driver.Result, error) { return s.changeTx(ctx, tx, c) })
}

func (s *Store) changeTx(ctx context.Context, tx *sql.Tx, c driver.Change) ([]driver.Result, error) {
	rows, err := s.lockEntries(ctx, tx, c.IDs)
	if err != nil {
		return nil, err
	}
	all := changes{store: s, tx: tx}
	results := make([]driver.Result, len(c.IDs))
	for i, id := range c.IDs {
		before := rows[id]
		if before == nil {
			results[i] = driver.Result{ID: id, Err: fmt.Errorf("dlq: entry %d: %w", id, dlq.ErrNotFound)}
			continue
		}
		before = all.now(before) // should the id be named twice
		one := c.For(i)
		after, err := one.Apply(*before)
		results[i] = driver.Result{ID: id, Entry: after, Err: err}
		if err != nil {
			continue
		}
		all.change(before, &results[i].Entry)
		if c.Audited() {
			run := c.Run
			if c.Action == driver.ActionSucceed || c.Action == driver.ActionReleaseByHand {
				run = before.Run // the end of that run's redrive, from any reporter
			}
			all.audit = append(all.audit, driver.AuditRecord{
				At: c.At, Actor: c.Actor, Action: c.Action, Note: c.Note, EntryID: id, Run: run,
				From: before.Status, To: after.Status, Version: after.Version, Detail: c.Detail(),
			})
		}
	}
	return results, all.writeAll(ctx)
}
