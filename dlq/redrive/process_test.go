package redrive_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/sqlstore"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/logbuffer"
)

// fileQueue is a queue that outlives kill -9 of its writers: a file, appended to with one write for each message.
type fileQueue struct{ file *os.File }

func (q fileQueue) Reschedule(_ context.Context, _ envelope.Origin, m *message.Message, _ time.Duration) error {
	_, err := fmt.Fprintf(q.file, "%s %s\n", m.Metadata[envelope.KeyRedriveID], m.Metadata[envelope.KeyMessageID])
	return err
}

// TestRunProcess_Child is not a test: it is the server that the test below starts and kills. It continues a run.
func TestRunProcess_Child(t *testing.T) {
	dir := os.Getenv("REDRIVE_RUN_CHILD")
	if dir == "" {
		t.Skip("runs as a child process of the other test: REDRIVE_RUN_CHILD is not set")
	}
	claims, err := time.ParseDuration(os.Getenv("REDRIVE_RUN_CLAIMS"))
	require.NoError(t, err)
	store, err := sqlstore.Open(t.Context(),
		"sqlite:"+filepath.Join(dir, "dead.db")+"?synchronous=normal&busy-timeout=30s")
	require.NoError(t, err)
	file, err := os.OpenFile(filepath.Join(dir, "queue"), os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	m := operateBy(t, dlq.ManagerConfig{Store: store, Redriver: fileQueue{file}, PublishTimeout: claims / 2},
		redrive.Config{Lease: claims / 2, WorkInterval: 50 * time.Millisecond})
	run, err := m.Drive(t.Context(), "killed")
	require.NoError(t, err)
	require.Equal(t, redrive.Completed, run.State, run.Cause)
	require.NoError(t, store.Close())
	require.NoError(t, file.Close())
}

// runChild is the server as a process. Its output is kept in case it fails; one that hangs prints its stacks there
// after ten minutes.
type runChild struct {
	*exec.Cmd

	output logbuffer.Buffer
	ended  chan struct{}
	err    error // after ended
}

func startRunChild(t *testing.T, dir string, claims time.Duration) *runChild {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	c := &runChild{
		Cmd: exec.CommandContext(ctx, os.Args[0], "-test.run=^TestRunProcess_Child$"), ended: make(chan struct{}),
	}
	c.Env = append(os.Environ(), "REDRIVE_RUN_CHILD="+dir, "REDRIVE_RUN_CLAIMS="+claims.String())
	c.Stdout, c.Stderr = &c.output, &c.output
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGQUIT) }
	c.WaitDelay = time.Minute
	require.NoError(t, c.Start())
	go func() {
		defer close(c.ended)
		defer cancel()
		c.err = c.Wait()
	}()
	return c
}

// kill -9 of the server in the middle of a run, and a resume by another one: every message is redriven, and none twice.
// In ordinary test runs it is a small set and one kill; REDRIVE_RUN_LETTERS=100000 makes it the full test, with three.
func TestRunProcess_Killed(t *testing.T) {
	t.Parallel()
	// The consumer must not be further behind than a claim lasts, else an unrecorded publish is repeated: maxOut keeps it
	// close, and claims outlast a machine that stands still. They are waited for only where nothing was published.
	letters, kills, claims, maxOut := 800, 1, 20*time.Second, 200
	if text := os.Getenv("REDRIVE_RUN_LETTERS"); text != "" {
		n, err := strconv.Atoi(text)
		require.NoError(t, err)
		letters, kills, maxOut = n, 3, 2000
	}
	dir := t.TempDir()
	store, err := sqlstore.Open(t.Context(),
		"sqlite:"+filepath.Join(dir, "dead.db")+"?synchronous=normal&busy-timeout=30s")
	require.NoError(t, err)
	consumed, _ := newLetters(t, store, t.TempDir(), dlq.WithStoreTimeout(time.Minute))
	for n := 0; n < letters; n += 1000 {
		batch := make([]*dlq.Entry, min(1000, letters-n))
		for i := range batch {
			batch[i] = dlq.NewEntry(death(n + i))
		}
		_, err := store.Put(t.Context(), batch...)
		require.NoError(t, err)
	}
	m := operate(t, store, nil)
	run, err := m.StartRun(t.Context(), redrive.Spec{ID: "killed", MaxOut: maxOut}, ana)
	require.NoError(t, err)
	require.Equal(t, int64(letters), run.Counts.Waiting)

	require.NoError(t, os.WriteFile(filepath.Join(dir, "queue"), nil, 0o600))
	began := time.Now()
	child := startRunChild(t, dir, claims)
	delivered := map[string]int{}
	killed := 0
	consumeFile(t, filepath.Join(dir, "queue"), consumed, func(id string) bool {
		delivered[id]++
		if killed < kills && len(delivered) > letters*(killed+1)/(kills+1) {
			killed++
			require.NoError(t, child.Process.Kill())
			<-child.ended
			child = startRunChild(t, dir, claims)
		}
		return len(delivered) < letters
	}, func() {
		select {
		case <-child.ended:
			require.Fail(t, "it ended before its messages were handled", "%v\n%s", child.err, &child.output)
		default:
		}
	})
	<-child.ended
	took := time.Since(began)
	run, err = m.Run(t.Context(), "killed")
	require.NoError(t, err)
	require.NoError(t, child.err, "%s\n%+v", &child.output, run)
	require.Equal(t, kills, killed)
	require.Len(t, delivered, letters, "every message is redriven")
	for id, n := range delivered {
		require.Equal(t, 1, n, "%s was redriven %d times", id, n)
	}
	lines, err := os.ReadFile(filepath.Join(dir, "queue"))
	require.NoError(t, err)
	require.Equal(t, letters, strings.Count(string(lines), "\n"), "nothing came after the last one")
	require.Equal(t, redrive.Completed, run.State)
	require.Equal(t, redrive.Counts{Succeeded: int64(letters)}, run.Counts)
	require.Equal(t, int64(letters), count(t, store, dlq.Filter{Statuses: []dlq.Status{dlq.Resolved}}))
	t.Logf("%d messages in %s, kills included", letters, took)
}

// consumeFile is the consumer behind a fileQueue: it handles each message and reports its success, by many workers,
// until see has enough. It calls idle while there is no message.
func consumeFile(t *testing.T, path string, letters *dlq.Letters, see func(messageID string) bool, idle func()) {
	t.Helper()
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()
	work := make(chan [2]string, 256)
	var wg sync.WaitGroup
	errs := make(chan error, 64)
	for range cap(errs) {
		wg.Go(func() {
			for w := range work {
				if err := letters.Redriven(t.Context(),
					envelope.Redriven{EntryID: w[0], Number: 1, MessageID: w[1], At: time.Now()}); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	reader, line, more := bufio.NewReader(file), "", true
	for more {
		part, err := reader.ReadString('\n')
		line += part
		switch {
		case err == nil:
			entry, id, found := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
			require.True(t, found, line)
			select {
			case work <- [2]string{entry, id}:
			case err := <-errs: // perhaps of the last worker
				require.NoError(t, err)
			}
			line, more = "", see(id)
		case errors.Is(err, io.EOF):
			idle()
			// A file does not announce new data.
			select {
			case err := <-errs:
				require.NoError(t, err)
			case <-time.After(time.Millisecond):
			case <-t.Context().Done():
				require.NoError(t, t.Context().Err())
			}
		default:
			require.NoError(t, err)
		}
	}
	close(work)
	wg.Wait()
	close(errs)
	for err := range errs { // of the last messages: without their outcomes the server would not end
		require.NoError(t, err)
	}
}
