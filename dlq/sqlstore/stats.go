package sqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/huandu/go-sqlbuilder"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/internal/sqldb"
)

const defaultWindow = 7 * 24 * time.Hour

// Groups returns the causes, those with the most entries first.
func (s *Store) Groups(ctx context.Context, q dlq.GroupQuery) ([]driver.Group, error) {
	return reading(s, "groups", func() ([]driver.Group, error) {
		q.Limit = cmp.Or(q.Limit, wire.DefaultGroups)
		if q.Limit < 1 || q.Limit > wire.MaxGroups {
			return nil, fmt.Errorf("%w: limit %d: from 1 to %d", dlq.ErrInvalid, q.Limit, wire.MaxGroups)
		}
		rank := "pending + retrying + parked + resolved + discarded"
		if q.Status != "" {
			status, err := wire.ParseStatus(string(q.Status))
			if err != nil {
				return nil, err
			}
			rank = strings.ToLower(string(status)) // a column: the status was checked
		}
		if err := s.fold(ctx); err != nil {
			return nil, err
		}
		groups, err := s.readGroups(ctx, q, rank)
		if err == nil {
			err = s.readTrends(ctx, q.TrendSince, groups)
		}
		return groups, err
	})
}

func (s *Store) readGroups(ctx context.Context, q dlq.GroupQuery, rank string) ([]driver.Group, error) {
	b := s.selectFrom("dlq_groups", groupColumns...)
	b.Where(rank + " > 0")
	whereText(b, "handler", q.Handler)
	whereText(b, "error_class", q.ErrorClass)
	s.whereCause(b, dlq.Filter{Fingerprint: q.Fingerprint, CauseText: q.CauseText})
	if !q.SeenSince.IsZero() {
		b.Where(b.GE("last_seen", s.dialect.time(q.SeenSince))).OrderBy("first_seen DESC")
	}
	b.OrderBy(rank+" DESC", "fingerprint").Limit(q.Limit)
	return sqldb.All[driver.Group](s.find(ctx, b))(func(row sqldb.Row, g *driver.Group) error {
		return row.Scan(&g.Fingerprint, &g.Cause, &g.Sample, &g.ErrorClass, &g.Handler, &g.Counts.Pending,
			&g.Counts.Retrying, &g.Counts.Parked, &g.Counts.Resolved, &g.Counts.Discarded, timeValue{&g.FirstSeen},
			timeValue{&g.LastSeen}, &g.LastEntry)
	})
}

// readTrends reads the hours of the groups in one query.
func (s *Store) readTrends(ctx context.Context, since time.Time, groups []driver.Group) error {
	if since.IsZero() || len(groups) == 0 {
		return nil
	}
	byFingerprint := make(map[string]*driver.Group, len(groups))
	fingerprints := make([]any, len(groups))
	for i := range groups {
		fingerprints[i], byFingerprint[groups[i].Fingerprint] = groups[i].Fingerprint, &groups[i]
	}
	b := s.selectFrom("dlq_hours", "fingerprint", "hour", "entries", "closed", "died_again")
	b.Where(b.In("fingerprint", fingerprints...), b.GE("hour", s.dialect.time(since.Truncate(time.Hour))),
		"(entries > 0 OR closed > 0 OR died_again > 0)").OrderBy("hour")
	return sqldb.Each(s.find(ctx, b))(func(row sqldb.Row) error {
		var fingerprint string
		var h wire.HourCount
		if err := row.Scan(&fingerprint, timeValue{&h.Hour}, &h.Count, &h.Closed, &h.DiedAgain); err != nil {
			return err
		}
		g := byFingerprint[fingerprint]
		g.Trend = append(g.Trend, h)
		return nil
	})
}

// Stats returns the numbers of a dashboard from the kept statistics.
func (s *Store) Stats(ctx context.Context, q dlq.StatsQuery) (driver.Stats, error) {
	var stats driver.Stats
	if q.Now.IsZero() {
		q.Now = s.Now(ctx)
	}
	if q.Since.IsZero() {
		q.Since = q.Now.Add(-defaultWindow)
	}
	groups, err := s.Groups(ctx, dlq.GroupQuery{Status: dlq.Pending, Limit: q.TopCauses})
	if err != nil {
		return stats, err
	}
	stats.TopCauses = groups
	for _, read := range []func(context.Context, dlq.StatsQuery, *driver.Stats) error{
		s.readCounts, s.readHours, s.readRecent, s.readOldest,
	} {
		if err := read(ctx, q, &stats); err != nil {
			return driver.Stats{}, fmt.Errorf("sqlstore: stats: %w", err)
		}
	}
	return stats, nil
}

func (s *Store) readCounts(ctx context.Context, _ dlq.StatsQuery, stats *driver.Stats) error {
	byType, byTopic := map[string]driver.Counts{}, map[string]driver.Counts{}
	var resolutionMS int64
	err := sqldb.Each(s.read.QueryContext(ctx,
		"SELECT event_type, topic, pending, retrying, parked, resolved, discarded, resolution_ms FROM dlq_counts"))(
		func(row sqldb.Row) error {
			var eventType, topic string
			var c driver.Counts
			var ms int64
			err := row.Scan(&eventType, &topic, &c.Pending, &c.Retrying, &c.Parked, &c.Resolved, &c.Discarded, &ms)
			stats.Counts = stats.Counts.Plus(c)
			byType[eventType] = byType[eventType].Plus(c)
			byTopic[topic] = byTopic[topic].Plus(c)
			resolutionMS += ms
			return err
		})
	stats.ByType, stats.ByTopic = named(byType), named(byTopic)
	if stats.Counts.Resolved > 0 {
		stats.MeanResolution = wire.Seconds(time.Duration(resolutionMS/stats.Counts.Resolved) * time.Millisecond)
	}
	return err
}

func named(counts map[string]driver.Counts) []wire.NamedCounts {
	list := make([]wire.NamedCounts, 0, len(counts))
	for name, c := range counts {
		if c.Total() > 0 {
			list = append(list, wire.NamedCounts{Name: name, Counts: c})
		}
	}
	slices.SortFunc(list, func(a, b wire.NamedCounts) int {
		return cmp.Or(cmp.Compare(b.Counts.Total(), a.Counts.Total()), cmp.Compare(a.Name, b.Name))
	})
	return list
}

func (s *Store) readHours(ctx context.Context, q dlq.StatsQuery, stats *driver.Stats) error {
	var err error
	stats.Hourly, err = sqldb.All[wire.HourCount](s.rows(ctx, "SELECT hour, sum(entries), sum(closed), sum(died_again)"+
		" FROM dlq_hours WHERE hour >= ? AND hour <= ? GROUP BY hour"+
		" HAVING sum(entries) > 0 OR sum(closed) > 0 OR sum(died_again) > 0 ORDER BY hour",
		s.dialect.time(q.Since.Truncate(time.Hour)), s.dialect.time(q.Now)))(
		func(row sqldb.Row, h *wire.HourCount) error {
			return row.Scan(timeValue{&h.Hour}, &h.Count, &h.Closed, &h.DiedAgain)
		})
	return err
}

// readRecent counts the spans of the last hour, each an index range.
func (s *Store) readRecent(ctx context.Context, q dlq.StatsQuery, stats *driver.Stats) error {
	if !q.Recent {
		return nil
	}
	// With every status, the index on status and time has the range on every database.
	came := "SELECT count(*) FROM dlq_entries WHERE status IN ('PENDING', 'RETRYING', 'PARKED', 'RESOLVED', 'DISCARDED')" +
		" AND created_at >= ? AND created_at < ?"
	counts := "(" + came + "), (SELECT count(*) FROM dlq_audit WHERE at >= ? AND at < ? AND action = '" +
		string(driver.ActionDie) + "'), (SELECT count(*) FROM dlq_entries WHERE resolved_at >= ? AND resolved_at < ?)"
	first := q.Now.UTC().Truncate(wire.RecentSpan).Add(-(wire.RecentSpans - 1) * wire.RecentSpan)
	spans := make([]wire.SpanCount, wire.RecentSpans)
	var columns []string
	var args, into []any
	for i := range spans {
		spans[i].From = first.Add(time.Duration(i) * wire.RecentSpan)
		from, to := s.dialect.time(spans[i].From), s.dialect.time(spans[i].From.Add(wire.RecentSpan))
		columns, args = append(columns, counts), append(args, from, to, from, to, from, to)
		into = append(into, &spans[i].Count, &spans[i].DiedAgain, &spans[i].Closed)
	}
	if err := s.row(ctx, "SELECT "+strings.Join(columns, ", "), args...).Scan(into...); err != nil {
		return err
	}
	for i := range spans {
		spans[i].Count += spans[i].DiedAgain
	}
	stats.Recent = spans
	return nil
}

func (s *Store) readOldest(ctx context.Context, _ dlq.StatsQuery, stats *driver.Stats) error {
	err := s.row(ctx, "SELECT created_at FROM dlq_entries WHERE status = ? ORDER BY created_at LIMIT 1",
		string(dlq.Pending)).Scan(timeValue{&stats.OldestPending})
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	return err
}

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

func (s *Store) countRows(ctx context.Context, f dlq.Filter, limit int64) (n int64, err error) {
	inner := s.selectFrom("dlq_entries", "1")
	s.whereJoined(inner, &f)
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
	if !reflect.ValueOf(rest).IsZero() || timed && (named || len(f.Statuses) > 0) || cause && named {
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

// sumCounts adds up the kept counts of the filter's statuses.
func (s *Store) sumCounts(ctx context.Context, table string, f dlq.Filter) (n int64, err error) {
	statuses := f.Statuses
	if len(statuses) == 0 {
		statuses = wire.Statuses()
	}
	b := s.selectFrom(table)
	statuses = slices.Compact(slices.Sorted(slices.Values(statuses)))
	for _, status := range statuses {
		b.SelectMore("coalesce(sum(" + strings.ToLower(string(status)) + "), 0)") // a column: the status was checked
	}
	whereText(b, "topic", f.Topic)
	whereText(b, "event_type", f.EventType)
	s.whereCause(b, f)
	counts := make([]int64, len(statuses))
	err = s.findRow(ctx, b).Scan(sqldb.Map(counts, func(n *int64) any { return n })...)
	for _, c := range counts {
		n += c
	}
	return n, err
}

func (s *Store) whereCause(b *sqlbuilder.SelectBuilder, f dlq.Filter) {
	whereText(b, "fingerprint", f.Fingerprint)
	if f.CauseText != "" {
		b.Where(s.dialect.contains("cause", f.CauseText, b.Var))
	}
}

// countHours counts the whole hours of a time range from the statistics, and the entries of its first and last hour.
func (s *Store) countHours(ctx context.Context, f dlq.Filter) (int64, error) {
	first, last := f.From.Truncate(time.Hour), f.To.Truncate(time.Hour)
	if !first.Equal(f.From) {
		first = first.Add(time.Hour)
	}
	f.Statuses = wire.Statuses() // all, which makes each a range of an index
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
