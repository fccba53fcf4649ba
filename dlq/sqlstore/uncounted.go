package sqlstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/internal/sqldb"
)

// The statistics are a few rows that every writer changes, at the end of its transaction. An application's transaction
// may stay open for long after that, and all other dead letters would wait for it. So it leaves its counts in a
// separate row in dlq_uncounted, and readers of the statistics add it.

// storedDeltas are deltas as JSON.
type storedDeltas struct {
	Groups []*groupDelta `json:"groups"`
	Counts []*countDelta `json:"counts"`
	Hours  []*hourDelta  `json:"hours"`
}

func (d *deltas) store(ctx context.Context, s *Store, tx *sql.Tx) error {
	if len(d.groups) == 0 {
		return nil
	}
	data, err := json.Marshal(storedDeltas{
		slices.Collect(maps.Values(d.groups)), slices.Collect(maps.Values(d.counts)), slices.Collect(maps.Values(d.hours)),
	})
	if err != nil {
		return fmt.Errorf("uncounted: %w", err)
	}
	_, err = s.exec(ctx, tx, "INSERT INTO dlq_uncounted (deltas) VALUES (?)", string(data))
	return err
}

// merge adds stored deltas.
func (d *deltas) merge(stored *storedDeltas) {
	for _, g := range stored.Groups {
		d.addGroup(*g)
	}
	for _, c := range stored.Counts {
		d.addCount(*c)
	}
	for _, h := range stored.Hours {
		d.addHour(*h)
	}
}

// maxFold is how many rows of dlq_uncounted are counted in one transaction.
const maxFold = 1000

// fold counts what transactions of the application left uncounted. Usually there is nothing, which takes one look at an
// empty table.
func (s *Store) fold(ctx context.Context) error {
	for {
		var there bool
		if err := s.read.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM dlq_uncounted)").Scan(&there); err != nil ||
			!there {
			return err
		}
		err := s.inTx(ctx, "count", func(tx *sql.Tx) error {
			_, err := s.foldTx(ctx, tx)
			return err
		})
		if err != nil {
			return err
		}
	}
}

// foldTx is one transaction of fold, and reports whether there may be more to count.
func (s *Store) foldTx(ctx context.Context, tx *sql.Tx) (more bool, err error) {
	query := fmt.Sprintf("SELECT id, deltas FROM dlq_uncounted ORDER BY id LIMIT %d%s", maxFold, s.forUpdate())
	var all deltas
	ids, err := sqldb.All[int64](tx.QueryContext(ctx, query))(func(row sqldb.Row, id *int64) error {
		var data []byte
		if err := row.Scan(id, &data); err != nil {
			return err
		}
		var stored storedDeltas
		if err := json.Unmarshal(data, &stored); err != nil {
			return fmt.Errorf("uncounted %d: %w", *id, err)
		}
		all.merge(&stored)
		return nil
	})
	if err != nil {
		return false, err
	}
	for in, args := range s.dialect.idIn("id", ids) {
		if _, err := s.exec(ctx, tx, "DELETE FROM dlq_uncounted WHERE "+in, args...); err != nil {
			return false, err
		}
	}
	return len(ids) == maxFold, all.apply(ctx, s, tx)
}

// counterTables are locked in the order in which writers use them.
var counterTables = []string{"dlq_groups", "dlq_counts", "dlq_hours", "dlq_uncounted"}

// Recount recomputes the kept statistics from the entries. It reads all of them in one transaction, and allows no other
// change in the meantime.
func (s *Store) Recount(ctx context.Context) error {
	return s.inTx(ctx, "recount", func(tx *sql.Tx) error {
		// A writer changes the statistics last. If it has not yet, its entries are uncommitted, so they are not read below,
		// and it counts them when we are done.
		for _, query := range s.dialect.lockTables(counterTables) {
			if _, err := tx.ExecContext(ctx, query); err != nil {
				return fmt.Errorf("lock: %w", err)
			}
		}
		for more := true; more; { // deaths that no entry shows any longer
			var err error
			if more, err = s.foldTx(ctx, tx); err != nil {
				return err
			}
		}
		all, err := s.countEntries(ctx, tx)
		if err != nil {
			return err
		}
		for _, query := range []string{
			"DELETE FROM dlq_counts",
			"DELETE FROM dlq_hours WHERE died_again = 0",
			"UPDATE dlq_hours SET entries = 0, closed = 0",                            // entries only have their last death
			"UPDATE dlq_groups SET " + strings.Join(statusColumns, " = 0, ") + " = 0", // their first and last deaths are kept
		} {
			if _, err := tx.ExecContext(ctx, query); err != nil {
				return err
			}
		}
		return all.apply(ctx, s, tx)
	})
}

func (s *Store) countEntries(ctx context.Context, tx *sql.Tx) (*deltas, error) {
	all := &deltas{}
	return all, sqldb.Each(tx.QueryContext(ctx, "SELECT "+selectEntry+" FROM dlq_entries"))(func(row sqldb.Row) error {
		var e dlq.Entry
		if err := scanEntry(row, &e); err != nil {
			return err
		}
		all.add(&e)
		return nil
	})
}
