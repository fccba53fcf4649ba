package sqlstore_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/sqlstore"
)

// TestPurge_Child is not a test, but the process that TestPurge_Killed starts and kills. It purges in small
// transactions, and prints when each begins.
func TestPurge_Child(t *testing.T) {
	url := os.Getenv("REDRIVE_PURGE_CHILD")
	if url == "" {
		t.Skip("runs as a child process of another test: REDRIVE_PURGE_CHILD is not set")
	}
	s, err := sqlstore.Open(context.Background(), url)
	require.NoError(t, err)
	for n := purgeSize; n == purgeSize; {
		fmt.Println("purging")
		n, err = s.Purge(context.Background(),
			dlq.Purge{ClosedBefore: time.Now(), At: time.Now(), Actor: "cron", Limit: purgeSize})
		require.NoError(t, err)
	}
	require.NoError(t, s.Close())
}

const purgeSize = 40

// If a process is repeatedly killed with kill -9 during a purge, each letter is complete in either the table or the
// archive.
func TestPurge_Killed(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, url string) {
		t.Helper()
		const letters, rounds = 600, 8
		s, db := openStore(t, url), openDB(t, url)
		defer s.Close()
		at := time.Now().Add(-time.Hour)
		list := make([]*dlq.Entry, letters)
		for i := range list {
			list[i] = letter(i, at)
		}
		receipts, err := s.Put(t.Context(), list...)
		require.NoError(t, err)
		ids := make([]int64, letters)
		for i := range ids {
			ids[i] = receipts[i].ID
		}
		_, err = s.Change(t.Context(), driver.Change{Action: driver.ActionResolve, IDs: ids, Actor: "ana", At: at})
		require.NoError(t, err)
		archive := "dlq_events_archive"
		if url[:5] != "mysql" {
			archive = "archive." + archive
		}
		for round := range rounds {
			killDuringPurge(t, url, 1+round%3, time.Duration(round)*3*time.Millisecond)
			var missing, both int
			require.NoError(t, db.QueryRowContext(t.Context(),
				"SELECT count(*) FROM dlq_events e JOIN "+archive+" a ON a.id = e.id").Scan(&both))
			require.Zero(t, both, "in the table and in the archive")
			require.NoError(t, db.QueryRowContext(t.Context(),
				fmt.Sprintf("SELECT %d - (SELECT count(*) FROM dlq_events WHERE payload IS NOT NULL)"+
					" - (SELECT count(*) FROM %s WHERE payload IS NOT NULL)", letters, archive)).Scan(&missing))
			require.Zero(t, missing, "in neither, or without a body")
			// The server may still be processing a commit of the child.
			waitFor(t, "statistics that match, because they are in the same transaction", func() bool {
				var rows int64
				require.NoError(t, db.QueryRowContext(t.Context(), "SELECT count(*) FROM dlq_entries").Scan(&rows))
				n, err := s.Count(t.Context(), dlq.Filter{}, 0)
				require.NoError(t, err)
				return n == rows
			})
		}
		var archived int
		require.NoError(t, db.QueryRowContext(t.Context(), "SELECT count(*) FROM "+archive).Scan(&archived))
		require.Positive(t, archived)
		records, _, err := s.Audit(t.Context(), dlq.AuditFilter{Action: driver.ActionPurge}, dlq.Page{Limit: driver.MaxPage})
		require.NoError(t, err)
		require.Len(t, records, archived, "and so is the audit log")
	})
}

// killDuringPurge runs the child and kills it a moment after it has begun a transaction.
func killDuringPurge(t *testing.T, url string, transactions int, moment time.Duration) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestPurge_Child$", "-test.v")
	cmd.Env = append(os.Environ(), "REDRIVE_PURGE_CHILD="+with(url, "writers=2&readers=1"))
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	begun := 0
	for scanner := bufio.NewScanner(out); scanner.Scan(); {
		if scanner.Text() != "purging" {
			continue
		}
		if begun++; begun == transactions {
			kill := time.NewTimer(moment) // kills at a random point of the transaction
			<-kill.C
			require.NoError(t, cmd.Process.Kill())
		}
	}
	_ = cmd.Wait() // it was killed
}
