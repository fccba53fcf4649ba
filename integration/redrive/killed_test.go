package redrive_test

import (
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/services"
)

// claims is how long a claim waits for the record of its publish. The consumer must not be further behind than that, else a message of
// which a killed process did not tell is sent twice.
const claims = 10 * time.Second

// TestRunKilled_Child is not a test: it is the server that the test below starts and kills.
func TestRunKilled_Child(t *testing.T) {
	store, broker := os.Getenv("REDRIVE_CHILD_STORE"), os.Getenv("REDRIVE_CHILD_BROKER")
	if store == "" {
		t.Skip("runs as a child process of the other test: REDRIVE_CHILD_STORE is not set")
	}
	b, l := openBroker(t, broker), openLetters(t, store)
	m := l.Manager(b, dlq.WithPublishTimeout(claims/2), dlq.WithRunLease(2*time.Second), dlq.WithWorkInterval(100*time.Millisecond))
	run, err := m.Drive(t.Context(), "killed")
	require.NoError(t, err)
	require.Equal(t, dlq.RunCompleted, run.State, run.Cause)
	require.NoError(t, b.Close())
	require.NoError(t, l.Close())
}

// Dead letters are redriven through a run whose server is killed with SIGKILL again and again: every message reaches its consumer, and
// none does twice. REDRIVE_RUN_LETTERS=100000 makes it the number that an operator fears; it takes minutes on two cores.
func TestRunKilled(t *testing.T) {
	t.Parallel()
	letters, kills := 20_000, 3
	if text := os.Getenv("REDRIVE_RUN_LETTERS"); text != "" {
		n, err := strconv.Atoi(text)
		require.NoError(t, err)
		letters = n
	}
	store, broker := services.SharedPostgres(t).Database(t), services.SharedRabbitMQ(t).VHost(t)
	l, b := openLetters(t, store), openBroker(t, broker)
	t.Cleanup(func() {
		require.NoError(t, b.Close())
		require.NoError(t, l.Close())
	})
	fill(t, l, 0, letters)

	var mu sync.Mutex
	delivered := make(map[string]int, letters)
	reached := make(chan struct{}, 1) // a server is to be killed
	killed := 0
	serve(t, b, l, func(m *message.Message) error {
		mu.Lock()
		defer mu.Unlock()
		delivered[m.Metadata[envelope.KeyMessageID]]++
		if killed < kills && len(delivered) > letters*(killed+1)/(kills+1) {
			killed++
			reached <- struct{}{}
		}
		return nil
	})
	began := time.Now()
	run, err := l.Manager(nil).StartRun(t.Context(), dlq.RunSpec{ID: "killed", MaxOut: 5000}, dlq.By{Actor: "ana"})
	require.NoError(t, err)
	require.Equal(t, int64(letters), run.Counts.Waiting)
	for range kills {
		cmd, ended := server(t, store, broker)
		select {
		case <-reached:
		case err := <-ended:
			t.Fatalf("the server ended by itself: %v", err)
		}
		require.NoError(t, cmd.Process.Kill())
		require.Error(t, <-ended, "it was killed")
	}
	_, ended := server(t, store, broker)
	require.NoError(t, <-ended)
	took := time.Since(began)

	run, err = l.Manager(nil).Run(t.Context(), "killed")
	require.NoError(t, err)
	require.Equal(t, dlq.RunCounts{Succeeded: int64(letters)}, run.Counts)
	mu.Lock()
	defer mu.Unlock()
	require.Len(t, delivered, letters, "every message is redriven")
	for id, n := range delivered {
		require.Equal(t, 1, n, "%s came %d times", id, n)
	}
	t.Logf("%d messages in %s, %d kills included", letters, took.Round(time.Millisecond), kills)
}

// server starts a server. ended gets what it ended with.
func server(t *testing.T, store, broker string) (cmd *exec.Cmd, ended chan error) {
	t.Helper()
	cmd = exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestRunKilled_Child$")
	cmd.Env = append(os.Environ(), "REDRIVE_CHILD_STORE="+store, "REDRIVE_CHILD_BROKER="+broker)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	require.NoError(t, cmd.Start())
	ended = make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	return cmd, ended
}
