package sqlstore_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/envelope"
)

// The audit log cannot be changed, not even by the owner of the database.
func TestAudit_AppendOnly(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, url string) {
		t.Helper()
		s, db := openStore(t, url), openDB(t, url)
		defer s.Close()
		receipts, err := s.Put(t.Context(), letter(1, time.Now()))
		require.NoError(t, err)
		_, err = s.Change(t.Context(), driver.Change{
			Action: driver.ActionDiscard, IDs: []int64{receipts[0].ID}, Actor: "eve",
			At: time.Now(),
		})
		require.NoError(t, err)
		attempts := []string{"UPDATE dlq_audit SET actor = 'ana'", "DELETE FROM dlq_audit"}
		if strings.HasPrefix(url, "postgres") {
			attempts = append(attempts, "TRUNCATE dlq_audit")
		}
		for _, attempt := range attempts {
			_, err := db.ExecContext(t.Context(), attempt)
			require.ErrorContains(t, err, "append-only")
		}
		require.Len(t, rowsOf(t, db, "SELECT 1 FROM dlq_audit WHERE actor = 'eve'"), 1)
	})
}

// Purged entries are in the archive with all columns, byte for byte, and a purge that cannot archive removes nothing.
func TestPurge_ArchivesOrRemovesNothing(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, url string) {
		t.Helper()
		s, db := openStore(t, url), openDB(t, url)
		defer s.Close()
		archive, away := "dlq_events_archive", "ALTER TABLE dlq_events_archive RENAME TO gone"
		back := "ALTER TABLE gone RENAME TO dlq_events_archive"
		if strings.HasPrefix(url, "postgres") {
			archive = "archive.dlq_events_archive"
			away, back = strings.Replace(away, "dlq_", "archive.dlq_", 1), strings.Replace(back, "gone", "archive.gone", 1)
		}
		at := time.Now()
		receipts, err := s.Put(t.Context(), letter(1, at,
			func(d *envelope.DeadLetter) { d.Message.Payload = []byte("\xff\x00") }), letter(2, at), letter(3, at))
		require.NoError(t, err)
		closed := []int64{receipts[0].ID, receipts[1].ID}
		_, err = s.Change(t.Context(), driver.Change{Action: driver.ActionResolve, IDs: closed, Actor: "ana", At: at})
		require.NoError(t, err)
		const rows = "SELECT * FROM dlq_events ORDER BY status = 'PENDING', id"
		want := rowsOf(t, db, rows)
		purge := dlq.Purge{ClosedBefore: at.Add(time.Minute), Actor: "cron", At: at}

		_, err = db.ExecContext(t.Context(), away)
		require.NoError(t, err)
		_, err = s.Purge(t.Context(), purge)
		require.ErrorContains(t, err, "archive")
		require.Equal(t, want, rowsOf(t, db, rows))
		_, err = db.ExecContext(t.Context(), back)
		require.NoError(t, err)

		n, err := s.Purge(t.Context(), purge)
		require.NoError(t, err)
		require.Equal(t, len(closed), n)
		require.Equal(t, want[2:], rowsOf(t, db, rows), "pending entries are not purged")
		archived := rowsOf(t, db, "SELECT * FROM "+archive+" ORDER BY id")
		require.Len(t, archived, len(closed))
		for i, row := range archived {
			require.Equal(t, want[i], row[:len(row)-1])
			require.NotEmpty(t, row[len(row)-1], "the time when it was archived")
		}
	})
}
