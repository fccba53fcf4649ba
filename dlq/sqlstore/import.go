package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
)

// Import stores exported entries whose key does not exist, in one transaction.
func (s *Store) Import(ctx context.Context, by dlq.By, at time.Time, letters ...driver.Exported) ([]driver.Receipt,
	error,
) {
	entries := make([]*dlq.Entry, len(letters))
	for i := range letters {
		e := letters[i].Entry
		e.ID, e.RedriveOf = 0, 0
		for n := range letters[i].Bodies {
			if letters[i].Bodies[n].Revision == e.Revision {
				e.Body = &letters[i].Bodies[n]
			}
		}
		entries[i] = &e
	}
	if err := checkLetters(entries); err != nil {
		return nil, err
	}
	if by.Actor == "" || at.IsZero() {
		return nil, fmt.Errorf("sqlstore: import: %w: without an actor or a time", dlq.ErrInvalid)
	}
	rows, err := s.makeRows(entries)
	if err != nil {
		return nil, fmt.Errorf("sqlstore: import: %w", err)
	}
	return writing(ctx, s, "import", func(tx *sql.Tx) ([]driver.Receipt, error) {
		p := &putting{changes: changes{store: s, tx: tx}, receipts: make([]driver.Receipt, len(rows))}
		if err := p.insertImported(ctx, rows, letters, by, at); err != nil {
			return nil, err
		}
		return p.receipts, p.writeAll(ctx)
	})
}

// insertImported stores the entries that do not exist. Existing ones were imported before, or died here: they are not
// changed. Archived ones exist too: they were closed here, and the export may have an older state.
func (p *putting) insertImported(ctx context.Context, rows []letterRow, letters []driver.Exported, by dlq.By,
	at time.Time,
) error {
	var fresh []int
	first, again := map[driver.Key]int{}, map[int]int{} // exports that were joined may have an entry twice
	table, column := p.store.dialect.keys()
	query := "SELECT " + column + " FROM " + table + " WHERE dedup_key = ? UNION ALL SELECT id FROM " +
		p.store.dialect.archive() + " WHERE event_id = ? AND dedup_key = ? LIMIT 1" // the archive's index is on event_id
	for i := range rows {
		key := rows[i].Key
		var id int64
		err := p.store.queryRow(ctx, p.tx, query, key[:], rows[i].EventID, key[:]).Scan(&id)
		before, twice := first[key]
		switch {
		case err == nil:
			p.receipts[i] = driver.Receipt{ID: id, Result: driver.Seen}
		case !errors.Is(err, sql.ErrNoRows):
			return err
		case twice:
			again[i] = before
		default:
			fresh = append(fresh, i)
			first[key] = i
		}
	}
	if err := p.insert(ctx, rows, fresh); err != nil {
		return err
	}
	for i, before := range again {
		p.receipts[i] = driver.Receipt{ID: p.receipts[before].ID, Result: driver.Seen}
	}
	for _, i := range fresh {
		id := p.receipts[i].ID
		for n := range letters[i].Bodies {
			body := &letters[i].Bodies[n]
			if body.Revision == rows[i].Revision {
				continue
			}
			values, err := bodyValues(p.store.dialect, id, body)
			if err != nil {
				return err
			}
			if err := p.store.insertBodies(ctx, p.tx, [][]any{values}); err != nil {
				return err
			}
		}
		p.audit = append(p.audit, driver.AuditRecord{
			At: at, Actor: by.Actor, Action: driver.ActionImport, Note: by.Note, EntryID: id,
			To: rows[i].Status, Version: rows[i].Version,
		})
	}
	return nil
}
