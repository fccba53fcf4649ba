package redrive_test

import (
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
)

// The store's database is killed, frozen and killed again under a run of redrive serve, whose consumer reports the
// outcomes to the same database: every message is redriven, and no entry is left behind.
func TestServe_TheStoreIsKilled(t *testing.T) {
	t.Parallel()
	services.EachDatabase(t, storeKilled)
}

func storeKilled(t *testing.T, s services.DatabaseServer) {
	t.Helper()
	const letters, rate = 4000, 400
	store, broker := s.Database(t), services.SharedRabbitMQ(t).VHost(t)
	l, b := openFilled(t, store, broker, letters)
	var mu sync.Mutex
	delivered := make(map[string]int, letters)
	serve(t, b, l, func(m *message.Message) error {
		mu.Lock()
		defer mu.Unlock()
		delivered[m.Metadata[envelope.KeyMessageID]]++
		return nil
	})
	p := newProgram(t, store, broker, "")
	p.start(t)
	p.command(t, "dlq", "redrive", "--topic", topic, "--id", "killed", "--rate", strconv.Itoa(rate), "--detach", "--yes")
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(delivered)
	}
	for i, outage := range []func() error{s.Kill, s.Pause, s.Kill} {
		await.Count(t, letters*(i+1)/5, count)
		require.NoError(t, outage())
		await.True(t, func() bool { return !p.ready(t) }, "the server did not notice")
		if s.Resume() != nil { // it was killed
			require.NoError(t, s.Start(t.Context()))
		}
	}
	await.Count(t, letters, count, "a message was not redriven")
	runner, err := redrive.NewRunner(l.Manager(nil), redrive.Config{})
	require.NoError(t, err)
	var run *redrive.Run
	for run, err = range runner.WatchRun(t.Context(), "killed", 100*time.Millisecond) {
		require.NoError(t, err)
	}
	require.Equal(t, redrive.Completed, run.State)
	require.Equal(t, redrive.Counts{Succeeded: letters}, run.Counts)
	stats, err := l.Store().Stats(t.Context(), driver.StatsQuery{})
	require.NoError(t, err)
	require.Equal(t, driver.Counts{Resolved: letters}, stats.Counts)
	require.NoError(t, p.cmd.Process.Signal(os.Interrupt))
	require.NoError(t, <-p.ended, p.log.String())
	mu.Lock()
	defer mu.Unlock()
	extra := 0
	for _, n := range delivered {
		extra += n - 1
	}
	t.Logf("%d of %d messages were redriven again", extra, letters)
	require.LessOrEqual(t, extra, 3*2*rate/10, "two batches were in flight at each of the three outages")
}
