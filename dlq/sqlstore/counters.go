package sqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/internal/sqldb"
)

// deltas collects what a transaction changes in the statistics. Every writer needs these few rows, so they are written
// at the end of the transaction, in the order of their keys: they are locked briefly, and always in the same order.
type deltas struct {
	groups map[string]*groupDelta
	counts map[countKey]*countDelta
	hours  map[hourKey]*hourDelta
}

// groupDelta is what changes in a group. The texts, which a new group gets, are those of its last entry.
type groupDelta struct {
	Fingerprint string        `json:"fingerprint"`
	Cause       string        `json:"cause"`
	Sample      string        `json:"sample"`
	ErrorClass  string        `json:"error_class"`
	Handler     string        `json:"handler"`
	LastEntry   int64         `json:"last_entry"`
	First       time.Time     `json:"first"`
	Last        time.Time     `json:"last"`
	Counts      driver.Counts `json:"counts"`
	Died        bool          `json:"died,omitzero"` // an entry of it died again, perhaps without a change of state
}

type countKey struct {
	EventType string `json:"event_type"`
	Topic     string `json:"topic"`
}

type countDelta struct {
	countKey

	Counts       driver.Counts `json:"counts"`
	ResolutionMS int64         `json:"resolution_ms"`
}

type hourKey struct {
	Hour        time.Time `json:"hour"`
	Fingerprint string    `json:"fingerprint"`
}

// hourDelta counts the entries stored, closed and dead again in an hour.
type hourDelta struct {
	hourKey

	Entries   int64 `json:"entries"`
	Closed    int64 `json:"closed,omitzero"`
	DiedAgain int64 `json:"died_again,omitzero"`
}

func (d *deltas) add(e *dlq.Entry) { d.count(e, 1) }

func (d *deltas) remove(e *dlq.Entry) { d.count(e, -1) }

func (d *deltas) change(before, after *dlq.Entry) {
	d.remove(before)
	d.add(after)
	if !after.DiedAt.Equal(before.DiedAt) {
		d.groups[after.Fingerprint].Died = true
	}
}

func (d *deltas) count(e *dlq.Entry, n int64) {
	var counts driver.Counts
	counts.Add(e.Status, n)
	// For an entry that died more than once, only the last death is known to have this cause.
	d.addGroup(groupDelta{
		Fingerprint: e.Fingerprint, Cause: e.Cause, Sample: e.ErrorMessage, ErrorClass: e.ErrorClass, Handler: e.Handler,
		LastEntry: e.ID, First: e.DiedAt, Last: e.DiedAt, Counts: counts,
	})
	c := countDelta{countKey: countKey{e.EventType, e.Origin.Topic}, Counts: counts}
	if e.Status == dlq.Resolved && !e.ResolvedAt.IsZero() { // it is, after a change by hand
		c.ResolutionMS = n * e.ResolvedAt.Sub(e.CreatedAt).Milliseconds()
	}
	d.addCount(c)
	d.addHour(hourDelta{hourKey: hourKey{e.CreatedAt, e.Fingerprint}, Entries: n})
	if !e.ResolvedAt.IsZero() {
		d.addHour(hourDelta{hourKey: hourKey{e.ResolvedAt, e.Fingerprint}, Closed: n})
	}
}

func (d *deltas) addGroup(n groupDelta) {
	g := at(&d.groups, n.Fingerprint, groupDelta{First: n.First})
	was := *g
	if !n.Last.Before(was.Last) {
		*g = n
	}
	if g.First = was.First; n.First.Before(was.First) {
		g.First = n.First
	}
	g.Counts, g.Died = was.Counts.Plus(n.Counts), was.Died || n.Died
}

func (d *deltas) addCount(n countDelta) {
	c := at(&d.counts, n.countKey, countDelta{countKey: n.countKey})
	c.Counts, c.ResolutionMS = c.Counts.Plus(n.Counts), c.ResolutionMS+n.ResolutionMS
}

func (d *deltas) addHour(n hourDelta) {
	n.Hour = hourOf(n.Hour)
	h := at(&d.hours, n.hourKey, hourDelta{hourKey: n.hourKey})
	h.Entries, h.Closed, h.DiedAgain = h.Entries+n.Entries, h.Closed+n.Closed, h.DiedAgain+n.DiedAgain
}

// at returns the value of a key, initially fresh.
func at[K comparable, V any](m *map[K]*V, key K, fresh V) *V {
	if *m == nil {
		*m = map[K]*V{}
	}
	if (*m)[key] == nil {
		(*m)[key] = &fresh
	}
	return (*m)[key]
}

// hourOf is the hour in which a time is counted.
func hourOf(at time.Time) time.Time { return at.UTC().Truncate(time.Hour) }

var statusColumns = []string{"pending", "retrying", "parked", "resolved", "discarded"}

var groupColumns = slices.Concat([]string{"fingerprint", "cause", "sample", "error_class", "handler"}, statusColumns,
	[]string{"first_seen", "last_seen", "last_entry_id"})

func statusValues(c driver.Counts) []any {
	return []any{c.Pending, c.Retrying, c.Parked, c.Resolved, c.Discarded}
}

// apply writes the deltas: one statement per table, or a few for many deltas.
func (d *deltas) apply(ctx context.Context, s *Store, tx *sql.Tx) error {
	for _, w := range d.writes(s.dialect) {
		for chunk := range slices.Chunk(w.rows, maxRows) {
			if _, err := s.exec(ctx, tx, w.sql(s.dialect.name(), len(chunk)), slices.Concat(chunk...)...); err != nil {
				return fmt.Errorf("%s: %w", w.table, err)
			}
		}
	}
	return nil
}

// counterWrite is an upsert into one of the tables of statistics.
type counterWrite struct {
	upsertion

	rows [][]any
}

func (d *deltas) writes(dialect dialect) []counterWrite {
	groups := counterWrite{upsertion: upsertion{
		table: "dlq_groups", key: []string{"fingerprint"}, add: statusColumns, earliest: []string{"first_seen"},
		latest:  []string{"last_seen", "last_entry_id"},
		columns: groupColumns,
	}}
	for _, key := range sortedKeys(d.groups, cmp.Compare[string]) {
		if g := d.groups[key]; g.Counts != (driver.Counts{}) || g.Died {
			groups.rows = append(groups.rows, slices.Concat([]any{key, g.Cause, g.Sample, g.ErrorClass, g.Handler},
				statusValues(g.Counts), []any{dialect.time(g.First), dialect.time(g.Last), g.LastEntry}))
		}
	}
	counts := counterWrite{upsertion: upsertion{
		table: "dlq_counts", key: []string{"event_type", "topic"}, add: append(slices.Clip(statusColumns), "resolution_ms"),
	}}
	counts.columns = slices.Concat(counts.key, counts.add)
	for _, key := range sortedKeys(d.counts, compareCounts) {
		if c := d.counts[key]; *c != (countDelta{countKey: key}) {
			counts.rows = append(counts.rows, slices.Concat([]any{key.EventType, key.Topic}, statusValues(c.Counts),
				[]any{c.ResolutionMS}))
		}
	}
	hours := counterWrite{upsertion: upsertion{
		table: "dlq_hours", key: []string{"hour", "fingerprint"}, add: []string{"entries", "closed", "died_again"},
	}}
	hours.columns = slices.Concat(hours.key, hours.add)
	for _, key := range sortedKeys(d.hours, compareHours) {
		if n := d.hours[key]; *n != (hourDelta{hourKey: key}) {
			hours.rows = append(hours.rows, []any{dialect.time(key.Hour), key.Fingerprint, n.Entries, n.Closed, n.DiedAgain})
		}
	}
	return []counterWrite{groups, counts, hours}
}

func compareCounts(a, b countKey) int {
	return cmp.Or(cmp.Compare(a.EventType, b.EventType), cmp.Compare(a.Topic, b.Topic))
}

func compareHours(a, b hourKey) int {
	return cmp.Or(a.Hour.Compare(b.Hour), cmp.Compare(a.Fingerprint, b.Fingerprint))
}

func sortedKeys[K comparable, V any](m map[K]V, order func(a, b K) int) []K {
	return slices.SortedFunc(maps.Keys(m), order)
}

// An application's transaction (PutTx) may stay open for a long time. If it had locked the statistics, all other dead
// letters would wait for it. So it leaves its deltas in a separate row of dlq_uncounted, and the next reader of the
// statistics counts them.

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

// fold counts what transactions of the application have left uncounted. Usually that is one look at an empty table.
func (s *Store) fold(ctx context.Context) error {
	ids, err := sqldb.Column[int64](s.read.QueryContext(ctx, selectUncounted))
	for chunk := range slices.Chunk(ids, maxFold) {
		if err == nil {
			err = s.inTx(ctx, "count", func(tx *sql.Tx) error { return s.foldTx(ctx, tx, chunk) })
		}
	}
	return err
}

// selectUncounted finds what is committed. To lock all of the table would wait for the transactions of the application,
// because InnoDB's locking reads do not pass by their rows.
const selectUncounted = "SELECT id FROM dlq_uncounted ORDER BY id"

// foldTx counts those of the rows that no other transaction has counted meanwhile.
func (s *Store) foldTx(ctx context.Context, tx *sql.Tx, ids []int64) error {
	var all deltas
	size := maxFold
	if s.dialect.name() == sqldb.MySQL {
		size = 1 // to find several in a small table, InnoDB scans all of it, and waits for each row that it passes
	}
	for some := range slices.Chunk(ids, size) {
		if err := s.foldRows(ctx, tx, &all, some); err != nil {
			return err
		}
	}
	return all.apply(ctx, s, tx)
}

func (s *Store) foldRows(ctx context.Context, tx *sql.Tx, all *deltas, ids []int64) error {
	for in, args := range s.dialect.idIn("id", ids) {
		in = " FROM dlq_uncounted WHERE " + in
		query := "SELECT deltas" + in + " ORDER BY id" + s.forUpdate()
		err := sqldb.Each(s.query(ctx, tx, query, args...))(func(row sqldb.Row) error {
			var data []byte
			if err := row.Scan(&data); err != nil {
				return err
			}
			var stored storedDeltas
			if err := json.Unmarshal(data, &stored); err != nil {
				return fmt.Errorf("uncounted: %w", err)
			}
			all.merge(&stored)
			return nil
		})
		if err == nil {
			_, err = s.exec(ctx, tx, "DELETE"+in, args...)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// counterTables are locked in the order in which writers use them.
var counterTables = []string{"dlq_groups", "dlq_counts", "dlq_hours", "dlq_uncounted"}

// Recount recomputes the kept statistics from the entries. It reads all of them in one transaction, and allows no other
// change in the meantime.
func (s *Store) Recount(ctx context.Context) error {
	return s.inTx(ctx, "recount", func(tx *sql.Tx) error {
		// A writer changes the statistics last. If it has not yet, its entries are uncommitted, so they are not read below,
		// and it counts them when we are done.
		if err := execAll(ctx, tx, s.dialect.lockTables(counterTables)); err != nil {
			return fmt.Errorf("lock: %w", err)
		}
		ids, err := sqldb.Column[int64](tx.QueryContext(ctx, selectUncounted))
		if err == nil {
			err = s.foldTx(ctx, tx, ids) // deaths that no entry shows any longer
		}
		if err != nil {
			return err
		}
		all, err := s.countEntries(ctx, tx)
		if err != nil {
			return err
		}
		err = execAll(ctx, tx, []string{
			"DELETE FROM dlq_counts",
			"DELETE FROM dlq_hours WHERE died_again = 0",
			"UPDATE dlq_hours SET entries = 0, closed = 0",                            // entries only have their last death
			"UPDATE dlq_groups SET " + strings.Join(statusColumns, " = 0, ") + " = 0", // their first and last deaths are kept
		})
		if err != nil {
			return err
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
