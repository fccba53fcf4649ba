package sqlstore_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
)

// A store of before dlq_hours knew what was closed is brought up to date with what it holds.
func TestMigrate_ClosedByHour(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, url string) {
		t.Helper()
		s := openStore(t, url)
		at := time.Now().UTC().Truncate(time.Hour).Add(-5 * time.Hour)
		receipts, err := s.Put(t.Context(), letter(1, at), letter(2, at.Add(time.Hour)), letter(3, at.Add(2*time.Hour)))
		require.NoError(t, err)
		for i, action := range []dlq.Action{dlq.ActionResolve, dlq.ActionDiscard} {
			_, err = s.Change(t.Context(), dlq.Change{Action: action, IDs: []int64{receipts[i].ID}, Actor: "ana", At: at.Add(90 * time.Minute)})
			require.NoError(t, err)
		}
		before, err := s.Stats(t.Context(), dlq.StatsQuery{})
		require.NoError(t, err)
		require.Equal(t, []dlq.HourCount{
			{Hour: at, Count: 1}, {Hour: at.Add(time.Hour), Count: 1, Closed: 2}, {Hour: at.Add(2 * time.Hour), Count: 1},
		}, before.Hourly)
		require.NoError(t, s.Close())

		db := openDB(t, url)
		down := []string{
			"ALTER TABLE dlq_hours DROP COLUMN closed", "DELETE FROM dlq_schema_version WHERE version_id >= 3",
			"DROP TABLE dlq_mutes", "DROP TABLE dlq_notices",
			"DROP TABLE dlq_services", "DROP TABLE dlq_sessions", "DROP TABLE dlq_tokens", "DROP TABLE dlq_sends",
		}
		if strings.HasPrefix(url, "mysql:") {
			down[0] += ", DROP INDEX idx_dlq_hours_fingerprint"
		} else {
			down = append(down, "DROP INDEX idx_dlq_hours_fingerprint")
		}
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
