package sqlstore_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/integration/services"
)

// BenchmarkPostgres_DropMonth removes a partition of closed rows, with its keys, compared with a DELETE of as many rows
// from C's original table. It runs once, because the rows are deleted then. Neither archives. "drop-ms" is the time
// until the partition is gone, and "vacuum-ms" the time to reclaim the space of the deleted rows, which dropping a
// partition does at once.
func BenchmarkPostgres_DropMonth(b *testing.B) {
	url := services.Postgres(b, services.PostgresConfig{Durable: true, Settings: map[string]string{
		"shared_buffers": "1GB", "max_wal_size": "8GB", "checkpoint_timeout": "30min", "autovacuum": "off",
	}}).Database(b)
	a := &arena{url: url, total: rowCount(b), store: openStore(b, url), db: openDB(b, url)}
	a.fill(b)
	require.NoError(b, a.store.Close())
	for _, statement := range []string{
		"UPDATE dlq_entries SET status = 'RESOLVED', resolved_at = now() - interval '1 day' WHERE status <> 'RESOLVED'",
		"UPDATE peer.dlq_events SET status = 'RESOLVED', resolved_at = now() - interval '1 day' WHERE status <> 'RESOLVED'",
		"VACUUM ANALYZE",
		"CHECKPOINT",
	} {
		_, err := a.db.ExecContext(b.Context(), statement)
		require.NoError(b, err)
	}
	s := openStore(b, with(url, byMonth))
	defer s.Close()
	require.NoError(b, s.Recount(b.Context()))

	dropped := make(chan time.Duration, 1)
	go func() { dropped <- dropTime(b.Context(), a.db) }()
	began := time.Now()
	n, err := s.PurgeMonths(b.Context(), dlq.Purge{
		ClosedBefore: time.Now(), At: time.Now(), Actor: "bench",
		SkipArchive: true,
	})
	ours := time.Since(began)
	require.NoError(b, err)
	require.Equal(b, a.total, n)
	drop := <-dropped
	began = time.Now()
	result, err := a.db.ExecContext(b.Context(),
		"DELETE FROM peer.dlq_events WHERE status = 'RESOLVED' AND resolved_at < now()")
	peer := time.Since(began)
	require.NoError(b, err)
	deleted, err := result.RowsAffected()
	require.NoError(b, err)
	require.Equal(b, int64(a.total), deleted)

	began = time.Now()
	_, err = a.db.ExecContext(b.Context(), "VACUUM peer.dlq_events")
	vacuum := time.Since(began)
	require.NoError(b, err)

	b.ReportMetric(ours.Seconds()*1000, "ms")
	b.ReportMetric(drop.Seconds()*1000, "drop-ms")
	b.ReportMetric(peer.Seconds()*1000, "peer-ms")
	b.ReportMetric(vacuum.Seconds()*1000, "vacuum-ms")
	b.ReportMetric(peer.Seconds()/drop.Seconds(), "x-drop")
	b.ReportMetric((peer+vacuum).Seconds()/ours.Seconds(), "x-with-vacuum")
	b.ReportMetric(0, "ns/op")
}

// dropTime returns how long it takes until the partition is dropped.
func dropTime(ctx context.Context, db *sql.DB) time.Duration {
	began := time.Now()
	for there := true; there && ctx.Err() == nil; {
		if db.QueryRowContext(ctx, "SELECT to_regclass('dlq_entries_before') IS NOT NULL").Scan(&there) != nil {
			return 0
		}
	}
	return time.Since(began)
}
