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

// A store of a version in which dlq_hours did not count closed entries and repeated deaths is upgraded, and its data is
// counted.
func TestMigrate_ClosedByHour(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, url string) {
		t.Helper()
		s := openStore(t, url)
		at := time.Now().UTC().Truncate(time.Hour).Add(-5 * time.Hour)
		receipts, err := s.Put(t.Context(), letter(1, at), letter(2, at.Add(time.Hour)), letter(3, at.Add(2*time.Hour)))
		require.NoError(t, err)
		for i, action := range []driver.Action{driver.ActionResolve, driver.ActionDiscard} {
			_, err = s.Change(t.Context(), driver.Change{
				Action: action, IDs: []int64{receipts[i].ID}, Actor: "ana",
				At: at.Add(90 * time.Minute),
			})
			require.NoError(t, err)
		}
		for _, action := range []driver.Action{driver.ActionRedrive, driver.ActionPublished} {
			_, err = s.Change(t.Context(), driver.Change{
				Action: action, IDs: []int64{receipts[2].ID}, Actor: "ana", At: at.Add(3 * time.Hour), Lease: time.Hour,
			})
			require.NoError(t, err)
		}
		sent, err := s.Get(t.Context(), receipts[2].ID)
		require.NoError(t, err)
		_, err = s.Put(t.Context(), letter(3, at.Add(3*time.Hour+time.Minute), func(d *envelope.DeadLetter) {
			d.Message = dlq.RedriveMessage(sent)
		}))
		require.NoError(t, err)
		before, err := s.Stats(t.Context(), dlq.StatsQuery{})
		require.NoError(t, err)
		require.Equal(t, []driver.HourCount{
			{Hour: at, Count: 1},
			{Hour: at.Add(time.Hour), Count: 1, Closed: 2},
			{Hour: at.Add(2 * time.Hour), Count: 1},
			{Hour: at.Add(3 * time.Hour), DiedAgain: 1},
		}, before.Hourly)
		require.NoError(t, s.Close())

		db := openDB(t, url)
		down := []string{
			"ALTER TABLE dlq_hours DROP COLUMN died_again, DROP COLUMN closed",
			"DELETE FROM dlq_schema_version WHERE version_id >= 3",
			"DROP TABLE dlq_mutes", "DROP TABLE dlq_notices",
			"DROP TABLE dlq_services", "DROP TABLE dlq_sessions", "DROP TABLE dlq_tokens", "DROP TABLE dlq_sends",
		}
		if strings.HasPrefix(url, "mysql:") {
			down[0] += ", DROP INDEX idx_dlq_hours_fingerprint"
			down = append(down, "ALTER TABLE dlq_events_archive DROP COLUMN redrive_to")
		} else {
			down = append(down, "DROP INDEX idx_dlq_hours_fingerprint", "DROP VIEW dlq_events",
				"DROP FUNCTION dlq_put_letters", "DROP FUNCTION dlq_put_letter",
				"ALTER TABLE archive.dlq_events_archive DROP COLUMN redrive_to")
		}
		down = append(down, "ALTER TABLE dlq_entries DROP COLUMN redrive_to")
		for _, statement := range down {
			_, err := db.ExecContext(t.Context(), statement)
			require.NoError(t, err)
		}
		s = openStore(t, url)
		defer s.Close()
		after, err := s.Stats(t.Context(), dlq.StatsQuery{})
		require.NoError(t, err)
		require.Equal(t, before.Hourly, after.Hourly)
	})
}
