package sqlstore_test

import (
	"context"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq/sqlstore"
	"github.com/redrive-go/redrive/integration/services"
)

// MySQL commits the table of applied migrations before its first row, so a process that is killed in between leaves it
// empty. No process could have opened the store again.
func TestMigration_KilledAtItsFirstRow(t *testing.T) {
	t.Parallel()
	for name, server := range map[string]func(testing.TB) *services.MySQLServer{
		"MariaDB": services.SharedMariaDB, "MySQL": services.SharedMySQL,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := server(t).Database(t)
			require.NoError(t, openStore(t, url).Close())
			require.EqualValues(t, 2, run(t, openDB(t, url), "DELETE FROM dlq_schema_version"))
			for range 2 {
				require.NoError(t, openStore(t, url).Close())
			}
		})
	}
}

// PostgreSQL finishes the statement of a process that was killed, but releases the lock of its other session at once.
// The next process migrates while the tables of the first one still keep their names.
func TestMigration_Killed(t *testing.T) {
	t.Parallel()
	url := servers["PostgreSQL"](t)
	db := openDB(t, url)
	// The migration stops in the middle until the test releases a lock.
	run(t, db, `CREATE FUNCTION pause() RETURNS event_trigger LANGUAGE plpgsql AS
		$$ BEGIN PERFORM pg_advisory_xact_lock_shared(4711); END $$`)
	run(t, db, "CREATE EVENT TRIGGER pause ON ddl_command_end WHEN TAG IN ('CREATE VIEW') EXECUTE FUNCTION pause()")
	hold, err := db.Conn(t.Context())
	require.NoError(t, err)
	_, err = hold.ExecContext(t.Context(), "SELECT pg_advisory_lock(4711)")
	require.NoError(t, err)
	waiting := func(n int) func() bool {
		return func() bool {
			return len(rowsOf(t, db, "SELECT 1 FROM pg_stat_activity WHERE datname = current_database()"+
				" AND wait_event_type = 'Lock'")) >= n
		}
	}

	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestPurge_Child$")
	child.Env = append(os.Environ(), "REDRIVE_PURGE_CHILD="+url)
	require.NoError(t, child.Start())
	waitFor(t, "the migration", waiting(1))
	require.NoError(t, child.Process.Kill())
	require.Error(t, child.Wait())

	next := make(chan error, 1)
	go func() {
		s, err := sqlstore.Open(context.WithoutCancel(t.Context()), url)
		if err == nil {
			err = s.Close()
		}
		next <- err
	}()
	waitFor(t, "the next process", waiting(2))
	_, err = hold.ExecContext(t.Context(), "SELECT pg_advisory_unlock(4711)")
	require.NoError(t, err)
	require.NoError(t, hold.Close())
	require.NoError(t, <-next)
}
