package sqlstore_test

import (
	"context"
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
)

//go:embed narrow/narrow.sql
var narrowLayout string

// contender is one of the compared layouts.
type contender struct {
	name string
	call func()
}

// inTurns runs all of them alternately, and reports the median of each, and how many times faster the first is.
func inTurns(b *testing.B, per float64, between func(), all ...contender) {
	b.Helper()
	times := make([][]time.Duration, len(all))
	for b.Loop() {
		for i, c := range all {
			began := time.Now()
			c.call()
			times[i] = append(times[i], time.Since(began))
		}
		if between != nil {
			between()
		}
	}
	median := make([]float64, len(all))
	for i := range all {
		slices.Sort(times[i])
		median[i] = times[i][len(times[i])/2].Seconds()
	}
	for i, c := range all {
		if per > 0 {
			b.ReportMetric(per/median[i], c.name+"/s")
		} else {
			b.ReportMetric(median[i]*1000, c.name+"-ms")
		}
		if i > 0 {
			b.ReportMetric(median[i]/median[0], "x-"+c.name)
		}
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkNarrow compares the prototype in narrow/narrow.sql with today's layout and C's table, all with the same
// rows. Its puts use the store's own code, which finds the functions in the prototype's schema first.
// docs/performance.md has the last run:
//
//	REDRIVE_ROWS=1000000 go test -run '^$' -bench Narrow -benchtime 11x -timeout 60m ./sqlstore
func BenchmarkNarrow(b *testing.B) {
	a := newArena(b)
	if there := rowsOf(b, a.db, "SELECT to_regclass('narrow.dlq_states')::text"); there[0][0] == nil {
		conn, err := pgx.Connect(b.Context(), a.url)
		require.NoError(b, err)
		for statement := range strings.SplitSeq(narrowLayout, ";\n\n") { // VACUUM cannot run in a transaction
			_, err := conn.Exec(b.Context(), statement)
			require.NoError(b, err, statement)
		}
		require.NoError(b, conn.Close(context.Background()))
	}
	narrow := *a
	narrow.store = openStore(b, with(a.url, "options=-c%20search_path%3Dnarrow,public"))
	b.Cleanup(func() { require.NoError(b, narrow.store.Close()) })
	b.Run("Read", a.benchmarkNarrowReads)
	b.Run("Claim", a.benchmarkNarrowClaim)
	b.Run("Put", func(b *testing.B) { a.benchmarkNarrowPut(b, &narrow) })
	b.Run("Month", a.benchmarkNarrowMonth)
}

// benchmarkNarrowReads queries the same columns of both layouts with hand-written SQL.
func (a *arena) benchmarkNarrowReads(b *testing.B) {
	const (
		narrow = `SELECT l.id, l.event_id, l.event_type, l.topic, l.error_message, l.fingerprint, l.created_at, s.status, s.version,
			s.retry_count, s.changed_at, s.resolved_by FROM narrow.dlq_states s JOIN narrow.dlq_letters l ON l.id = s.id WHERE `
		today = `SELECT l.id, l.event_id, l.event_type, l.topic, l.error_message, l.fingerprint, l.created_at, l.status, l.version,
			l.retry_count, l.changed_at, l.resolved_by FROM dlq_entries l WHERE `
		pending = "s.phase = 0 AND s.status = 'PENDING'"
		newest  = " ORDER BY %[1]s.created_at DESC, %[1]s.id DESC LIMIT 51"
		oldest  = " ORDER BY %[1]s.created_at, %[1]s.id LIMIT 51"
	)
	of := func(query, table string) string { return strings.ReplaceAll(query, "%[1]s", table) }
	common := rowsOf(b, a.db, "SELECT fingerprint FROM dlq_groups ORDER BY pending DESC LIMIT 1")[0][0]
	deep := a.end.Add(-month / 10).Format(time.RFC3339)
	cause := fmt.Sprintf("l.fingerprint = '%s'", common)
	theirs := strings.ReplaceAll(cause, "l.", "s.")
	for _, q := range []struct{ name, narrow, today string }{
		{"pending, newest", narrow + pending + of(newest, "s"), today + "l.status = 'PENDING'" + of(newest, "l")},
		{"pending, oldest", narrow + pending + of(oldest, "s"), today + "l.status = 'PENDING'" + of(oldest, "l")},
		{
			"pending, deep", narrow + pending + " AND s.created_at < '" + deep + "'" + of(newest, "s"),
			today + "l.status = 'PENDING' AND l.created_at < '" + deep + "'" + of(newest, "l"),
		},
		{
			"resolved, newest", narrow + "s.phase = 2" + of(newest, "s"),
			today + "l.status = 'RESOLVED'" + of(newest, "l"),
		},
		{
			"pending of a cause, newest", narrow + pending + " AND " + theirs + of(newest, "s"),
			today + "l.status = 'PENDING' AND " + cause + of(newest, "l"),
		},
		{
			"pending of a cause, oldest", narrow + pending + " AND " + theirs + of(oldest, "s"),
			today + "l.status = 'PENDING' AND " + cause + of(oldest, "l"),
		},
		{
			"resolved of a cause, newest", narrow + "s.phase = 2 AND " + theirs + of(newest, "s"),
			today + "l.status = 'RESOLVED' AND " + cause + of(newest, "l"),
		},
		{
			"discarded of a topic, oldest", narrow + "s.phase = 3 AND s.topic = 'employee-delete'" + of(oldest, "s"),
			today + "l.status = 'DISCARDED' AND l.topic = 'employee-delete'" + of(oldest, "l"),
		},
		{
			"retrying of a topic, of which there are none",
			narrow + "s.phase = 0 AND s.status = 'RETRYING' AND s.topic = 'employee-delete'" + of(oldest, "s"),
			today + "l.status = 'RETRYING' AND l.topic = 'employee-delete'" + of(oldest, "l"),
		},
		{
			"count, pending of a cause, 5 days",
			"SELECT count(*) FROM narrow.dlq_states s WHERE " + pending + " AND " + theirs +
				" AND s.created_at > now() - interval '5 days'",
			"SELECT count(*) FROM dlq_entries l WHERE l.status = 'PENDING' AND " + cause +
				" AND l.created_at > now() - interval '5 days'",
		},
	} {
		b.Run(q.name, func(b *testing.B) {
			inTurns(b, 0, nil, contender{"narrow", func() { rowsOf(b, a.db, q.narrow) }},
				contender{"today", func() { rowsOf(b, a.db, q.today) }})
		})
	}
}

// benchmarkNarrowClaim claims the 500 oldest pending entries: the prototype with one function, today's layout with one
// function and with the store, and C's table.
func (a *arena) benchmarkNarrowClaim(b *testing.B) {
	const size = 500
	place := func(function string) func() {
		at, id := time.Time{}, int64(0)
		return func() {
			rows := rowsOf(b, a.db, "SELECT created_at, id, status, version, retry_count, run_id, lease_until FROM narrow."+
				function+
				"($1, $2, $3)", at, id, size)
			require.Len(b, rows, size)
			at, id = rows[size-1][0].(time.Time), rows[size-1][1].(int64) //nolint:forcetypeassert // the columns' types
		}
	}
	from := driver.Cursor{Order: driver.OldestFirst, At: a.end.Add(-month / 6), ID: 1} // the function has the earlier ones
	page := dlq.Page{Limit: size, Order: driver.OldestFirst, After: from.String()}
	function, today := contender{"narrow", place("claim")}, contender{"today-by-function", place("claim_today")}
	inTurns(b, size, nil, function, today, contender{"today", func() {
		listing, err := a.store.List(b.Context(), dlq.Filter{Statuses: []dlq.Status{dlq.Pending}}, page)
		require.NoError(b, err)
		ids := make([]int64, len(listing.Entries))
		for i := range ids {
			ids[i] = listing.Entries[i].ID
		}
		page.After = listing.Next
		_, err = a.store.Change(b.Context(), driver.Change{
			Action: driver.ActionRedrive, IDs: ids, Actor: "bench", At: time.Now(), Lease: time.Hour, Run: "bench",
		})
		require.NoError(b, err)
	}}, contender{"peer", a.query(b, `UPDATE peer.dlq_events SET status = 'RETRYING', retry_count = retry_count + 1, last_retry_at = now()
		WHERE id IN (SELECT id FROM peer.dlq_events WHERE status = 'PENDING'
			ORDER BY created_at LIMIT 500 FOR UPDATE SKIP LOCKED) RETURNING id, event_id, event_payload, kafka_topic`)})
}

// benchmarkNarrowPut stores letters from 64 callers, from one, and 1,000 in one call.
func (a *arena) benchmarkNarrowPut(b *testing.B, narrow *arena) {
	b.Helper()
	const rows = 1000
	next := unused()
	lists := make([][]*dlq.Entry, 3)
	fresh := func() {
		for i := range lists {
			lists[i] = nil
			for range rows {
				next++
				lists[i] = append(lists[i], letter(next, time.Now()))
			}
		}
	}
	fresh()
	peer := openDB(b, a.url)
	peer.SetMaxIdleConns(64)
	for _, callers := range []int{64, 1} {
		put := func(s *arena, list int) func() {
			return func() {
				each(callers, lists[list], func(e *dlq.Entry) {
					if _, err := s.store.Put(context.Background(), e); err != nil {
						b.Error(err)
					}
				})
			}
		}
		b.Run(fmt.Sprintf("%d callers", callers), func(b *testing.B) {
			inTurns(b, rows, fresh, contender{"narrow", put(narrow, 0)}, contender{"today", put(a, 1)},
				contender{"peer", func() {
					each(callers, lists[2], func(e *dlq.Entry) {
						if _, err := peer.ExecContext(context.Background(), peerInsert, peerRow(e)...); err != nil {
							b.Error(err)
						}
					})
				}})
		})
	}
	conn, err := pgx.Connect(b.Context(), a.url)
	require.NoError(b, err)
	defer func() { require.NoError(b, conn.Close(context.Background())) }()
	call := func(s *arena, list int) func() {
		return func() {
			_, err := s.store.Put(b.Context(), lists[list]...)
			require.NoError(b, err)
		}
	}
	b.Run("1,000 in one call", func(b *testing.B) {
		inTurns(b, rows, fresh, contender{"narrow", call(narrow, 0)}, contender{"today", call(a, 1)},
			contender{"copy", func() { copyPeer(b, conn, lists[2]) }})
	})
}

// benchmarkNarrowMonth drops a month of 200,000 rows with its statistics, compared with the peer's DELETE of as many.
// The keys span all months, so that no letter is stored twice: those of the month are deleted afterwards, which is
// timed separately.
func (a *arena) benchmarkNarrowMonth(b *testing.B) {
	const first, last = 1, 200_000
	prepare := func() {
		for _, statement := range []string{
			"DROP SCHEMA IF EXISTS months CASCADE", "CREATE SCHEMA months",
			"CREATE TABLE months.hours (LIKE narrow.dlq_hours INCLUDING ALL)", "INSERT INTO months.hours TABLE narrow.dlq_hours",
			"CREATE TABLE months.groups (LIKE narrow.dlq_groups INCLUDING ALL)",
			"INSERT INTO months.groups TABLE narrow.dlq_groups",
			"CREATE TABLE months.keys (LIKE narrow.dlq_keys INCLUDING ALL)",
			"INSERT INTO months.keys SELECT * FROM narrow.dlq_keys WHERE entry_id <= 400000",
			"CREATE TABLE months.peer (LIKE peer.dlq_events INCLUDING ALL)",
			"INSERT INTO months.peer SELECT * FROM peer.dlq_events WHERE id <= 400000",
		} {
			_, err := a.db.ExecContext(b.Context(), statement)
			require.NoError(b, err, statement)
		}
		for _, table := range []string{"letters", "states"} {
			for _, statement := range []string{
				"CREATE TABLE months.%[1]s (LIKE narrow.dlq_%[1]s INCLUDING ALL) PARTITION BY RANGE (id)",
				"CREATE TABLE months.%[1]s_1 PARTITION OF months.%[1]s FOR VALUES FROM (%[2]d) TO (%[3]d)",
				"CREATE TABLE months.%[1]s_2 PARTITION OF months.%[1]s DEFAULT",
				"INSERT INTO months.%[1]s SELECT * FROM narrow.dlq_%[1]s WHERE id <= %[3]d",
			} {
				_, err := a.db.ExecContext(b.Context(), fmt.Sprintf(statement, table, first, last+1))
				require.NoError(b, err, statement)
			}
		}
		_, err := a.db.ExecContext(b.Context(), "CHECKPOINT")
		require.NoError(b, err)
	}
	run := func(query string) func() {
		return func() {
			_, err := a.db.ExecContext(b.Context(), query)
			require.NoError(b, err)
		}
	}
	prepare()
	inTurns(b, 0, prepare,
		contender{"drop", run("DROP TABLE months.letters_1, months.states_1, months.hours, months.groups")},
		contender{"peer-delete", run(fmt.Sprintf("DELETE FROM months.peer WHERE id <= %d", last))},
		contender{"keys", run(fmt.Sprintf("DELETE FROM months.keys WHERE entry_id <= %d", last))})
}
