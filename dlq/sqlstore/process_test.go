package sqlstore_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/sqlstore"
)

// TestProcess_Child is not a test: it is the process that the tests below start and kill. It opens the file, announces
// that, and stores letters as fast as it can, announcing each one that was promised.
func TestProcess_Child(t *testing.T) {
	path := os.Getenv("REDRIVE_STORE_CHILD")
	if path == "" {
		t.Skip("runs as a child process of the other tests: REDRIVE_STORE_CHILD is not set")
	}
	limit, err := strconv.Atoi(os.Getenv("REDRIVE_LETTERS"))
	require.NoError(t, err)
	first, err := strconv.Atoi(os.Getenv("REDRIVE_FIRST"))
	require.NoError(t, err)
	ctx := context.Background()
	s, err := sqlstore.Open(ctx, "sqlite:"+path+"?busy-timeout=1m") // for processes that stand still with the lock
	if err != nil {
		fmt.Println("failed", err)
		return
	}
	fmt.Println("opened")
	var wg sync.WaitGroup
	for c := range 8 {
		wg.Go(func() {
			for n := first + c; n < first+limit; n += 8 {
				if _, err := s.Put(ctx, entry(n, time.Now())); err != nil {
					fmt.Println("failed", err)
					return
				}
				fmt.Println("promised", n)
			}
		})
	}
	wg.Wait()
	require.NoError(t, s.Close())
}

// process runs TestProcess_Child and gives its lines to see, until that returns false: then it is killed with SIGKILL.
func process(t *testing.T, path string, first, letters int, see func(line string) bool) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestProcess_Child$", "-test.v")
	cmd.Env = append(os.Environ(), "REDRIVE_STORE_CHILD="+path, fmt.Sprintf("REDRIVE_FIRST=%d", first),
		fmt.Sprintf("REDRIVE_LETTERS=%d", letters))
	cmd.Stderr = io.Discard
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	killed := false
	for scanner := bufio.NewScanner(out); scanner.Scan(); {
		if !see(scanner.Text()) && !killed {
			killed = true
			require.NoError(t, cmd.Process.Kill())
		}
	}
	_ = cmd.Wait() // it may have been killed
}

// Ten processes start at once without a file: one makes the schema, all work, and every delivery is one entry.
func TestProcess_StartTogether(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "dead.db")
	const processes, letters = 10, 16
	var wg sync.WaitGroup
	outputs := make([][]string, processes)
	for p := range processes {
		wg.Go(func() {
			process(t, path, 0, letters, func(line string) bool {
				outputs[p] = append(outputs[p], line)
				return true
			})
		})
	}
	wg.Wait()
	for _, output := range outputs {
		text := strings.Join(output, "\n")
		require.Contains(t, text, "opened")
		require.NotContains(t, text, "failed")
		require.Equal(t, letters, strings.Count(text, "promised"))
	}
	s := open(t, "sqlite:"+path)
	defer s.Close()
	listing, err := s.List(t.Context(), dlq.Filter{}, dlq.Page{})
	require.NoError(t, err)
	require.Len(t, listing.Entries, letters)
	for _, e := range listing.Entries {
		require.Equal(t, processes, e.SeenCount)
	}
}

// kill -9 of the writer, again and again: every promised letter is there, once, and the statistics agree.
func TestProcess_Killed(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "dead.db")
	promised := map[string]bool{}
	const rounds = 8
	for round := range rounds {
		seen := 0
		process(t, path, round*100_000, 100_000, func(line string) bool {
			if n, ok := strings.CutPrefix(line, "promised "); ok {
				promised["event-"+n] = true
				seen++
			}
			return seen < 30+29*round
		})
	}
	require.Greater(t, len(promised), rounds*30)
	s := open(t, "sqlite:"+path)
	defer s.Close()
	found := map[string]int{}
	page := dlq.Page{Limit: driver.MaxPage}
	for {
		listing, err := s.List(t.Context(), dlq.Filter{}, page)
		require.NoError(t, err)
		for _, e := range listing.Entries {
			found[e.EventID]++
			require.Equal(t, 1, e.SeenCount)
		}
		if page.After = listing.Next; page.After == "" {
			break
		}
	}
	for id := range promised {
		require.Equal(t, 1, found[id], id)
	}
	kept, err := s.Stats(t.Context(), dlq.StatsQuery{})
	require.NoError(t, err)
	require.Equal(t, int64(len(found)), kept.Counts.Total())
	t.Logf("%d kills, %d promised, %d found", rounds, len(promised), len(found))
}
