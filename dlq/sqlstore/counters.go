package sqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
)

// deltas collects what a transaction changes in the kept statistics. They are written once at its end, in the order of
// their keys: every writer needs these few rows, so they are locked briefly, and always in the same order.
type deltas struct {
	groups map[string]*groupDelta
	counts map[countKey]*countDelta
	hours  map[hourKey]hourDelta
}

type groupDelta struct {
	entry       *dlq.Entry // for the texts of a new group
	first, last time.Time
	counts      driver.Counts
	died        bool // an entry of it died again, perhaps without a change of state
}

type countKey struct{ eventType, topic string }

type countDelta struct {
	counts       driver.Counts
	resolutionMS int64
}

// hourDelta counts the entries stored, closed and dead again in an hour.
type hourDelta struct{ entries, closed, diedAgain int64 }

type hourKey struct {
	hour        time.Time
	fingerprint string
}

// add counts a stored entry.
func (d *deltas) add(e *dlq.Entry) { d.count(e, 1) }

// remove counts a removed entry.
func (d *deltas) remove(e *dlq.Entry) { d.count(e, -1) }

// change counts an entry that changed.
func (d *deltas) change(before, after *dlq.Entry) {
	d.remove(before)
	d.add(after)
	if g := d.groups[after.Fingerprint]; !after.DiedAt.Equal(before.DiedAt) {
		g.died = true
	}
}

func (d *deltas) init() {
	if d.groups == nil {
		d.groups, d.counts, d.hours = map[string]*groupDelta{}, map[countKey]*countDelta{}, map[hourKey]hourDelta{}
	}
}

func (d *deltas) count(e *dlq.Entry, n int64) {
	d.init()
	g := d.groups[e.Fingerprint]
	if g == nil {
		// For an entry that died more than once, only the last death is known to have this cause.
		g = &groupDelta{entry: e, first: e.DiedAt, last: e.DiedAt}
		d.groups[e.Fingerprint] = g
	}
	if !e.DiedAt.Before(g.last) {
		g.last, g.entry = e.DiedAt, e
	}
	if e.DiedAt.Before(g.first) {
		g.first = e.DiedAt
	}
	g.counts.Add(e.Status, n)

	key := countKey{e.EventType, e.Origin.Topic}
	c := d.counts[key]
	if c == nil {
		c = &countDelta{}
		d.counts[key] = c
	}
	c.counts.Add(e.Status, n)
	if e.Status == dlq.Resolved {
		c.resolutionMS += n * e.ResolvedAt.Sub(e.CreatedAt).Milliseconds()
	}
	d.hour(e.CreatedAt, e.Fingerprint, hourDelta{entries: n})
	if !e.ResolvedAt.IsZero() {
		d.hour(e.ResolvedAt, e.Fingerprint, hourDelta{closed: n})
	}
}

// diedAgain counts another death of an entry, which no later change of the entry undoes.
func (d *deltas) diedAgain(e *dlq.Entry) {
	d.init()
	d.hour(e.DiedAt, e.Fingerprint, hourDelta{diedAgain: 1})
}

func (d *deltas) hour(at time.Time, fingerprint string, n hourDelta) {
	key := hourKey{hourOf(at), fingerprint}
	there := d.hours[key]
	d.hours[key] = hourDelta{there.entries + n.entries, there.closed + n.closed, there.diedAgain + n.diedAgain}
}

// hourOf is the hour in which a time is counted.
func hourOf(at time.Time) time.Time { return at.Truncate(time.Hour) }

var statusColumns = []string{"pending", "retrying", "parked", "resolved", "discarded"}

func statusValues(c driver.Counts) []any {
	return []any{c.Pending, c.Retrying, c.Parked, c.Resolved, c.Discarded}
}

// apply writes the deltas: one statement per table, or a few for many deltas.
func (d *deltas) apply(ctx context.Context, s *Store, tx *sql.Tx) error {
	for _, write := range []counterWrite{d.groupWrite(s.dialect), d.countWrite(), d.hourWrite(s.dialect)} {
		if err := write.run(ctx, s, tx); err != nil {
			return err
		}
	}
	return nil
}

// counterWrite is an upsert into one of the tables of statistics.
type counterWrite struct {
	upsertion

	rows [][]any
}

func (w *counterWrite) run(ctx context.Context, s *Store, tx *sql.Tx) error {
	for chunk := range slices.Chunk(w.rows, maxRows) {
		query := s.dialect.upsert(&w.upsertion, len(chunk))
		if _, err := s.exec(ctx, tx, query, slices.Concat(chunk...)...); err != nil {
			return fmt.Errorf("%s: %w", w.table, err)
		}
	}
	return nil
}

func (d *deltas) groupWrite(dialect dialect) counterWrite {
	w := counterWrite{upsertion: upsertion{
		table: "dlq_groups", key: []string{"fingerprint"}, add: statusColumns, earliest: []string{"first_seen"},
		latest: []string{"last_seen", "last_entry_id"},
		columns: slices.Concat([]string{"fingerprint", "cause", "sample", "error_class", "handler"}, statusColumns,
			[]string{"first_seen", "last_seen", "last_entry_id"}),
	}}
	for _, key := range sortedKeys(d.groups, cmp.Compare[string]) {
		if g := d.groups[key]; g.counts != (driver.Counts{}) || g.died {
			w.rows = append(w.rows, slices.Concat(
				[]any{key, g.entry.Cause, g.entry.ErrorMessage, g.entry.ErrorClass, g.entry.Handler},
				statusValues(g.counts), []any{dialect.time(g.first), dialect.time(g.last), g.entry.ID}))
		}
	}
	return w
}

func (d *deltas) countWrite() counterWrite {
	w := counterWrite{upsertion: upsertion{
		table: "dlq_counts", key: []string{"event_type", "topic"},
		add: slices.Concat(statusColumns, []string{"resolution_ms"}),
	}}
	w.columns = slices.Concat(w.key, w.add)
	for _, key := range sortedKeys(d.counts, compareCounts) {
		if c := d.counts[key]; *c != (countDelta{}) {
			w.rows = append(w.rows, slices.Concat([]any{key.eventType, key.topic}, statusValues(c.counts),
				[]any{c.resolutionMS}))
		}
	}
	return w
}

func (d *deltas) hourWrite(dialect dialect) counterWrite {
	w := counterWrite{upsertion: upsertion{
		table: "dlq_hours", key: []string{"hour", "fingerprint"}, add: []string{"entries", "closed", "died_again"},
	}}
	w.columns = slices.Concat(w.key, w.add)
	for _, key := range sortedKeys(d.hours, compareHours) {
		if n := d.hours[key]; n != (hourDelta{}) {
			w.rows = append(w.rows, []any{dialect.time(key.hour), key.fingerprint, n.entries, n.closed, n.diedAgain})
		}
	}
	return w
}

func compareCounts(a, b countKey) int {
	return cmp.Or(cmp.Compare(a.eventType, b.eventType), cmp.Compare(a.topic, b.topic))
}

func compareHours(a, b hourKey) int {
	return cmp.Or(a.hour.Compare(b.hour), cmp.Compare(a.fingerprint, b.fingerprint))
}

func sortedKeys[K comparable, V any](m map[K]V, order func(a, b K) int) []K {
	keys := make([]K, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, order)
	return keys
}
