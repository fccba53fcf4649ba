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
	var counted deltas
	updates, audit := make([]changed, 0, len(c.IDs)), make([]driver.AuditRecord, 0, len(c.IDs))
	results := make([]driver.Result, len(c.IDs))
	for i, id := range c.IDs {
		before := rows[id]
		if before == nil {
			results[i] = driver.Result{ID: id, Err: fmt.Errorf("dlq: entry %d: %w", id, dlq.ErrNotFound)}
			continue
		}
		one := c.For(i)
		after, err := one.Apply(*before)
		results[i] = driver.Result{ID: id, Entry: after, Err: err}
		if err != nil {
			continue
		}
		now := &results[i].Entry
		updates = append(updates, changed{before, now})
		counted.change(before, now)
		rows[id] = now // should the id be named twice
		if c.Audited() {
			run := c.Run
			if c.Action == driver.ActionSucceed || c.Action == driver.ActionReleaseByHand {
				run = before.Run // the end of that run's redrive, from any reporter
			}
			audit = append(audit, driver.AuditRecord{
				At: c.At, Actor: c.Actor, Action: c.Action, Note: c.Note, EntryID: id, Run: run,
				From: before.Status, To: after.Status, Version: after.Version, Detail: c.Detail(),
			})
		}
	}
	if err := s.updateEntries(ctx, tx, updates); err != nil {
		return nil, err
	}
	if err := s.insertAudit(ctx, tx, audit); err != nil {
		return nil, err
	}
	return results, counted.apply(ctx, s, tx)
}
