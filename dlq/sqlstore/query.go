package sqlstore

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/huandu/go-sqlbuilder"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/sqldb"
)

// Get returns an entry with the body that a redrive would send.
func (s *Store) Get(ctx context.Context, id int64) (*dlq.Entry, error) {
	return reading(s, fmt.Sprintf("get entry %d", id), func() (*dlq.Entry, error) {
		e := &dlq.Entry{}
		err := scanEntry(s.row(ctx, "SELECT "+selectEntry+" FROM dlq_entries WHERE id = ?", id), e)
		if err == nil {
			e.Body, err = s.readBody(ctx, id, e.Revision)
		}
		return e, err
	})
}

// List returns a page of the entries that the filter selects.
func (s *Store) List(ctx context.Context, f dlq.Filter, p dlq.Page) (driver.Listing, error) {
	return reading(s, "list", func() (l driver.Listing, err error) {
		p, cursor, err := p.Resolve()
		if err == nil {
			err = f.Validate()
		}
		if err != nil {
			return l, err
		}
		branches, err := s.branches(ctx, f, p)
		if err != nil || len(branches) == 0 {
			return l, err
		}
		query, args := s.listing(branches, p, cursor)
		l.Entries, err = scanEntries(s.read.QueryContext(ctx, query, args...))
		l.Entries, l.Next = cutPage(l.Entries, p, func(e *dlq.Entry) (time.Time, int64) { return e.CreatedAt, e.ID })
		return l, err
	})
}

// whereEntry writes the filter without its conditions on bodies. Every value is a parameter; the column names are ours.
func (s *Store) whereEntry(b *sqlbuilder.SelectBuilder, f *dlq.Filter) {
	if f.IDs != nil {
		whereIn(b, "id", f.IDs)
	}
	if len(f.Statuses) > 0 {
		whereIn(b, "status", f.Statuses)
	}
	for column, value := range map[string]string{
		"topic": f.Topic, "consumer": f.Consumer, "event_type": f.EventType, "handler": f.Handler, "reason": f.Reason,
		"error_class": f.ErrorClass, "error_code": f.ErrorCode, "fingerprint": f.Fingerprint,
		"source_table": f.SourceTable, "run_id": f.Run,
	} {
		whereText(b, column, value)
	}
	table, id := s.dialect.keys()
	for column, value := range map[string]string{
		"event_id": f.EventID, "source_id": f.SourceID, "correlation_id": f.CorrelationID,
	} {
		if table == "dlq_entries" {
			whereText(b, column, value)
		} else if value != "" {
			b.Where("id IN (SELECT " + id + " FROM " + table + " WHERE " + column + " = " + b.Var(value) + ")")
		}
	}
	s.whereTimes(b, "created_at", f.From, f.To)
	if !f.ResolvedBefore.IsZero() {
		b.Where(b.LT("resolved_at", s.dialect.time(f.ResolvedBefore)))
	}
	if !f.DiedBefore.IsZero() {
		b.Where(b.LT("died_at", s.dialect.time(f.DiedBefore)))
	}
	if f.Redrives != nil {
		b.Where(b.EQ("retry_count", *f.Redrives))
	}
	if f.CauseText != "" {
		b.Where("fingerprint IN (SELECT fingerprint FROM dlq_groups WHERE " +
			s.dialect.contains("cause", f.CauseText, b.Var) + ")")
	}
	if f.ErrorText != "" {
		b.Where(s.dialect.contains("error_message", f.ErrorText, b.Var))
	}
}

// where is whereEntry with the conditions on bodies. It looks up the body of each entry.
func (s *Store) where(b *sqlbuilder.SelectBuilder, f *dlq.Filter) {
	s.whereEntry(b, f)
	if conditions := s.ofBodies(b, f); len(conditions) > 0 {
		b.Where("EXISTS (SELECT 1 FROM dlq_bodies b WHERE " + strings.Join(conditions, " AND ") + ")")
	}
}

// whereJoined is where for a query of all that the filter selects. The database may read the bodies first, in the order
// in which they are stored: on SQLite in a quarter of the time.
func (s *Store) whereJoined(b *sqlbuilder.SelectBuilder, f *dlq.Filter) {
	s.whereEntry(b, f)
	if conditions := s.ofBodies(b, f); len(conditions) > 0 {
		b.Join("dlq_bodies b", conditions...)
	}
}

// ofBodies are the conditions on the body of an entry, in the row b of dlq_bodies.
func (s *Store) ofBodies(b *sqlbuilder.SelectBuilder, f *dlq.Filter) []string {
	conditions := []string{"b.entry_id = dlq_entries.id", "b.revision = dlq_entries.revision"}
	if f.PayloadText != "" {
		conditions = append(conditions, s.dialect.containsBytes("b.payload", b.Var([]byte(f.PayloadText))))
	}
	if f.TraceID != "" {
		header := `"` + envelope.KeyTraceParent + `":"00-` + f.TraceID + `-`
		conditions = append(conditions, s.dialect.contains("b.headers", header, b.Var))
	}
	for _, field := range f.PayloadFields {
		// JSON has a text as it is, or with a backslash: to look for both is faster than to read JSON, but where it is stored
		// as such.
		var text string
		values := field.Alternatives()
		if len(values) == 1 && json.Unmarshal([]byte(values[0]), &text) == nil && s.dialect.name() != PostgreSQL {
			conditions = append(conditions, "("+s.dialect.containsBytes("b.payload", b.Var([]byte(text)))+" OR "+
				s.dialect.containsBytes("b.payload", b.Var([]byte(`\`)))+")")
		}
		conditions = append(conditions, s.dialect.hasField(field, b.Var))
	}
	if len(conditions) == 2 {
		return nil
	}
	return conditions
}

func whereText(b *sqlbuilder.SelectBuilder, column, value string) {
	if value != "" {
		b.Where(b.EQ(column, value))
	}
}

func whereIn[T any](b *sqlbuilder.SelectBuilder, column string, values []T) {
	if len(values) == 0 {
		b.Where("1 = 0") // an empty list selects nothing
		return
	}
	if len(values) == 1 {
		b.Where(b.EQ(column, values[0])) // an equality keeps the order of the index
		return
	}
	b.Where(b.In(column, sqlbuilder.Flatten(values)...))
}

func (s *Store) whereTimes(b *sqlbuilder.SelectBuilder, column string, from, to time.Time) {
	if !from.IsZero() {
		b.Where(b.GE(column, s.dialect.time(from)))
	}
	if !to.IsZero() {
		b.Where(b.LT(column, s.dialect.time(to)))
	}
}

// page writes the order, by columns with a time and a number, and the position. One row more than requested shows
// whether there is another page.
func (s *Store) page(b *sqlbuilder.SelectBuilder, by [2]string, p dlq.Page, c *wire.Cursor) {
	direction, compare := " DESC", "<"
	if p.Order.Ascending() {
		direction, compare = " ASC", ">"
	}
	column, id := by[0], by[1]
	if !p.Order.ByID() {
		b.OrderBy(column + direction)
	}
	b.OrderBy(id + direction).Limit(p.Limit + 1)
	if c == nil {
		return
	}
	at := func() string { return b.Var(s.dialect.time(c.At)) }
	switch {
	case p.Order.ByID():
		b.Where(id + " " + compare + " " + b.Var(c.ID))
	case s.dialect.name() == MySQL: // does not use an index to compare rows
		b.Where(fmt.Sprintf("(%[1]s %[3]s= %[4]s AND (%[1]s %[3]s %[5]s OR %[2]s %[3]s %[6]s))", column, id, compare, at(),
			at(), b.Var(c.ID)))
	default:
		b.Where("(" + column + ", " + id + ") " + compare + " (" + at() + ", " + b.Var(c.ID) + ")")
	}
}

// cutPage removes the row more than requested, and returns the position of the last one if there was one.
func cutPage[T any](list []T, p dlq.Page, position func(*T) (time.Time, int64)) (page []T, next string) {
	if len(list) <= p.Limit {
		return list, ""
	}
	at, id := position(&list[p.Limit-1])
	return list[:p.Limit], wire.Cursor{Order: p.Order, At: at, ID: id}.String()
}

// maxBranches is the maximum number of index ranges for one page.
const maxBranches = 64

// branches splits a filter into parts that are each one index range in the order of a listing; the first rows of the
// parts, merged, are the page. The indexes begin with status, or with fingerprint, topic or event type and then status.
// "Any status of this topic" is not a range of any of them: a database would sort the whole topic for a page of 50.
func (s *Store) branches(ctx context.Context, f dlq.Filter, p dlq.Page) ([]dlq.Filter, error) {
	parts := []dlq.Filter{f}
	if p.Order.ByID() {
		return parts, nil // the primary key has this order
	}
	if f.CauseText != "" && f.Fingerprint == "" {
		found, err := s.fingerprints(ctx, f.CauseText)
		if err != nil || len(found)*len(wire.Statuses()) > maxBranches {
			return parts, err // a text in half of the causes is left to the database
		}
		parts = parts[:0]
		for _, fingerprint := range found {
			part := f
			part.Fingerprint, part.CauseText = fingerprint, ""
			parts = append(parts, part)
		}
	}
	statuses := f.Statuses
	if f.IDs != nil || f.EventID != "" || f.SourceID != "" || f.CorrelationID != "" || f.Run != "" {
		return parts, nil // few rows, found by another index
	}
	if len(statuses) == 0 {
		statuses = wire.Statuses()
	}
	statuses = slices.Compact(slices.Sorted(slices.Values(statuses))) // one named twice is not two ranges
	branches := make([]dlq.Filter, 0, len(parts)*len(statuses))
	for _, part := range parts {
		for _, status := range statuses {
			branch := part
			branch.Statuses = []dlq.Status{status}
			branches = append(branches, branch)
		}
	}
	return branches, nil
}

// fingerprints are the groups whose cause contains the text.
func (s *Store) fingerprints(ctx context.Context, text string) ([]string, error) {
	b := s.selectFrom("dlq_groups", "fingerprint")
	b.Where(s.dialect.contains("cause", text, b.Var)).Limit(maxBranches + 1)
	return sqldb.Column[string](s.find(ctx, b))
}

// listing is the statement for a page of the branches.
func (s *Store) listing(branches []dlq.Filter, p dlq.Page, c *wire.Cursor) (string, []any) {
	var query strings.Builder
	var args []any
	for i := range branches {
		b := s.selectFrom("dlq_entries", selectEntry)
		s.where(b, &branches[i])
		s.page(b, [2]string{"created_at", "id"}, p, c)
		var part string
		part, args = b.BuildWithFlavor(s.flavor(), args...)
		if len(branches) == 1 {
			return part, args
		}
		if i > 0 {
			query.WriteString(" UNION ALL ")
		}
		query.WriteString("SELECT * FROM (" + part + ") b" + strconv.Itoa(i))
	}
	direction := " DESC"
	if p.Order.Ascending() {
		direction = " ASC"
	}
	query.WriteString(" ORDER BY created_at" + direction + ", id" + direction + " LIMIT " + strconv.Itoa(p.Limit+1))
	return query.String(), args
}
