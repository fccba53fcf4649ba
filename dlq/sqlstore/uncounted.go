package sqlstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/internal/sqldb"
)

// The statistics are a few rows that every writer changes, at the end of its transaction. An application's transaction
// may stay open for long after that, and all other dead letters would wait for it. So it leaves its counts in a
// separate row in dlq_uncounted, and readers of the statistics add it.

// storedDeltas are deltas as JSON.
type storedDeltas struct {
	Groups []storedGroup `json:"groups"`
	Counts []storedCount `json:"counts"`
	Hours  []storedHour  `json:"hours"`
}

type storedGroup struct {
	Fingerprint string        `json:"fingerprint"`
	Cause       string        `json:"cause"`
	Sample      string        `json:"sample"`
	ErrorClass  string        `json:"error_class"`
	Handler     string        `json:"handler"`
	LastEntry   int64         `json:"last_entry"`
	First       time.Time     `json:"first"`
	Last        time.Time     `json:"last"`
	Counts      driver.Counts `json:"counts"`
	Died        bool          `json:"died,omitzero"`
}

type storedCount struct {
	EventType    string        `json:"event_type"`
	Topic        string        `json:"topic"`
	Counts       driver.Counts `json:"counts"`
	ResolutionMS int64         `json:"resolution_ms"`
}

type storedHour struct {
	Hour        time.Time `json:"hour"`
	Fingerprint string    `json:"fingerprint"`
	Entries     int64     `json:"entries"`
	Closed      int64     `json:"closed,omitzero"`
	DiedAgain   int64     `json:"died_again,omitzero"`
}

func (d *deltas) store(ctx context.Context, s *Store, tx *sql.Tx) error {
	var stored storedDeltas
	for key, g := range d.groups {
		stored.Groups = append(stored.Groups, storedGroup{
			Fingerprint: key, Cause: g.entry.Cause, Sample: g.entry.ErrorMessage, ErrorClass: g.entry.ErrorClass,
			Handler: g.entry.Handler, LastEntry: g.entry.ID, First: g.first, Last: g.last, Counts: g.counts,
			Died: g.died,
		})
	}
	for key, c := range d.counts {
		stored.Counts = append(stored.Counts, storedCount{key.eventType, key.topic, c.counts, c.resolutionMS})
	}
	for key, n := range d.hours {
		stored.Hours = append(stored.Hours, storedHour{key.hour, key.fingerprint, n.entries, n.closed, n.diedAgain})
	}
	if len(stored.Groups) == 0 {
		return nil
	}
	data, err := json.Marshal(stored)
	if err != nil {
		return fmt.Errorf("uncounted: %w", err)
	}
	_, err = s.exec(ctx, tx, "INSERT INTO dlq_uncounted (deltas) VALUES (?)", string(data))
	return err
}

// merge adds stored deltas.
func (d *deltas) merge(stored *storedDeltas) {
	d.init()
	for _, g := range stored.Groups {
		entry := &dlq.Entry{
			ID: g.LastEntry, Cause: g.Cause, ErrorMessage: g.Sample, ErrorClass: g.ErrorClass, Handler: g.Handler,
		}
		there := d.groups[g.Fingerprint]
		if there == nil {
			d.groups[g.Fingerprint] = &groupDelta{entry: entry, first: g.First, last: g.Last, counts: g.Counts, died: g.Died}
			continue
		}
		if !g.Last.Before(there.last) {
			there.last, there.entry = g.Last, entry
		}
		if g.First.Before(there.first) {
			there.first = g.First
		}
		there.counts, there.died = there.counts.Plus(g.Counts), there.died || g.Died
	}
	for _, c := range stored.Counts {
		key := countKey{c.EventType, c.Topic}
		there := d.counts[key]
		if there == nil {
			there = &countDelta{}
			d.counts[key] = there
		}
		there.counts = there.counts.Plus(c.Counts)
		there.resolutionMS += c.ResolutionMS
	}
	for _, h := range stored.Hours {
		d.hour(h.Hour.UTC(), h.Fingerprint, hourDelta{h.Entries, h.Closed, h.DiedAgain})
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
	query := fmt.Sprintf("SELECT id, deltas FROM dlq_uncounted ORDER BY id LIMIT %d%s", maxFold, s.dialect.forUpdate())
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
