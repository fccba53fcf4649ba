package sqldb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redrive-go/redrive/internal/wait"
)

// InTx runs fn in a transaction, which is committed when fn returns nil and rolled back otherwise, even if fn panics.
func InTx(ctx context.Context, db *sql.DB, opts *sql.TxOptions, fn func(*sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, opts)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // does nothing after Commit
	if err := fn(tx); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// attempts is how often a transaction with conflicts is run.
const attempts = 10

// Retry is InTx, repeated while the transaction fails only because of another one, or again reports true for its error.
func (d Dialect) Retry(
	ctx context.Context, db *sql.DB, opts *sql.TxOptions, again func(error) bool, fn func(*sql.Tx) error,
) error {
	for attempt := 1; ; attempt++ {
		err := InTx(ctx, db, opts, fn)
		if err == nil || attempt == attempts || !d.Conflict(err) && !again(err) {
			return err
		}
		if ended := wait.For(ctx, rand.N(time.Duration(attempt)*5*time.Millisecond)); ended != nil { //nolint:gosec // G404: jitter
			return errors.Join(ended, err)
		}
	}
}
