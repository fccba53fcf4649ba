package sqlstore

import (
	"context"
	"database/sql"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-go/redrive/dlq/redrive"
)

// SettleRun updates items to the outcomes of their entries.
func (s *Store) SettleRun(ctx context.Context, id, holder string, at time.Time, limit int) (*redrive.Run, int, error) {
	settled := 0
	run, err := writing(ctx, s, "settle run "+id, func(tx *sql.Tx) (*redrive.Run, error) {
		run, err := s.heldRun(ctx, tx, id, holder, at)
		if err != nil {
			return nil, err
		}
		settled, err = s.settle(ctx, tx, run, at, limit)
		return &run.Run, err
	})
	if err != nil {
		return nil, 0, err
	}
	return run, settled, nil
}

func (s *Store) settle(ctx context.Context, tx *sql.Tx, run *runRow, at time.Time, limit int) (int, error) {
	if run.Counts.Open() == 0 {
		return 0, nil
	}
	now := s.dialect.time(at)
	columns := "i." + strings.ReplaceAll(strings.TrimPrefix(strings.TrimSuffix(selectItem, " FROM dlq_run_items"),
		"SELECT "), ", ", ", i.")
	items, err := scanItems(s.query(ctx, tx,
		"SELECT "+columns+" FROM dlq_run_items i LEFT JOIN dlq_entries e ON e.id = i.entry_id"+
			" WHERE i.run_seq = ? AND i.state IN ('claimed', 'out') AND (e.id IS NULL OR e.status <> 'RETRYING' OR "+
			"e.retry_count <> i.redrive"+
			" OR e.lease_until <= ? OR i.claimed_until <= ?) ORDER BY i.entry_id LIMIT "+strconv.Itoa(limit), run.seq, now, now))
	if err != nil || len(items) == 0 {
		return 0, err
	}
	ids := make([]int64, len(items))
	for i := range items {
		ids[i] = items[i].EntryID
	}
	entries, err := s.lockEntries(ctx, tx, ids)
	if err != nil {
		return 0, err
	}
	p := &stepping{store: s, tx: tx, run: run, step: &redrive.Step{At: at}}
	settled := 0
	succeeded := map[redrive.ItemState][]int64{} // by the state before; the others have a detail each
	for _, item := range items {
		state, detail := item.Settle(entries[item.EntryID], at)
		if state == item.State {
			continue
		}
		settled++
		if state == redrive.ItemSucceeded {
			succeeded[item.State] = append(succeeded[item.State], item.EntryID)
			continue
		}
		if e := entries[item.EntryID]; e != nil && state == redrive.ItemWaiting {
			item.Version = e.Version
		}
		if err := p.setItem(ctx, item, state, detail); err != nil {
			return 0, err
		}
	}
	for from, ids := range succeeded {
		if err := p.moveItems(ctx, ids, from, redrive.ItemSucceeded); err != nil {
			return 0, err
		}
	}
	return settled, s.saveRun(ctx, tx, run)
}
