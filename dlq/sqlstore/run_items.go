package sqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/internal/sqldb"
)

var (
	itemColumns = []string{
		"entry_id", "state", "version", "revision", "redrive", "claimed_until", "settled_at", "detail",
	}
	selectItem = "SELECT " + strings.Join(itemColumns, ", ") + " FROM dlq_run_items"
)

// FreezeRun makes items of the next entries that the run's filter selects.
func (s *Store) FreezeRun(ctx context.Context, id, holder string, at time.Time, limit int) (*redrive.Run, error) {
	return writing(ctx, s, "freeze run "+id, func(tx *sql.Tx) (*redrive.Run, error) {
		run, err := s.heldRun(ctx, tx, id, holder, at)
		if err != nil {
			return nil, err
		}
		return &run.Run, s.freeze(ctx, tx, run, limit)
	})
}

func (s *Store) freeze(ctx context.Context, tx *sql.Tx, run *runRow, limit int) error {
	f, last := run.Spec.Filter, run.FreezeTo
	if f.ErrorText != "" || f.ReadsBodies() {
		// Not further than limit entries: a transaction that reads all of a large file keeps its other writers waiting.
		err := s.queryRow(ctx, tx, "SELECT coalesce(max(id), ?) FROM (SELECT id FROM dlq_entries WHERE id > ? AND id <= ?"+
			" ORDER BY id LIMIT ?) few", last, run.FrozenTo, last, limit).Scan(&last)
		if err != nil {
			return err
		}
	}
	if f.IDs != nil { // the parameters of a statement are limited
		ids := slices.Compact(slices.Sorted(slices.Values(f.IDs)))
		first, found := slices.BinarySearch(ids, run.FrozenTo)
		if found {
			first++
		}
		f.IDs = append([]int64{}, ids[first:min(len(ids), first+limit)]...) // never nil, which would select everything
		if first+len(f.IDs) < len(ids) {
			last = f.IDs[len(f.IDs)-1]
		}
	}
	if most := run.Spec.Limit; most > 0 {
		limit = int(min(int64(limit), most-run.Counts.Total()))
	}
	if limit <= 0 || run.FrozenTo >= run.FreezeTo {
		run.FrozenTo = run.FreezeTo
		return s.saveRun(ctx, tx, run)
	}
	b := s.selectFrom("dlq_entries", strconv.FormatInt(run.seq, 10), "id", "'waiting'", "version", "revision")
	s.where(b, &f)
	b.Where(b.GT("id", run.FrozenTo), b.LE("id", last)).OrderBy("id").Limit(limit)
	query, args := b.Build()
	query = "INSERT INTO dlq_run_items (run_seq, entry_id, state, version, revision) " + query
	added, err := sqldb.Changed(tx.ExecContext(ctx, query, args...))
	if err != nil {
		return err
	}
	run.Counts.Waiting += added
	run.FrozenTo = last
	if added == int64(limit) {
		if err := s.queryRow(ctx, tx, "SELECT max(entry_id) FROM dlq_run_items WHERE run_seq = ?",
			run.seq).Scan(&run.FrozenTo); err != nil {
			return err
		}
	}
	return s.saveRun(ctx, tx, run)
}

// RunItems returns a page of a run's items.
func (s *Store) RunItems(ctx context.Context, id string, f redrive.ItemFilter) ([]redrive.Item, error) {
	f.Limit = cmp.Or(f.Limit, 50)
	switch {
	case f.Limit < 1 || f.Limit > driver.MaxPage:
		return nil, fmt.Errorf("sqlstore: run items: %w: limit %d: from 1 to %d", dlq.ErrInvalid, f.Limit, driver.MaxPage)
	case f.State != "" && !slices.Contains(redrive.ItemStates(), f.State):
		return nil, fmt.Errorf("sqlstore: run items: %w: unknown state %q: one of %v", dlq.ErrInvalid, f.State,
			redrive.ItemStates())
	default:
		return reading(s, "items of run "+id, func() ([]redrive.Item, error) { return s.readItems(ctx, id, f) })
	}
}

func (s *Store) readItems(ctx context.Context, id string, f redrive.ItemFilter) ([]redrive.Item, error) {
	run, err := s.readRun(ctx, id)
	if err != nil {
		return nil, err
	}
	query, args := selectItem+" WHERE run_seq = ?", []any{run.seq}
	if f.State != "" {
		query, args = query+" AND state = ?", append(args, string(f.State))
	}
	query += " AND entry_id > ? ORDER BY entry_id LIMIT " + strconv.Itoa(f.Limit)
	return scanItems(s.rows(ctx, query, append(args, f.After)...))
}

func scanItems(rows *sql.Rows, err error) ([]redrive.Item, error) {
	return sqldb.All[redrive.Item](rows, err)(func(row sqldb.Row, i *redrive.Item) error {
		return row.Scan(&i.EntryID, &i.State, &i.Version, &i.Revision, &i.Redrive, timeValue{&i.ClaimedUntil},
			timeValue{&i.SettledAt}, textValue{&i.Detail})
	})
}

// NextItems returns waiting items with their entries and bodies.
func (s *Store) NextItems(ctx context.Context, id string, after int64, limit int, bytes int64) ([]redrive.Item, error) {
	return reading(s, "next items of run "+id, func() ([]redrive.Item, error) {
		items, err := s.readItems(ctx, id, redrive.ItemFilter{State: redrive.ItemWaiting, After: after, Limit: limit})
		if err == nil {
			err = s.readEntries(ctx, items)
		}
		var size int64
		for i := range items {
			if items[i].Entry != nil {
				size += items[i].Entry.Size
			}
			if size > bytes && i > 0 {
				items = items[:i]
				break
			}
		}
		if err == nil {
			err = s.readBodies(ctx, items)
		}
		return items, err
	})
}

func (s *Store) readEntries(ctx context.Context, items []redrive.Item) error {
	at := make(map[int64]*redrive.Item, len(items))
	for i := range items {
		at[items[i].EntryID] = &items[i]
	}
	for in, args := range s.dialect.idIn("id", itemIDs(items)) {
		entries, err := scanEntries(
			s.rows(ctx, "SELECT "+selectEntry+" FROM dlq_entries WHERE "+in, args...))
		if err != nil {
			return err
		}
		for i := range entries {
			at[entries[i].ID].Entry = &entries[i]
		}
	}
	return nil
}

// readBodies reads the bodies of the entries' revisions. An entry that was purged in the meantime has none: its claim
// will fail.
func (s *Store) readBodies(ctx context.Context, items []redrive.Item) error {
	byID := make(map[int64]*dlq.Entry, len(items))
	for i := range items {
		if items[i].Entry != nil {
			byID[items[i].EntryID] = items[i].Entry
		}
	}
	for in, args := range s.dialect.idIn("entry_id", itemIDs(items)) {
		err := sqldb.Each(s.rows(ctx, selectBody+" WHERE "+in, args...))(func(row sqldb.Row) error {
			var id int64
			b, err := scanBody(row, &id)
			if e := byID[id]; err == nil && e != nil && e.Revision == b.Revision {
				e.Body = b
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	for id, e := range byID {
		if e.Body != nil && s.hasParts(e.Body.Payload) {
			if err := s.readParts(ctx, id, e.Body); err != nil {
				return err
			}
		}
	}
	return nil
}

func itemIDs(items []redrive.Item) []int64 {
	return sqldb.Map(items, func(i *redrive.Item) int64 { return i.EntryID })
}

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
	items, err := scanItems(s.query(ctx, tx, "SELECT i."+strings.Join(itemColumns, ", i.")+
		" FROM dlq_run_items i LEFT JOIN dlq_entries e ON e.id = i.entry_id"+
		" WHERE i.run_seq = ? AND i.state IN ('claimed', 'out') AND (e.id IS NULL OR e.status <> 'RETRYING'"+
		" OR e.retry_count <> i.redrive OR e.lease_until <= ? OR i.claimed_until <= ?)"+
		" ORDER BY i.entry_id LIMIT "+strconv.Itoa(limit), run.seq, now, now))
	if err != nil || len(items) == 0 {
		return 0, err
	}
	entries, err := s.lockEntries(ctx, tx, itemIDs(items))
	if err != nil {
		return 0, err
	}
	p := &stepping{changes: changes{store: s, tx: tx}, run: run, step: &redrive.Step{At: at, Actor: "redrive"}}
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
	if run.State.Ended() {
		if err := p.unclaimAll(ctx); err != nil {
			return 0, err
		}
	}
	return settled, s.saveRun(ctx, tx, run)
}

// unclaimAll releases the entries that wait in a run which has ended.
func (p *stepping) unclaimAll(ctx context.Context) error {
	items, err := scanItems(p.store.query(ctx, p.tx,
		selectItem+" WHERE run_seq = ? AND state = 'waiting' AND redrive > 0", p.run.seq))
	if err != nil || len(items) == 0 {
		return err
	}
	entries, err := p.store.lockEntries(ctx, p.tx, itemIDs(items))
	if err != nil {
		return err
	}
	for _, item := range items {
		p.unclaim(item, entries[item.EntryID])
	}
	return p.writeAll(ctx)
}

// unclaim releases the entry of a waiting item that its run gives up, if it was claimed by a process that died: nothing
// would send it again, because rules and runs take what is PENDING. It is not known whether it was sent, so that
// redrive counts, and so does its outcome.
func (p *stepping) unclaim(item redrive.Item, e *dlq.Entry) {
	if item.Redrive == 0 || e == nil || e.Version != item.Version {
		return
	}
	c := p.action(driver.ActionReleaseByHand)
	c.Note = "the process that claimed it died, and its run sends it no more"
	if after, err := c.Apply(*e); err == nil { // otherwise its outcome is known
		p.record(c, e, &after)
	}
}
