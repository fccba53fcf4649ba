package sqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/sqlstore"
	"github.com/redrive-go/redrive/integration/await"
)

// This is the insert of a consumer that has not migrated yet.
const theirInsert = "INSERT INTO dlq_events (event_id, event_type, event_payload, error_message)" +
	" VALUES ('late', 'EmployeeHired', '{}', 'late')"

var (
	theirRows = map[string]int64{"PENDING": 400, "RESOLVED": 50, "DISCARDED": 50}
	lateRows  = map[string]int64{"PENDING": 401, "RESOLVED": 50, "DISCARDED": 50}
)

func theirDatabase(t *testing.T) (url string, db *sql.DB) {
	t.Helper()
	url = servers["PostgreSQL"](t)
	db = openDB(t, url)
	_, err := db.ExecContext(t.Context(), theirTables)
	require.NoError(t, err)
	return url, db
}

// Wherever a takeover fails, inserts into the table still work, no row is lost, and the next call completes it.
func TestTakeOver_Fails(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ obstacle, gone string }{
		"before anything is renamed": {
			"CREATE TABLE dlq_events_before_redrive (a INTEGER)", "DROP TABLE dlq_events_before_redrive",
		},
		"at the first table": {"CREATE TABLE dlq_bodies (a INTEGER)", "DROP TABLE dlq_bodies"},
		"at the archive's": {
			"CREATE TABLE archive.dlq_bodies_archive (a INTEGER); CREATE INDEX idx_dlq_audit_at ON archive.dlq_bodies_archive " +
				"(a);CREATE VIEW dlq_groups AS SELECT 1",
			"DROP VIEW dlq_groups",
		},
		"after the view was created": {"CREATE TABLE dlq_runs (a INTEGER)", "DROP TABLE dlq_runs"},
		"at the last": {"CREATE FUNCTION dlq_count_later(BIGINT, TEXT, TEXT, TEXT," +
			" TIMESTAMPTZ, TIMESTAMPTZ, TEXT, TIMESTAMPTZ, TEXT, TIMESTAMPTZ)" +
			" RETURNS TEXT LANGUAGE sql AS 'SELECT 1::text'", "DROP FUNCTION dlq_count_later"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, db := theirDatabase(t)
			run(t, db, tt.obstacle)
			for range 2 {
				_, err := sqlstore.TakeOver(t.Context(), url, "dlq_events", dlq.By{Actor: "ana"})
				require.Error(t, err)
			}
			run(t, db, theirInsert)
			run(t, db, tt.gone)
			done, err := sqlstore.TakeOver(t.Context(), url, "dlq_events", dlq.By{Actor: "ana"})
			require.NoError(t, err)
			require.Equal(t, lateRows, done.Before)
			require.Equal(t, lateRows, done.After)
		})
	}
}

// Rows that were deleted through the view, or purged, stay deleted when the command is repeated, and only new ones are
// taken over.
func TestTakeOver_KeepsDeletions(t *testing.T) {
	t.Parallel()
	url, db := theirDatabase(t)
	takeOver := func() *sqlstore.Takeover {
		done, err := sqlstore.TakeOver(t.Context(), url, "dlq_events", dlq.By{Actor: "ana"})
		require.NoError(t, err)
		return done
	}
	takeOver()
	s := openStore(t, url)
	defer s.Close()
	require.EqualValues(t, 1, run(t, db, "DELETE FROM dlq_events WHERE event_id = 'e-2'"))
	require.EqualValues(t, 50, run(t, db, "UPDATE dlq_events SET status = 'RESOLVED', resolved_at = NOW() - "+
		"INTERVAL '91 days' WHERE status = 'PENDING' AND event_id LIKE 'e-%9'"))
	at := time.Now()
	purged, err := s.Purge(t.Context(), dlq.Purge{ClosedBefore: at.AddDate(0, 0, -90), Actor: "nightly", At: at})
	require.NoError(t, err)
	require.Equal(t, 50, purged)
	run(t, db, theirInsert)
	done := takeOver()
	require.Equal(t, []int64{1, 500}, []int64{done.Stored, done.Seen})
	require.Equal(t, lateRows, done.Before)
	require.Equal(t, lateRows, done.After, "rows with an archived entry count")
	require.Equal(t, [][]any{{int64(450)}}, rowsOf(t, db, "SELECT count(*) FROM dlq_events"))
}

// Once the table has its name back, the store that was left is not continued: it has the rows as they were before.
func TestTakeOver_AfterGoingBack(t *testing.T) {
	t.Parallel()
	for name, back := range map[string]string{
		"complete": "ALTER VIEW dlq_events RENAME TO dlq_events_of_redrive; " +
			"ALTER TABLE dlq_events_before_redrive RENAME TO dlq_events",
		"only the view": "ALTER VIEW dlq_events RENAME TO dlq_events_of_redrive",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, db := theirDatabase(t)
			_, err := sqlstore.TakeOver(t.Context(), url, "dlq_events", dlq.By{Actor: "ana"})
			require.NoError(t, err)
			run(t, db, back)
			for range 2 {
				_, err = sqlstore.TakeOver(t.Context(), url, "dlq_events", dlq.By{Actor: "ana"})
				require.Error(t, err)
			}
			require.ErrorIs(t, err, dlq.ErrInvalid)
			require.ErrorContains(t, err, "use another schema")
			require.EqualValues(t, 1, run(t, db, theirInsert), "consumers still insert")
			done, err := sqlstore.TakeOver(t.Context(), with(url, "schema=redrive"), "dlq_events", dlq.By{Actor: "ana"})
			require.NoError(t, err)
			require.Equal(t, lateRows, done.Before)
			require.Equal(t, lateRows, done.After)
		})
	}
}

// PostgreSQL ends a session whose result waits unread for longer than tcp_user_timeout, which we set to 30 s, and
// storing rows may take longer: the takeover of a busy database used to fail with "connection reset by peer".
func TestTakeOver_StoringTakesLongerThanAResultMayWait(t *testing.T) {
	t.Parallel()
	url, db := theirDatabase(t)
	run(t, db, "UPDATE dlq_events SET event_payload = jsonb_build_object('large', repeat(md5(id::text), 2000))")
	run(t, db, "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET tcp_user_timeout = 1000', current_database()); "+
		"END $$")
	target := with(url, "schema=redrive")
	require.NoError(t, openStore(t, target).Close())
	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	_, err = tx.ExecContext(t.Context(), "LOCK TABLE redrive.dlq_entries IN SHARE MODE")
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() {
		done, err := sqlstore.TakeOver(t.Context(), target, "public.dlq_events", dlq.By{Actor: "ana"})
		if err == nil && done.Stored != 500 {
			err = fmt.Errorf("stored %d", done.Stored)
		}
		ended <- err
	}()
	await.True(t, func() bool {
		return fmt.Sprint(rowsOf(t, db, "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND relation = "+
			"'redrive.dlq_entries'::regclass")) == "[[true]]"
	}, "storing waits")
	_, err = tx.ExecContext(t.Context(), "SELECT pg_sleep(4)")
	require.NoError(t, err)
	require.NoError(t, tx.Commit())
	require.NoError(t, <-ended)
}

// A status that no entry can have is named before anything is renamed, not after half of the rows.
func TestTakeOver_ForeignStatus(t *testing.T) {
	t.Parallel()
	url, db := theirDatabase(t)
	run(t, db, "ALTER TABLE dlq_events DROP CONSTRAINT dlq_events_status_check; "+
		"UPDATE dlq_events SET status = 'FAILED' WHERE id IN (300, 400); UPDATE dlq_events SET status = ' pending' "+
		"WHERE id = 1")
	for _, target := range []string{url, with(url, "schema=redrive")} {
		_, err := sqlstore.TakeOver(t.Context(), target, "dlq_events", dlq.By{Actor: "ana"})
		require.ErrorIs(t, err, dlq.ErrInvalid)
		require.ErrorContains(t, err, `2 of its rows have the status "FAILED"`)
		var kind string
		require.NoError(t, db.QueryRowContext(t.Context(),
			"SELECT relkind FROM pg_class WHERE oid = to_regclass('dlq_events')").Scan(&kind))
		require.Equal(t, "r", kind, "the table is still where it was")
	}
	run(t, db, "UPDATE dlq_events SET status = 'PENDING' WHERE status = 'FAILED'")
	done, err := sqlstore.TakeOver(t.Context(), url, "dlq_events", dlq.By{Actor: "ana"})
	require.NoError(t, err)
	require.EqualValues(t, 500, done.Stored)
}

// Concurrent calls, and processes that open the store meanwhile, take over every row once.
func TestTakeOver_Concurrently(t *testing.T) {
	t.Parallel()
	url, db := theirDatabase(t)
	var working sync.WaitGroup
	stored := make([]int64, 3)
	faults := make([]error, 3)
	for i := range stored {
		working.Go(func() {
			done, err := sqlstore.TakeOver(t.Context(), url, "dlq_events", dlq.By{Actor: "ana"})
			if faults[i] = err; err == nil {
				stored[i] = done.Stored
			}
		})
	}
	for range 3 {
		working.Go(func() {
			if s, err := sqlstore.Open(t.Context(), url); err == nil { // it may find the old table
				_ = s.Close()
			}
		})
	}
	working.Wait()
	total := int64(0)
	for i := range stored {
		require.NoError(t, faults[i])
		total += stored[i]
	}
	require.EqualValues(t, 500, total)
	require.Equal(t, [][]any{{int64(500)}}, rowsOf(t, db, "SELECT count(*) FROM dlq_events"))
	s := openStore(t, url)
	defer s.Close()
	requireCounted(t, s)

	// A server uses the store, consumers insert rows, and the command is repeated.
	run(t, db, theirInsert)
	done, err := sqlstore.TakeOver(t.Context(), url, "dlq_events", dlq.By{Actor: "ana"})
	require.NoError(t, err)
	require.Equal(t, lateRows, done.After)
	n, err := s.Count(t.Context(), dlq.Filter{}, 0)
	require.NoError(t, err)
	require.EqualValues(t, 501, n)
}

// A store in another schema does not change the table, its indexes and its archive.
func TestTakeOver_IntoAnotherSchema(t *testing.T) {
	t.Parallel()
	url, db := theirDatabase(t)
	names := "SELECT relname FROM pg_class WHERE relnamespace IN ('public'::regnamespace, 'archive'::regnamespace) " +
		"ORDER BY 1"
	before := rowsOf(t, db, names)
	for _, table := range []string{"dlq_events", "public.dlq_events"} {
		done, err := sqlstore.TakeOver(t.Context(), with(url, "schema=redrive"), table, dlq.By{Actor: "ana"})
		require.NoError(t, err)
		require.Equal(t, "public.dlq_events", done.Kept)
		require.Equal(t, theirRows, done.Before)
		require.Equal(t, theirRows, done.After)
	}
	require.Equal(t, before, rowsOf(t, db, names))
	run(t, db, theirInsert)
	done, err := sqlstore.TakeOver(t.Context(), with(url, "schema=redrive"), "dlq_events", dlq.By{Actor: "ana"})
	require.NoError(t, err)
	require.Equal(t, []int64{1, 500}, []int64{done.Stored, done.Seen})
	require.Equal(t, lateRows, done.After)
	_, err = sqlstore.TakeOver(t.Context(), with(url, "schema=redrive"), "other.dlq_events", dlq.By{Actor: "ana"})
	require.ErrorIs(t, err, dlq.ErrNotFound)
}

// Users who could read and change the table can do the same with the view.
func TestTakeOver_KeepsGrants(t *testing.T) {
	t.Parallel()
	url, db := theirDatabase(t)
	_, err := sqlstore.Open(t.Context(), url)
	require.ErrorContains(t, err, "--from-table dlq_events", "the error names the remedy")
	database, _, _ := strings.Cut(url[strings.LastIndex(url, "/")+1:], "?")
	role := "consumer_" + database
	run(t, db, "CREATE ROLE "+role+" LOGIN; GRANT SELECT, INSERT, UPDATE, DELETE ON dlq_events TO "+role+
		"; GRANT USAGE ON SEQUENCE dlq_events_id_seq TO "+role+"; GRANT USAGE ON SCHEMA archive TO "+role+
		"; GRANT INSERT ON archive.dlq_events_archive TO "+role)
	t.Cleanup(func() {
		_, err := db.ExecContext(context.Background(), "DROP OWNED BY "+role+"; DROP ROLE "+role)
		require.NoError(t, err)
	})
	_, err = sqlstore.TakeOver(t.Context(), url, "dlq_events", dlq.By{Actor: "ana"})
	require.NoError(t, err)
	consumer := openDB(t, with(url, "user="+role))
	require.EqualValues(t, 1, run(t, consumer, theirInsert))
	require.EqualValues(t, 1, run(t, consumer,
		"UPDATE dlq_events SET status = 'RESOLVED', resolved_at = NOW() - INTERVAL '91 days',"+
			" resolved_by = 'maria' WHERE event_id = 'e-2'"))
	require.EqualValues(t, 1, run(t, consumer, statementArchive))
	require.EqualValues(t, 1, run(t, consumer, statementPurge))
	require.Len(t, rowsOf(t, consumer, "SELECT 1 FROM dlq_events"), 499)
}
