package sqlstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	fit "github.com/redrive-go/redrive/dlq/internal/text"
	"github.com/redrive-go/redrive/internal/sqldb"
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
		before = all.now(before) // the call may name an id twice
		one := c.For(i)
		after, err := one.Apply(*before)
		results[i] = driver.Result{ID: id, Entry: after, Err: err}
		if err != nil {
			continue
		}
		if !c.Audited() {
			all.change(before, &results[i].Entry)
			continue
		}
		record := all.record(c, before, &results[i].Entry)
		if c.Action == driver.ActionSucceed || c.Action == driver.ActionReleaseByHand {
			record.Run = before.Run // this ends a redrive of that run, no matter who reports it
		}
	}
	return results, all.writeAll(ctx)
}

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
		all := changes{store: s, tx: tx}
		all.record(c, before, &after).Detail = detail
		return &after, all.writeAll(ctx)
	})
}

// addRevision stores a body as the latest revision, and makes it the entry's.
func (s *Store) addRevision(ctx context.Context, tx *sql.Tx, e *dlq.Entry, body *dlq.Body) error {
	var last int
	err := s.queryRow(ctx, tx, "SELECT coalesce(max(revision), -1) FROM dlq_bodies WHERE entry_id = ?", e.ID).Scan(&last)
	if err == nil && last < 0 { // it was purged
		err = errStale
	}
	if err != nil {
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

// errStale ends a transaction that relied on an outdated copy of an entry or an item.
var errStale = errors.New("an entry or an item has changed since it was read")

// changes collects what a transaction does to existing entries, and writes it at the end: the entries, the audit log,
// and the statistics.
type changes struct {
	store   *Store
	tx      *sql.Tx
	deltas  deltas
	audit   []driver.AuditRecord
	changed []changed
	places  map[int64]int // in changed, by id
}

type changed struct{ before, after *dlq.Entry }

// now returns an entry that was read in this transaction, with its changes so far.
func (c *changes) now(e *dlq.Entry) *dlq.Entry {
	if i, ok := c.places[e.ID]; ok {
		return c.changed[i].after
	}
	return e
}

func (c *changes) change(before, after *dlq.Entry) {
	if i, ok := c.places[before.ID]; ok {
		c.changed[i].after = after
		return
	}
	if c.places == nil {
		c.places = map[int64]int{}
	}
	c.places[before.ID] = len(c.changed)
	c.changed = append(c.changed, changed{before, after})
}

// record changes an entry, and adds a record of that to the audit log, which the caller may complete.
func (c *changes) record(by driver.Change, before, after *dlq.Entry) *driver.AuditRecord {
	c.change(before, after)
	c.audit = append(c.audit, driver.AuditRecord{
		At: by.At, Actor: by.Actor, Action: by.Action, Note: by.Note, EntryID: after.ID, Run: by.Run,
		From: before.Status, To: after.Status, Version: after.Version, Detail: by.Detail(),
	})
	return &c.audit[len(c.audit)-1]
}

// results are the recorded changes, with their entries as they are at the end.
func (c *changes) results() map[driver.Action][]driver.Result {
	results := map[driver.Action][]driver.Result{}
	for i := range c.audit {
		r := &c.audit[i]
		after := c.changed[c.places[r.EntryID]].after
		results[r.Action] = append(results[r.Action], driver.Result{ID: r.EntryID, Entry: *after})
	}
	return results
}

// write writes the changes, except the statistics.
func (c *changes) write(ctx context.Context) error {
	for _, e := range c.changed {
		c.deltas.change(e.before, e.after)
	}
	if err := c.updateEntries(ctx); err != nil {
		return err
	}
	return c.store.insertAudit(ctx, c.tx, c.audit)
}

func (c *changes) writeAll(ctx context.Context) error {
	if err := c.write(ctx); err != nil {
		return err
	}
	return c.deltas.apply(ctx, c.store, c.tx)
}

// update is a statement that changes entries of one version in the same way.
type update struct {
	set     []string
	args    []any
	version int64
	ids     []int64
}

// updateEntries writes the columns that differ, with one statement for all entries with the same difference, such as
// those of a bulk action. Each statement compares the version, because a step of a run does not lock the entries that
// its caller knows.
func (c *changes) updateEntries(ctx context.Context) error {
	for _, u := range c.updates() {
		query := "UPDATE dlq_entries SET " + strings.Join(u.set, ", ") + " WHERE version = ? AND "
		n, err := c.store.execIn(ctx, c.tx, u.ids, inIDs{query, "id", append(u.args, u.version)})
		if err != nil {
			return err
		}
		if n != int64(len(u.ids)) {
			return errStale
		}
	}
	return nil
}

func (c *changes) updates() (updates []*update) {
	for _, e := range c.changed {
		u := c.store.difference(e)
		if len(u.set) == 0 {
			continue
		}
		// Equal differences follow each other, or are among a few others.
		recent := updates[max(0, len(updates)-maxUnlike):]
		if i := slices.IndexFunc(recent, u.alike); i >= 0 {
			u = recent[i]
		} else {
			updates = append(updates, u)
		}
		u.ids = append(u.ids, e.after.ID)
	}
	return updates
}

// maxUnlike is in how many of the last updates an equal one is looked for: comparing each with all others would take
// minutes for a call with a hundred thousand different ones.
const maxUnlike = 8

func (u *update) alike(v *update) bool {
	return u.version == v.version && slices.Equal(u.set, v.set) && slices.EqualFunc(u.args, v.args, equalValues)
}

// difference is the update from before to after. Each one changes the version or the seen count, so that MySQL, which
// counts changed rows, counts all.
func (s *Store) difference(e changed) *update {
	u := &update{version: e.before.Version}
	for i := range stateColumns {
		column := &stateColumns[i]
		if column.same(e.before, e.after) {
			continue
		}
		is := column.value(s.dialect, e.after)
		if column.counted {
			u.set = append(u.set, column.name+" = "+column.name+" + ?")
			u.args = append(u.args, asInt(is)-asInt(column.value(s.dialect, e.before)))
		} else {
			u.set, u.args = append(u.set, column.name+" = ?"), append(u.args, is)
		}
	}
	return u
}

// inIDs is a statement that ends in a condition on ids, which follows its query.
type inIDs struct {
	query, column string
	args          []any // before the ids
}

// execIn executes a statement for a list of ids, and returns how many rows it changed.
func (s *Store) execIn(ctx context.Context, tx *sql.Tx, ids []int64, statement inIDs) (changed int64, err error) {
	for in, list := range s.dialect.idIn(statement.column, ids) {
		n, err := sqldb.Changed(s.exec(ctx, tx, statement.query+in, slices.Concat(statement.args, list)...))
		if err != nil {
			return 0, err
		}
		changed += n
	}
	return changed, nil
}

// execAllIn executes statements, one after the other.
func (s *Store) execAllIn(ctx context.Context, tx *sql.Tx, ids []int64, statements ...inIDs) error {
	for _, statement := range statements {
		if _, err := s.execIn(ctx, tx, ids, statement); err != nil {
			return fmt.Errorf("%.40s: %w", statement.query, err)
		}
	}
	return nil
}

func equalValues(a, b any) bool {
	at, isTime := a.(time.Time)
	bt, both := b.(time.Time)
	if isTime && both {
		return at.Equal(bt)
	}
	return a == b
}

func asInt(value any) int64 {
	switch n := value.(type) {
	case int:
		return int64(n)
	case int32:
		return int64(n)
	case int64:
		return n
	default:
		return 0
	}
}

var auditColumns = []string{
	"at", "entry_id", "run_id", "actor", "action", "note", "from_status", "to_status", "version", "detail",
}

func (s *Store) insertAudit(ctx context.Context, tx *sql.Tx, records []driver.AuditRecord) error {
	rows := make([][]any, len(records))
	for i, r := range records {
		var detail any
		if len(r.Detail) > 0 {
			data, err := json.Marshal(r.Detail)
			if err != nil {
				return fmt.Errorf("audit: %w", err)
			}
			detail = string(data)
		}
		rows[i] = []any{
			s.dialect.time(r.At), r.EntryID, null(r.Run), fit.Clean(r.Actor, fit.MaxName), string(r.Action),
			fit.Clean(r.Note, fit.MaxError), string(r.From), string(r.To), r.Version, detail,
		}
	}
	if err := s.dialect.insertRows(ctx, s, tx, tableRows{"dlq_audit", auditColumns, rows}); err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	return nil
}

// Record appends to the audit log.
func (s *Store) Record(ctx context.Context, records ...driver.AuditRecord) error {
	for i := range records {
		if r := &records[i]; r.Actor == "" || r.Action == "" || r.At.IsZero() {
			return fmt.Errorf("sqlstore: record: %w: an audit record needs an actor, an action and a time", dlq.ErrInvalid)
		}
	}
	if len(records) == 0 {
		return nil
	}
	return s.inTx(ctx, "record", func(tx *sql.Tx) error { return s.insertAudit(ctx, tx, records) })
}

// Audit returns a page of the audit log.
func (s *Store) Audit(ctx context.Context, f dlq.AuditFilter, p dlq.Page) ([]driver.AuditRecord, string, error) {
	next := ""
	records, err := reading(s, "audit", func() ([]driver.AuditRecord, error) {
		p, cursor, err := p.Resolve()
		if err != nil {
			return nil, err
		}
		b := s.selectFrom("dlq_audit", append([]string{"id"}, auditColumns...)...)
		if f.EntryID != 0 {
			b.Where(b.EQ("entry_id", f.EntryID))
		}
		whereText(b, "run_id", f.Run)
		whereText(b, "actor", f.Actor)
		whereText(b, "action", string(f.Action))
		s.whereTimes(b, "at", f.From, f.To)
		s.page(b, [2]string{"at", "id"}, p, cursor)
		records, err := sqldb.All[driver.AuditRecord](s.find(ctx, b))(scanAudit)
		records, next = cutPage(records, p, func(r *driver.AuditRecord) (time.Time, int64) { return r.At, r.ID })
		return records, err
	})
	return records, next, err
}

func scanAudit(row sqldb.Row, r *driver.AuditRecord) error {
	var detail string
	err := row.Scan(&r.ID, timeValue{&r.At}, &r.EntryID, textValue{&r.Run}, &r.Actor, &r.Action, &r.Note, &r.From, &r.To,
		&r.Version, textValue{&detail})
	if err != nil || detail == "" {
		return err
	}
	if err := json.Unmarshal([]byte(detail), &r.Detail); err != nil {
		return fmt.Errorf("detail of record %d: %w", r.ID, err)
	}
	return nil
}
