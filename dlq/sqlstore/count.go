package sqlstore

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/huandu/go-sqlbuilder"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
)

// Count returns how many entries the filter selects, up to a limit.
func (s *Store) Count(ctx context.Context, f dlq.Filter, limit int64) (int64, error) {
	return reading(s, "count", func() (int64, error) {
		if err := f.Validate(); err != nil {
			return 0, err
		}
		n, kept, err := s.countKept(ctx, f)
		if err == nil && !kept {
			n, err = s.countRows(ctx, f, limit)
		}
		if limit > 0 {
			n = min(n, limit)
		}
		return n, err
	})
}

// countRows counts entries.
func (s *Store) countRows(ctx context.Context, f dlq.Filter, limit int64) (n int64, err error) {
	inner := s.selectFrom("dlq_entries", "1")
	s.where(inner, &f)
	if limit > 0 {
		inner.Limit(int(limit))
	}
	b := s.selectFrom("", "count(*)")
	err = s.findRow(ctx, b.From(b.BuilderAs(inner, "counted"))).Scan(&n)
	return n, err
}

// countKept uses the kept statistics where they are enough: for a cause, at any time or in any status; or for a topic
// and an event type, in any status.
func (s *Store) countKept(ctx context.Context, f dlq.Filter) (n int64, kept bool, err error) {
	cause := f.Fingerprint != "" || f.CauseText != ""
	timed := !f.From.IsZero() || !f.To.IsZero()
	rest := f
	rest.Fingerprint, rest.CauseText, rest.Topic, rest.EventType = "", "", "", ""
	rest.From, rest.To, rest.Statuses = time.Time{}, time.Time{}, nil
	named := f.Topic != "" || f.EventType != ""
	if !isZero(rest) || timed && (named || len(f.Statuses) > 0) || cause && named {
		return 0, false, nil
	}
	if err := s.fold(ctx); err != nil {
		return 0, false, err
	}
	switch {
	case timed:
		n, err = s.countHours(ctx, f)
	case cause:
		n, err = s.sumCounts(ctx, "dlq_groups", f)
	default:
		n, err = s.sumCounts(ctx, "dlq_counts", f)
	}
	return n, true, err
}

func isZero(f dlq.Filter) bool { return reflect.ValueOf(f).IsZero() }

// sumCounts adds up the kept counts of the filter's statuses.
func (s *Store) sumCounts(ctx context.Context, table string, f dlq.Filter) (n int64, err error) {
	statuses := f.Statuses
	if len(statuses) == 0 {
		statuses = driver.Statuses()
	}
	b := s.selectFrom(table)
	statuses = slices.Compact(slices.Sorted(slices.Values(statuses)))
	for _, status := range statuses {
		b.SelectMore("coalesce(sum(" + strings.ToLower(string(status)) + "), 0)") // a column: the status was checked
	}
	whereText(b, "topic", f.Topic)
	whereText(b, "event_type", f.EventType)
	s.whereCause(b, f)
	counts, targets := make([]int64, len(statuses)), make([]any, len(statuses))
	for i := range counts {
		targets[i] = &counts[i]
	}
	err = s.findRow(ctx, b).Scan(targets...)
	for _, c := range counts {
		n += c
	}
	return n, err
}

// whereCause selects groups.
func (s *Store) whereCause(b *sqlbuilder.SelectBuilder, f dlq.Filter) {
	whereText(b, "fingerprint", f.Fingerprint)
	if f.CauseText != "" {
		b.Where(s.dialect.contains("cause", b.Var(s.dialect.containsArg(f.CauseText))))
	}
}

// countHours counts the whole hours of a time range from the statistics, and the entries of its first and last hour.
func (s *Store) countHours(ctx context.Context, f dlq.Filter) (int64, error) {
	first, last := f.From.Truncate(time.Hour), f.To.Truncate(time.Hour)
	if !first.Equal(f.From) {
		first = first.Add(time.Hour)
	}
	f.Statuses = driver.Statuses() // all, which makes each a range of an index
	if !f.To.IsZero() && !first.Before(last) {
		return s.countRows(ctx, f, 0)
	}
	b := s.selectFrom("dlq_hours", "coalesce(sum(entries), 0)")
	s.whereTimes(b, "hour", first, last)
	groups := s.selectFrom("dlq_groups", "fingerprint")
	s.whereCause(groups, f)
	if f.Fingerprint != "" || f.CauseText != "" {
		b.Where("fingerprint IN (" + b.Var(groups) + ")")
	}
	var n int64
	if err := s.findRow(ctx, b).Scan(&n); err != nil {
		return 0, err
	}
	for _, edge := range []struct{ from, to time.Time }{{f.From, first}, {last, f.To}} {
		if edge.from.IsZero() || !edge.from.Before(edge.to) {
			continue
		}
		part := f
		part.From, part.To = edge.from, edge.to
		rows, err := s.countRows(ctx, part, 0)
		if err != nil {
			return 0, err
		}
		n += rows
	}
	return n, nil
}
