package sqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/sqlstore"
	"github.com/redrive-go/redrive/integration/services"
)

// The benchmarks alternately measure the store and C's original table, on one durable PostgreSQL, with the same rows.
// Only the ratios count: "x" is how many times faster the store is. docs/performance.md has the last run:
//
//	REDRIVE_ROWS=1000000 go test -run '^$' -bench 'Postgres$' -benchtime 20x -timeout 30m ./sqlstore
//
// Filling takes longer than measuring. REDRIVE_DATABASE is the URL of a database on your own server, with durable
// settings, which the first run fills and later ones reuse; -bench 'Postgres$/None' only fills it. REDRIVE_PEER=off
// skips the peer's reads, whose scans evict our pages from caches, so that two sizes of the table can be compared.

// peerSchema has the original table and indexes of the system that migrates.
const peerSchema = `
CREATE SCHEMA peer;
CREATE TABLE peer.dlq_events (
    id BIGSERIAL PRIMARY KEY, event_id VARCHAR(50) NOT NULL, event_type VARCHAR(50) NOT NULL, source_table VARCHAR(50),
    source_id VARCHAR(50), event_payload JSONB NOT NULL, error_message TEXT NOT NULL, stack_trace TEXT,
    retry_count INTEGER DEFAULT 0, max_retries INTEGER DEFAULT 3,
    status VARCHAR(20) DEFAULT 'PENDING' CHECK (status IN ('PENDING', 'RETRYING', 'RESOLVED', 'DISCARDED')),
    created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP, last_retry_at TIMESTAMP, resolved_at TIMESTAMP, resolved_by VARCHAR(50),
    kafka_offset BIGINT, kafka_partition INTEGER, kafka_topic VARCHAR(100), correlation_id UUID
);
CREATE INDEX idx_dlq_status ON peer.dlq_events (status);
CREATE INDEX idx_dlq_created_at ON peer.dlq_events (created_at);
CREATE INDEX idx_dlq_source_id ON peer.dlq_events (source_id);
CREATE INDEX idx_dlq_event_type ON peer.dlq_events (event_type);`

// peerColumns are those that both tables have a value for.
const peerColumns = "event_id, event_type, source_table, source_id, event_payload, error_message, stack_trace, " +
	"status, created_at, resolved_at, resolved_by, kafka_offset, kafka_partition, kafka_topic, correlation_id"

// arena is a database with the store's tables and C's, filled with the same rows.
type arena struct {
	url   string
	store *sqlstore.Store
	db    *sql.DB
	total int
	end   time.Time
}

func newArena(b *testing.B) *arena {
	b.Helper()
	a := &arena{url: os.Getenv("REDRIVE_DATABASE"), total: rowCount(b)}
	if a.url == "" {
		a.url = services.Postgres(b, services.PostgresConfig{Durable: true, Settings: map[string]string{
			"shared_buffers": "1GB", "max_wal_size": "8GB", "checkpoint_timeout": "30min", "autovacuum": "off",
		}}).Database(b)
	}
	a.store, a.db = openStore(b, a.url), openDB(b, a.url)
	b.Cleanup(func() { require.NoError(b, a.store.Close()) })
	if there := rowsOf(b, a.db, "SELECT to_regclass('bench_filled')::text"); there[0][0] == nil {
		a.fill(b)
	}
	filled := rowsOf(b, a.db, "SELECT total, ends FROM bench_filled")
	require.Equal(b, int64(a.total), filled[0][0], "rows of the database that REDRIVE_DATABASE names")
	a.end = filled[0][1].(time.Time) //nolint:forcetypeassert // a timestamp
	return a
}

// maxPeer is the maximum number of rows in C's table: with more, each of its queries takes seconds.
const maxPeer = 2_000_000

func (a *arena) fill(b *testing.B) {
	b.Helper()
	end := fill(b, a.store, a.db, a.total)
	statements := []string{peerSchema}
	if a.total <= maxPeer {
		statements = append(statements,
			"INSERT INTO peer.dlq_events ("+peerColumns+") SELECT "+peerColumns+" FROM dlq_events ORDER BY id",
			"VACUUM ANALYZE peer.dlq_events")
	}
	statements = append(statements, "CHECKPOINT",
		fmt.Sprintf("CREATE TABLE bench_filled AS SELECT %d::bigint AS total, '%s'::timestamptz AS ends",
			a.total, end.Format(time.RFC3339Nano)))
	for _, statement := range statements {
		_, err := a.db.ExecContext(b.Context(), statement)
		require.NoError(b, err)
	}
}

// turns runs the two alternately and reports their medians. The time between two rounds is not measured. A nil peer is
// skipped.
func turns(b *testing.B, unit string, per float64, ours, peer func(), between ...func()) {
	b.Helper()
	var mine, theirs []time.Duration
	timed := func(call func()) time.Duration {
		began := time.Now()
		call()
		return time.Since(began)
	}
	for b.Loop() {
		mine = append(mine, timed(ours))
		if peer != nil {
			theirs = append(theirs, timed(peer))
		}
		for _, prepare := range between {
			prepare()
		}
	}
	median := func(d []time.Duration) float64 {
		slices.Sort(d)
		return d[len(d)/2].Seconds()
	}
	report := func(prefix string, d []time.Duration) {
		if per > 0 {
			b.ReportMetric(per/median(d), prefix+unit)
		} else {
			b.ReportMetric(median(d)*1000, prefix+unit)
		}
	}
	report("", mine)
	if peer != nil {
		report("peer-", theirs)
		b.ReportMetric(median(theirs)/median(mine), "x")
	}
	b.ReportMetric(0, "ns/op")
}

// query returns a peer that queries C's table, or nil if the table is not filled or the peer is off.
func (a *arena) query(b *testing.B, query string, args ...any) func() {
	b.Helper()
	if a.total > maxPeer || os.Getenv("REDRIVE_PEER") == "off" {
		return nil
	}
	return func() { require.NotEmpty(b, rowsOf(b, a.db, query, args...)) }
}

// BenchmarkPostgres runs all of them on one filled database.
func BenchmarkPostgres(b *testing.B) {
	a := newArena(b)
	b.Run("Read", a.benchmarkReads)
	b.Run("Claim", a.benchmarkClaim)
	b.Run("Insert", a.benchmarkInsert)
	b.Run("Batch", a.benchmarkBatch)
	b.Run("Search", a.benchmarkSearch)
}

func (a *arena) benchmarkReads(b *testing.B) {
	const page = "SELECT id, event_id, source_id, error_message, created_at, status, retry_count FROM peer.dlq_events "
	row := a.total * 3 / 7
	month := "created_at >= now() - interval '1 month'"
	peers := map[string]string{
		"pending page": page + "WHERE status = 'PENDING' ORDER BY created_at DESC LIMIT 50",
		"deep page by cursor": page +
			fmt.Sprintf("WHERE status = 'PENDING' ORDER BY created_at DESC LIMIT 50 OFFSET %d", a.total/10),
		"CPF invalid, last month: page": page + "WHERE error_message ILIKE '%CPF%' AND " + month +
			" ORDER BY created_at DESC LIMIT 50",
		"CPF invalid, last month: count": "SELECT count(*) FROM peer.dlq_events WHERE error_message ILIKE '%CPF%' AND " +
			month,
		"count of pending": "SELECT count(*) FROM peer.dlq_events WHERE status = 'PENDING'",
		"top causes": `SELECT error_message, COUNT(*) AS occurrences FROM peer.dlq_events WHERE status = 'PENDING'
			GROUP BY error_message ORDER BY occurrences DESC LIMIT 10`,
		"statistics with the hourly curve": `WITH hours AS (SELECT DATE_TRUNC('hour', created_at) AS hour, COUNT(*) AS n FROM peer.dlq_events
				WHERE created_at >= NOW() - INTERVAL '7 days' GROUP BY hour),
			types AS (SELECT event_type, COUNT(*) AS n, COUNT(CASE WHEN status = 'PENDING' THEN 1 END) AS pending FROM peer.dlq_events GROUP BY event_type),
			causes AS (SELECT error_message, COUNT(*) AS n FROM peer.dlq_events WHERE status = 'PENDING' GROUP BY error_message ORDER BY n DESC LIMIT 10),
			mean AS (SELECT AVG(EXTRACT(EPOCH FROM (resolved_at - created_at)) / 3600) FROM peer.dlq_events
				WHERE status = 'RESOLVED' AND resolved_at IS NOT NULL)
			SELECT (SELECT count(*) FROM hours), (SELECT count(*) FROM types), (SELECT count(*) FROM causes), (SELECT * FROM mean)`,
		"by event id":       page + fmt.Sprintf("WHERE event_id = 'event-%d'", row),
		"by source id":      page + fmt.Sprintf("WHERE source_id = 'E-%d'", row),
		"by correlation id": page + fmt.Sprintf("WHERE correlation_id = '%s'", correlation(row)),
	}
	for _, r := range reads(a.total, a.end) {
		peer, ok := peers[r.name]
		if !ok {
			continue
		}
		b.Run(r.name, func(b *testing.B) {
			turns(b, "ms", 0, func() {
				n, err := r.call(b.Context(), a.store)
				require.NoError(b, err)
				require.NotZero(b, n)
			}, a.query(b, peer))
		})
	}
}

// benchmarkSearch searches for a word that one error in 2,000 has, with the trigram index, which exists only here
// because it would slow down inserts.
func (a *arena) benchmarkSearch(b *testing.B) {
	for _, statement := range trigramIndex {
		_, err := a.db.ExecContext(b.Context(), statement)
		require.NoError(b, err)
	}
	defer func() {
		_, err := a.db.ExecContext(context.Background(), "DROP INDEX trigrams; DROP EXTENSION pg_trgm")
		require.NoError(b, err)
	}()
	turns(b, "ms", 0, func() {
		listing, err := a.store.List(b.Context(), dlq.Filter{ErrorText: `Pay/1707"`}, dlq.Page{})
		require.NoError(b, err)
		require.NotEmpty(b, listing.Entries)
	}, a.query(b, `SELECT id, event_id, source_id, error_message, created_at, status FROM peer.dlq_events
		WHERE error_message ILIKE '%Pay/1707"%' ORDER BY created_at DESC LIMIT 50`))
}

// benchmarkClaim claims 500 pending letters for a redrive: the newest third of the table is pending, older entries are
// closed. The store also records the claimer, updates its statistics, and returns complete entries.
func (a *arena) benchmarkClaim(b *testing.B) {
	const size = 500
	page := dlq.Page{Limit: size, Order: driver.OldestFirst}
	filter := dlq.Filter{Statuses: []dlq.Status{dlq.Pending}}
	turns(b, "rows/s", size, func() {
		listing, err := a.store.List(b.Context(), filter, page)
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
	}, a.query(b, `UPDATE peer.dlq_events SET status = 'RETRYING', retry_count = retry_count + 1, last_retry_at = now()
		WHERE id IN (SELECT id FROM peer.dlq_events WHERE status = 'PENDING'
			ORDER BY created_at LIMIT 500 FOR UPDATE SKIP LOCKED) RETURNING id, event_id, event_payload, kafka_topic`))
}

// peerInsert is C's INSERT of one dead letter, in a separate transaction.
const peerInsert = "INSERT INTO peer.dlq_events (event_id, event_type, source_table, source_id, event_payload, " +
	"error_message, stack_trace, kafka_offset, kafka_partition, kafka_topic, correlation_id) VALUES ($1, $2, $3, $4, " +
	"$5, $6, $7, $8, $9, $10, $11)"

func peerRow(e *dlq.Entry) []any {
	return []any{
		e.EventID, e.EventType, e.SourceTable, e.SourceID, string(e.Body.Payload), e.ErrorMessage, e.Body.Trace,
		*e.Origin.Offset, *e.Origin.Partition, e.Origin.Topic, e.CorrelationID,
	}
}

// benchmarkInsert compares 64 callers, each of which waits for its own letter, with inserts into C's table one by one,
// and also with 64 callers.
func (a *arena) benchmarkInsert(b *testing.B) {
	next := unused()
	fresh := func(n int) []*dlq.Entry {
		list := make([]*dlq.Entry, n)
		for i := range list {
			next++
			list[i] = letter(next, time.Now())
		}
		return list
	}
	peer := openDB(b, a.url)
	peer.SetMaxIdleConns(64)
	for _, c := range []struct{ callers, peers int }{{64, 1}, {64, 64}, {256, 1}, {1, 1}} {
		b.Run(fmt.Sprintf("%d callers, peer with %d", c.callers, c.peers), func(b *testing.B) {
			const rows = 1000
			mine, theirs := fresh(rows), fresh(rows)
			turns(b, "rows/s", rows, func() {
				each(c.callers, mine, func(e *dlq.Entry) {
					if _, err := a.store.Put(context.Background(), e); err != nil {
						b.Error(err)
					}
				})
			}, func() {
				each(c.peers, theirs, func(e *dlq.Entry) {
					if _, err := peer.ExecContext(context.Background(), peerInsert, peerRow(e)...); err != nil {
						b.Error(err)
					}
				})
			}, func() { mine, theirs = fresh(rows), fresh(rows) })
		})
	}
}

// unused returns a number above those of all letters so far, including earlier runs on the same database.
func unused() int { return int(time.Now().Unix()) * 10_000 }

// each distributes letters to several callers.
func each(callers int, list []*dlq.Entry, call func(e *dlq.Entry)) {
	var taken atomic.Int64
	var group sync.WaitGroup
	for range callers {
		group.Go(func() {
			for i := taken.Add(1) - 1; i < int64(len(list)); i = taken.Add(1) - 1 {
				call(list[i])
			}
		})
	}
	group.Wait()
}

// benchmarkBatch stores 1,000 letters in one call, compared with COPY of as many rows into C's table.
func (a *arena) benchmarkBatch(b *testing.B) {
	const rows = 1000
	next := unused()
	conn, err := pgx.Connect(b.Context(), a.url)
	require.NoError(b, err)
	defer func() { require.NoError(b, conn.Close(context.Background())) }()
	var list []*dlq.Entry
	make1000 := func() {
		list = list[:0]
		for range rows {
			next++
			list = append(list, letter(next, time.Now()))
		}
	}
	make1000()
	turns(b, "rows/s", rows, func() {
		_, err := a.store.Put(b.Context(), list...)
		require.NoError(b, err)
	}, func() {
		copyPeer(b, conn, list)
	}, make1000)
}

// copyPeer copies letters into C's table.
func copyPeer(b *testing.B, conn *pgx.Conn, list []*dlq.Entry) {
	b.Helper()
	copied := make([][]any, len(list))
	for i, e := range list {
		copied[i] = peerRow(e)
	}
	_, err := conn.CopyFrom(b.Context(), pgx.Identifier{"peer", "dlq_events"}, []string{
		"event_id", "event_type", "source_table", "source_id", "event_payload", "error_message", "stack_trace",
		"kafka_offset",
		"kafka_partition", "kafka_topic", "correlation_id",
	}, pgx.CopyFromRows(copied))
	require.NoError(b, err)
}
