package sqlstore

import (
	"context"
	"fmt"
	"time"

	"github.com/huandu/go-sqlbuilder"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/envelope"
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

// where writes the filter. Every value is a parameter; the column names are ours.
func (s *Store) where(b *sqlbuilder.SelectBuilder, f *dlq.Filter) {
	if f.IDs != nil {
		whereIn(b, "id", f.IDs)
	}
	if len(f.Statuses) > 0 {
		names := make([]string, len(f.Statuses))
		for i, status := range f.Statuses {
			names[i] = string(status)
		}
		whereIn(b, "status", names)
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
			s.dialect.contains("cause", b.Var(s.dialect.containsArg(f.CauseText))) + ")")
	}
	if f.ErrorText != "" {
		b.Where(s.dialect.contains("error_message", b.Var(s.dialect.containsArg(f.ErrorText))))
	}
	if f.PayloadText != "" {
		b.Where("EXISTS (SELECT 1 FROM dlq_bodies b WHERE b.entry_id = dlq_entries.id AND b.revision = " +
			"dlq_entries.revision AND " +
			s.dialect.containsBytes("b.payload", b.Var([]byte(f.PayloadText))) + ")")
	}
	if f.TraceID != "" {
		header := `"` + envelope.KeyTraceParent + `":"00-` + f.TraceID + `-`
		b.Where("EXISTS (SELECT 1 FROM dlq_bodies b WHERE b.entry_id = dlq_entries.id AND b.revision = " +
			"dlq_entries.revision AND " +
			s.dialect.contains("b.headers", b.Var(s.dialect.containsArg(header))) + ")")
	}
	for _, field := range f.PayloadFields {
		tables, where := s.dialect.hasField(field, func(v any) string { return b.Var(v) })
		b.Where("EXISTS (SELECT 1 FROM dlq_bodies b" + tables +
			" WHERE b.entry_id = dlq_entries.id AND b.revision = dlq_entries.revision AND " + where + ")")
	}
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
	list := make([]any, len(values))
	for i, v := range values {
		list[i] = v
	}
	b.Where(b.In(column, list...))
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
func (s *Store) page(b *sqlbuilder.SelectBuilder, by [2]string, p dlq.Page, c *driver.Cursor) {
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
	return list[:p.Limit], driver.Cursor{Order: p.Order, At: at, ID: id}.String()
}
