package dlq_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
)

// The dead letter is part of the caller's transaction, if there is one.
func TestContextWithTx(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "app.db")
	l, err := dlq.Open(t.Context(), "sqlite:"+path)
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	db, err := sql.Open("sqlite", "file:"+path)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	_, err = db.ExecContext(t.Context(), "CREATE TABLE employees (status TEXT)")
	require.NoError(t, err)
	invalid := func() int {
		var n int
		require.NoError(t, db.QueryRowContext(t.Context(), "SELECT count(*) FROM employees").Scan(&n))
		return n
	}

	for n, commit := range []bool{false, true} {
		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		_, err = tx.ExecContext(t.Context(), "INSERT INTO employees VALUES ('invalid')")
		require.NoError(t, err)
		require.NoError(t, l.DeadLetter(dlq.ContextWithTx(t.Context(), tx), death(1)))
		if commit {
			require.NoError(t, tx.Commit())
		} else {
			require.NoError(t, tx.Rollback())
		}
		require.Equal(t, n, invalid())
		require.Equal(t, int64(n), countAll(t, l))
	}
}

// A finished transaction cannot take a dead letter; the letter is not lost.
func TestContextWithTx_Over(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "app.db")
	l, err := dlq.Open(t.Context(), "sqlite:"+path)
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	db, err := sql.Open("sqlite", "file:"+path)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	require.NoError(t, tx.Rollback())
	require.NoError(t, l.DeadLetter(dlq.ContextWithTx(t.Context(), tx), death(1)))
	require.Equal(t, int64(1), countAll(t, l))
}

// The end of a context ends its transaction, which can no longer be committed: the message is redelivered, and gets its
// letter then. Stored alone, the letter would belong to a delivery without effect.
func TestContextWithTx_ContextOver(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "app.db")
	l, err := dlq.Open(t.Context(), "sqlite:"+path)
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	db, err := sql.Open("sqlite", "file:"+path)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	lost := errors.New("the lease was lost")
	ctx, cancel := context.WithCancelCause(t.Context())
	tx, err := db.BeginTx(ctx, nil)
	require.NoError(t, err)
	cancel(lost)
	offered := context.WithoutCancel(dlq.ContextWithTx(ctx, tx)) // as pipelines do
	require.ErrorIs(t, l.DeadLetter(offered, death(1)), lost)
	require.Zero(t, countAll(t, l))
	require.Zero(t, l.Stats().Appended, "it is in the spool")
}

func countAll(t *testing.T, l *dlq.Letters) int64 {
	t.Helper()
	n, err := l.Store().Count(context.WithoutCancel(t.Context()), dlq.Filter{}, 0)
	require.NoError(t, err)
	return n
}
