package sqlqueue

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
)

// BreakInserts makes SQLite refuse new messages of which condition is true.
func (b *Broker) BreakInserts(t testing.TB, condition string) {
	t.Helper()
	_, err := b.db.ExecContext(t.Context(), `CREATE TRIGGER refuse BEFORE INSERT ON redrive_queue_messages WHEN NEW.`+condition+`
		BEGIN SELECT RAISE(ABORT, 'refused by the test'); END`)
	require.NoError(t, err)
}

// DepthsUpTo is Depths with a bound of the test's own.
func (b *Broker) DepthsUpTo(t testing.TB, limit int64) []brokers.Depth {
	t.Helper()
	found, err := b.store.depths(t.Context(), limit)
	require.NoError(t, err)
	return found
}

// Lane tells whether a statement that publishes to topic is under way, and how many publishes wait for the next one.
func (b *Broker) Lane(topic string) (running bool, waiting int) {
	b.lanes.mu.Lock()
	lane := b.lanes.topics[topic]
	b.lanes.mu.Unlock()
	if lane == nil {
		return false, 0
	}
	lane.mu.Lock()
	defer lane.mu.Unlock()
	return lane.running && len(lane.pending) == 0, len(lane.pending)
}
