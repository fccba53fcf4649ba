package sqlqueue

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// BreakInserts makes SQLite refuse new messages of which condition is true.
func (b *Broker) BreakInserts(t testing.TB, condition string) {
	t.Helper()
	_, err := b.db.ExecContext(t.Context(), `CREATE TRIGGER refuse BEFORE INSERT ON redrive_queue_messages WHEN NEW.`+condition+`
		BEGIN SELECT RAISE(ABORT, 'refused by the test'); END`)
	require.NoError(t, err)
}
