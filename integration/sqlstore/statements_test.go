package sqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/sqlstore"
	"github.com/redrive-go/redrive/integration/await"
)

// These are the statements that the users and jobs of the migrating system send to its table.
const (
	statementResolve = `UPDATE dlq_events SET status = 'RESOLVED', resolved_at = NOW(), resolved_by = 'maria' WHERE id ` +
		`= %d`
	statementDiscard = `UPDATE dlq_events SET status = 'DISCARDED' WHERE id = %d`
	statementReopen  = `UPDATE dlq_events SET status = 'PENDING', resolved_at = NULL, resolved_by = NULL WHERE id = %d`
	statementCorrect = `UPDATE dlq_events SET event_payload = jsonb_set(event_payload, '{employee,cpf}', ` +
		`'"529.982.247-25"') WHERE id = %d`
	statementRetried = `UPDATE dlq_events SET retry_count = retry_count + 1, last_retry_at = CURRENT_TIMESTAMP WHERE ` +
		`id = %d`
	statementOld = `UPDATE dlq_events SET status = 'RESOLVED', resolved_at = NOW() - INTERVAL '91 days', resolved_by = 'maria'
WHERE event_type = 'employee-create'`
	statementArchive = `INSERT INTO archive.dlq_events_archive
SELECT * FROM dlq_events
WHERE status = 'RESOLVED' AND resolved_at < NOW() - INTERVAL '90 days'`
	statementPurge = `DELETE FROM dlq_events
WHERE status = 'RESOLVED' AND resolved_at < NOW() - INTERVAL '90 days'`
)

// onLayouts runs a test on a store of either layout.
func onLayouts(t *testing.T, test func(t *testing.T, s *sqlstore.Store, db *sql.DB)) {
	t.Helper()
	for name, params := range map[string]string{"whole": "readers=2", "by month": byMonth} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := with(servers["PostgreSQL"](t), params)
			s := openStore(t, url)
			defer s.Close()
			test(t, s, openDB(t, url[:len(url)-len(params)-1]))
		})
	}
}

// run runs a statement and returns how many rows it reports as changed.
func run(t *testing.T, db *sql.DB, statement string) int64 {
	t.Helper()
	result, err := db.ExecContext(t.Context(), statement)
	require.NoError(t, err)
	n, err := result.RowsAffected()
	require.NoError(t, err)
	return n
}

func lastRecord(t *testing.T, s *sqlstore.Store, id int64) driver.AuditRecord {
	t.Helper()
	records, _, err := s.Audit(t.Context(), dlq.AuditFilter{EntryID: id}, dlq.Page{Order: driver.NewestFirst})
	require.NoError(t, err)
	require.NotEmpty(t, records)
	return records[0]
}

// Statements of others have the same effect on the view as they had on their table, and as the store's own calls have:
// the audit log records them, the statistics count them, and existing data is kept.
func TestDlqEvents_ForeignUpdates(t *testing.T) {
	t.Parallel()
	onLayouts(t, foreignUpdates)
}

func foreignUpdates(t *testing.T, s *sqlstore.Store, db *sql.DB) {
	t.Helper()
	var list []int64
	for n := range 6 {
		receipts, err := s.Put(t.Context(), letter(n, time.Now().Add(-time.Duration(n)*time.Hour)))
		require.NoError(t, err)
		list = append(list, receipts[0].ID)
	}
	get := func(id int64) *dlq.Entry {
		e, err := s.Get(t.Context(), id)
		require.NoError(t, err)
		return e
	}
	for _, step := range []struct {
		statement string
		action    driver.Action
		actor     string
		status    dlq.Status
		by        string
	}{
		{statementResolve, driver.ActionResolve, "maria", dlq.Resolved, "maria"},
		{statementReopen, driver.ActionRestore, "postgres", dlq.Pending, ""},
		{statementDiscard, driver.ActionDiscard, "postgres", dlq.Discarded, "postgres"},
		{statementReopen, driver.ActionRestore, "postgres", dlq.Pending, ""},
		{statementRetried, driver.ActionEdit, "postgres", dlq.Pending, ""},
		{statementCorrect, driver.ActionEdit, "postgres", dlq.Pending, ""},
		{statementResolve, driver.ActionResolve, "maria", dlq.Resolved, "maria"},
	} {
		before := get(list[0])
		require.EqualValues(t, 1, run(t, db, fmt.Sprintf(step.statement, list[0])), step.statement)
		after, record := get(list[0]), lastRecord(t, s, list[0])
		require.Equal(t, step.status, after.Status, step.statement)
		require.Equal(t, step.by, after.ResolvedBy, step.statement)
		require.Equal(t, step.by == "", after.ResolvedAt.IsZero(), step.statement)
		require.Equal(t, before.Version+1, after.Version, step.statement)
		require.Equal(t, step.actor, after.ChangedBy, step.statement)
		require.Equal(t, []any{step.action, step.actor, before.Status, step.status, after.Version},
			[]any{record.Action, record.Actor, record.From, record.To, record.Version}, step.statement)
		require.Contains(t, record.Note, "database user postgres")
		requireCounted(t, s)
	}

	corrected := get(list[0])
	require.Equal(t, 1, corrected.Revision)
	require.Contains(t, string(corrected.Body.Payload), "529.982.247-25")
	require.EqualValues(t, len(corrected.Body.Payload), corrected.Size)
	require.Equal(t, 1, corrected.RedriveCount)
	require.False(t, corrected.LastRedriveAt.IsZero())
	original, err := s.Body(t.Context(), list[0], 0)
	require.NoError(t, err)
	require.Equal(t, letter(0, time.Now()).Body.Payload, original.Payload, "byte for byte")
	require.Equal(t, original.Headers, corrected.Body.Headers)

	results, err := s.Change(t.Context(), driver.Change{
		Action: driver.ActionRedrive, IDs: list[1:2], Actor: "ana", At: time.Now(), Lease: time.Hour,
	})
	require.NoError(t, err)
	require.NoError(t, results[0].Err)
	for statement, want := range map[string]string{
		`UPDATE dlq_events SET error_message = 'x' WHERE id = %d`:                        "error_message of entry",
		`UPDATE dlq_events SET status = 'RETRYING' WHERE id = %d`:                        "only a redrive",
		`UPDATE dlq_events SET status = 'DONE' WHERE id = %d`:                            "status_check",
		`UPDATE dlq_events SET resolved_by = 'maria' WHERE id = %d`:                      "has no resolved_at",
		`UPDATE dlq_events SET event_payload = NULL WHERE id = %d`:                       "cannot be changed so",
		`UPDATE dlq_events SET status = NULL WHERE id = %d`:                              "null value",
		`UPDATE dlq_events SET status = 'RESOLVED' WHERE status = 'RETRYING' OR id = %d`: "outcome awaited",
		`DELETE FROM dlq_events WHERE status = 'RETRYING' OR id = %d`:                    "outcome awaited",
	} {
		_, err := db.ExecContext(t.Context(), fmt.Sprintf(statement, list[2]))
		require.ErrorContains(t, err, want, statement)
	}
	require.Equal(t, dlq.Pending, get(list[2]).Status, "a refused statement changes nothing")
	requireCounted(t, s)
}

// After their purge, in the order of the text or in the right order, the removed entries are in the archive once, with
// their earlier revisions, and can be restored unchanged.
func TestDlqEvents_ForeignPurge(t *testing.T) {
	t.Parallel()
	for name, statements := range map[string][]string{
		"archive and delete":         {statementArchive, statementPurge},
		"archive twice, then delete": {statementArchive, statementArchive, statementPurge},
		"delete and archive":         {statementPurge, statementArchive},
		"delete only":                {statementPurge},
		"archive, our purge":         {statementArchive, statementArchive},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onLayouts(t, func(t *testing.T, s *sqlstore.Store, db *sql.DB) {
				t.Helper()
				foreignPurge(t, s, db, statements)
			})
		})
	}
}

func foreignPurge(t *testing.T, s *sqlstore.Store, db *sql.DB, statements []string) {
	t.Helper()
	before := map[int64]*dlq.Entry{}
	for n := range 12 {
		_, err := s.Put(t.Context(), letter(n, time.Now().Add(-time.Duration(n)*time.Hour)))
		require.NoError(t, err)
	}
	var first int64
	require.NoError(t, db.QueryRowContext(t.Context(),
		"SELECT min(id) FROM dlq_events WHERE event_type = 'employee-create'").Scan(&first))
	run(t, db, fmt.Sprintf(statementCorrect, first))
	require.EqualValues(t, 4, run(t, db, statementOld))
	listing, err := s.List(t.Context(), dlq.Filter{Statuses: []dlq.Status{dlq.Resolved}}, dlq.Page{})
	require.NoError(t, err)
	require.Len(t, listing.Entries, 4)
	for _, e := range listing.Entries {
		before[e.ID], err = s.Get(t.Context(), e.ID)
		require.NoError(t, err)
	}

	for i, statement := range statements {
		want := int64(4)
		if i > 0 && statements[i-1] == statementPurge {
			want = 0
		}
		require.Equal(t, want, run(t, db, statement), statement)
	}
	if statements[len(statements)-1] == statementArchive && statements[0] == statementArchive {
		n, err := s.Purge(t.Context(), dlq.Purge{
			Actor: "ana", ClosedBefore: time.Now().AddDate(0, 0, -90),
			At: time.Now(),
		})
		require.NoError(t, err)
		require.Equal(t, 4, n)
	}
	requireCounted(t, s)
	var archived int
	require.NoError(t, db.QueryRowContext(t.Context(),
		"SELECT count(*) FROM archive.dlq_events_archive").Scan(&archived))
	require.Equal(t, 4, archived)
	for id := range before {
		_, err := s.Get(t.Context(), id)
		require.ErrorIs(t, err, dlq.ErrNotFound)
		require.Equal(t, driver.ActionPurge, lastRecord(t, s, id).Action)
	}

	var ids []int64
	for id := range maps.Keys(before) {
		ids = append(ids, id)
	}
	back, err := s.Unarchive(t.Context(), dlq.By{Actor: "ana"}, time.Now(), ids...)
	require.NoError(t, err)
	require.ElementsMatch(t, ids, back)
	for id, was := range before {
		is, err := s.Get(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, was, is)
	}
	original, err := s.Body(t.Context(), first, 0)
	require.NoError(t, err)
	require.NotContains(t, string(original.Payload), "529.982.247-25")
	requireCounted(t, s)
}

// A role without other rights can send its statements with any search_path; the audit log has its name.
func TestDlqEvents_AsAnotherRole(t *testing.T) {
	t.Parallel()
	url := servers["PostgreSQL"](t)
	s, db := openStore(t, url), openDB(t, url)
	defer s.Close()
	receipts, err := s.Put(t.Context(), letter(1, time.Now()), letter(2, time.Now()))
	require.NoError(t, err)
	role := "payroll_" + url[len(url)-len("?sslmode=disable")-6:len(url)-len("?sslmode=disable")]
	for _, statement := range []string{
		"CREATE ROLE " + role + " LOGIN",
		"GRANT SELECT, UPDATE, DELETE ON dlq_events TO " + role,
		"ALTER ROLE " + role + " SET search_path = pg_temp, pg_catalog",
	} {
		_, err := db.ExecContext(t.Context(), statement)
		require.NoError(t, err)
	}
	t.Cleanup(func() {
		_, err := db.ExecContext(context.Background(), "DROP OWNED BY "+role+"; DROP ROLE "+role)
		require.NoError(t, err)
	})
	other := openDB(t, with(url, "user="+role))
	conn, err := other.Conn(t.Context())
	require.NoError(t, err)
	defer conn.Close()
	for _, statement := range []string{
		"CREATE TEMPORARY TABLE dlq_entries (LIKE public.dlq_events)",
		fmt.Sprintf("UPDATE public.dlq_events SET status = 'DISCARDED' WHERE id = %d", receipts[0].ID),
		fmt.Sprintf("DELETE FROM public.dlq_events WHERE id = %d", receipts[1].ID),
	} {
		_, err := conn.ExecContext(t.Context(), statement)
		require.NoError(t, err, statement)
	}
	e, err := s.Get(t.Context(), receipts[0].ID)
	require.NoError(t, err)
	require.Equal(t, []string{role, role}, []string{e.ResolvedBy, lastRecord(t, s, e.ID).Actor})
	require.Equal(t, role, lastRecord(t, s, receipts[1].ID).Actor)
	_, err = conn.ExecContext(t.Context(), "DELETE FROM public.dlq_entries")
	require.ErrorContains(t, err, "permission denied")
	requireCounted(t, s)
}

// A row that another session changes while a statement waits for it is skipped, like a row of a table that no longer
// matches.
func TestDlqEvents_ChangedMeanwhile(t *testing.T) {
	t.Parallel()
	url := servers["PostgreSQL"](t)
	s, db := openStore(t, url), openDB(t, url)
	defer s.Close()
	receipts, err := s.Put(t.Context(), letter(1, time.Now()))
	require.NoError(t, err)
	id := receipts[0].ID
	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	_, err = tx.ExecContext(t.Context(), fmt.Sprintf(statementResolve, id))
	require.NoError(t, err)
	type outcome struct {
		n   int64
		err error
	}
	late := make(chan outcome, 2)
	for _, statement := range []string{
		"UPDATE dlq_events SET status = 'DISCARDED' WHERE status = 'PENDING'",
		"DELETE FROM dlq_events WHERE status = 'PENDING'",
	} {
		go func() {
			var n int64
			result, err := db.ExecContext(context.Background(), statement)
			if err == nil {
				n, err = result.RowsAffected()
			}
			late <- outcome{n, err}
		}()
	}
	await.True(t, func() bool {
		return len(rowsOf(t, db, "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = "+
			"'Lock'")) == 2
	}, "both wait for the row")
	require.NoError(t, tx.Commit())
	for range 2 {
		require.Equal(t, outcome{}, <-late)
	}
	e, err := s.Get(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, dlq.Resolved, e.Status)
	requireCounted(t, s)
}
