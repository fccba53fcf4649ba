package sqlqueue

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/internal/wait"
)

// BreakInserts makes SQLite refuse new messages that match condition.
func (b *Broker) BreakInserts(t testing.TB, condition string) {
	t.Helper()
	_, err := b.t.db.ExecContext(t.Context(), `CREATE TRIGGER refuse BEFORE INSERT ON redrive_queue_messages WHEN NEW.`+
		condition+`
		BEGIN SELECT RAISE(ABORT, 'refused by the test'); END`)
	require.NoError(t, err)
}

// DepthsUpTo is Depths with the test's own limit.
func (b *Broker) DepthsUpTo(t testing.TB, limit int64) []brokers.Depth {
	t.Helper()
	found, err := b.t.store.depths(t.Context(), limit)
	require.NoError(t, err)
	return found
}

// HoldWrites blocks all writers of a SQLite file until release.
func (b *Broker) HoldWrites() (release func()) {
	writer := b.t.store.writer
	writer <- struct{}{}
	return func() { <-writer }
}

// SlowClaims makes each row of a claim take some time, as large payloads do on a slow network. It must precede
// subscriptions.
func (b *Broker) SlowClaims(perRow time.Duration) {
	b.t.stop() // nothing reads the dialect while it changes
	b.t.background.Wait()
	b.t.store.dialect = slowClaims{b.t.store.dialect, perRow}
	b.t.start(SQLite)
}

type slowClaims struct {
	dialect

	perRow time.Duration
}

func (s slowClaims) claim(ctx context.Context, db *sql.DB, c claim) ([]claimed, error) {
	if err := wait.For(ctx, time.Duration(c.n)*s.perRow); err != nil {
		return nil, err
	}
	return s.dialect.claim(ctx, db, c)
}

// CloseDB makes all statements fail, except those of transactions in InTx.
func (b *Broker) CloseDB() error { return b.t.db.Close() }
