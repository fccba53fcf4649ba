package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
)

// A redrive whose outcome will not come is ended by hand, with a note, on the store and through a server; an entry that
// is not RETRYING is refused.
func TestRelease(t *testing.T) {
	for name, served := range map[string]bool{"store": false, "server": true} {
		t.Run(name, func(t *testing.T) {
			hermetic(t)
			t.Chdir(t.TempDir())
			seed(t, "dead.db")
			out(t, 2)
			t.Setenv("REDRIVE_STORE", "dead.db")
			if served {
				seedQueue(t, "queue.db")
				t.Setenv("REDRIVE_STORE", "")
				t.Setenv("REDRIVE_SERVER", serveSeed(t, ""))
			}
			status := func(id string) string {
				code, stdout, stderr := command(t, "dlq", "show", id, "--jq", ".status")
				require.Equal(t, exitOK, code, stderr)
				return stdout
			}
			require.Equal(t, "RETRYING\n", status("2"))
			code, _, stderr := command(t, "dlq", "release", "2")
			require.Equal(t, exitUsage, code)
			require.Contains(t, stderr, "--note is required")
			require.Equal(t, "RETRYING\n", status("2"), "nothing was done")
			code, _, stderr = command(t, "dlq", "release", "2", "--note", "no consumer any more")
			require.Equal(t, exitOK, code, stderr)
			require.Contains(t, stderr, "1 released")
			require.Equal(t, "PENDING\n", status("2"))
			_, stdout, _ := command(t, "audit", "list", "--entry", "2", "--action", string(driver.ActionReleaseByHand),
				"--jq", ".[].note")
			require.Equal(t, "no consumer any more\n", stdout)
			code, _, stderr = command(t, "dlq", "release", "2", "--note", "again")
			require.Equal(t, exitRefused, code, stderr)
		})
	}
}

// out leaves an entry of the store dead.db RETRYING, like a redrive whose message is never read.
func out(t *testing.T, id int64) {
	t.Helper()
	letters, err := dlq.Open(t.Context(), "sqlite:dead.db", dlq.WithoutSpool())
	require.NoError(t, err)
	at := time.Now()
	results, err := letters.Store().Change(t.Context(), driver.Change{
		Action: driver.ActionRedrive, IDs: []int64{id}, Actor: "bob", At: at, Lease: time.Hour,
	})
	require.NoError(t, err)
	require.NoError(t, results[0].Err)
	require.NoError(t, letters.Close())
}
