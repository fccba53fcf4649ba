package sqlstore

import (
	"context"
	"database/sql"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/internal/sqldb"
)

// keepsMany reports whether a month has too many entries left to be dropped, as far as its index ranges show: retention
// looks at each month many times until it is old enough, and need not read all of it each time. If it returns false,
// the month is counted.
func keepsMany(ctx context.Context, tx *sql.Tx, entries string, p dlq.Purge) (many bool, err error) {
	var rows float64 // as many as ANALYZE has seen to a page; none without it
	query := "SELECT CASE WHEN relpages > 0 THEN reltuples / relpages ELSE 0 END * (pg_relation_size(oid) / " +
		"current_setting('block_size')::int) FROM pg_class WHERE oid = '" +
		entries + "'::regclass"
	if err := tx.QueryRowContext(ctx, query).Scan(&rows); err != nil || rows <= 0 {
		return false, err
	}
	limit := int64(rows*1.5/(maxKept+1)) + 1 // half as much again as a month may keep
	for _, kept := range []string{
		"status NOT IN (" + statusList(p.Statuses) + ")",
		"resolved_at >= " + timeLiteral(p.ClosedBefore),
	} {
		query := "SELECT count(*) >= $1 FROM (SELECT 1 FROM " + entries + " WHERE " + kept + " LIMIT $1) kept"
		if err := tx.QueryRowContext(ctx, query, limit).Scan(&many); err != nil || many {
			return many, err
		}
	}
	return false, nil
}

// countMonth returns what the statistics lose with the entries that a condition selects, how many these are, and how
// many the others are.
func countMonth(ctx context.Context, tx *sql.Tx, entries, condition string) (lost *deltas, gone, stay int64,
	err error,
) {
	// The planner assumes that every combination of hour, cause and topic exists, and would sort the month on disk. Hours
	// are numbers because truncating times takes the server longer than everything else.
	for _, setting := range []string{"SET LOCAL work_mem = '64MB'", "SET LOCAL enable_sort = off"} {
		if _, err := tx.ExecContext(ctx, setting); err != nil {
			return nil, 0, 0, err
		}
	}
	query := "SELECT " + condition + ", fingerprint, event_type, topic, status, floor(date_part('epoch', created_at) / " +
		"3600)::bigint, floor(date_part('epoch', resolved_at) / 3600)::bigint, count(*)," +
		" sum(round(date_part('epoch', resolved_at - created_at) * 1000000)::bigint / 1000)::bigint" +
		" FROM " + entries + " GROUP BY 1, 2, 3, 4, 5, 6, 7"
	lost = &deltas{}
	err = sqldb.Each(tx.QueryContext(ctx, query))(func(row sqldb.Row) error {
		var counted monthCount
		if err := counted.scan(row); err != nil {
			return err
		}
		if !counted.gone {
			stay += counted.n
			return nil
		}
		gone += counted.n
		lost.drop(&counted)
		return nil
	})
	if err != nil {
		return nil, 0, 0, err
	}
	_, err = tx.ExecContext(ctx, "SET LOCAL enable_sort TO DEFAULT")
	return lost, gone, stay, err
}

// monthCount is how many entries of a month have the same statistics.
type monthCount struct {
	gone              bool
	fingerprint       string
	key               countKey
	status            dlq.Status
	created, resolved sql.Null[int64] // hours since 1970
	n                 int64
	resolutionMS      sql.Null[int64]
}

func (c *monthCount) scan(row sqldb.Row) error {
	return row.Scan(&c.gone, &c.fingerprint, &c.key.EventType, &c.key.Topic, &c.status, &c.created, &c.resolved, &c.n,
		&c.resolutionMS)
}

// drop counts closed entries that were removed.
func (d *deltas) drop(c *monthCount) {
	created, resolved := hourAt(c.created.V), hourAt(c.resolved.V)
	var counts driver.Counts
	counts.Add(c.status, -c.n)
	// Neither the first nor the last of the cause: it died before the end of the hour in which it was closed.
	d.addGroup(groupDelta{Fingerprint: c.fingerprint, First: resolved.Add(time.Hour), Last: created, Counts: counts})
	count := countDelta{countKey: c.key, Counts: counts}
	if c.status == dlq.Resolved {
		count.ResolutionMS = -c.resolutionMS.V
	}
	d.addCount(count)
	d.addHour(hourDelta{hourKey: hourKey{created, c.fingerprint}, Entries: -c.n})
	d.addHour(hourDelta{hourKey: hourKey{resolved, c.fingerprint}, Closed: -c.n})
}

func hourAt(hours int64) time.Time { return time.Unix(hours*3600, 0).UTC() }
