package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

const (
	trigramIndex = "idx_dlq_error_trigram"
	// trigramLock is this store's: others may be in the same database.
	trigramLock = "hashtext(current_schema() || '" + trigramIndex + "')"
)

// makeTrigram creates an index for words in the middle of errors. It is built while others write, which can take
// minutes: one process does it, and the others do not wait, because they would block what they wait for.
func makeTrigram(ctx context.Context, db *sql.DB) (err error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // returns it to the pool
	var mine bool
	if err := conn.QueryRowContext(ctx, "SELECT pg_try_advisory_lock("+trigramLock+")").Scan(&mine); err != nil || !mine {
		return err
	}
	defer func() {
		_, unlock := conn.ExecContext(context.WithoutCancel(ctx), "SELECT pg_advisory_unlock("+trigramLock+")")
		err = errors.Join(err, unlock)
	}()
	var valid bool
	err = conn.QueryRowContext(ctx, "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('"+trigramIndex+
		"')").Scan(&valid)
	switch {
	case err == nil && valid:
		return nil
	case err != nil && !errors.Is(err, sql.ErrNoRows):
		return err
	}
	statements, err := trigramStatements(ctx, db)
	if err != nil {
		return err
	}
	for _, statement := range statements {
		if _, err := conn.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("trigram index: %w", err)
		}
	}
	return nil
}

// trigramStatements create the index of each partition and then attach them, because an index of a partitioned table
// cannot be created concurrently. The planner gets a larger sample of the errors: with its usual one it estimates that
// a rare word is in one row of 300, and reads a whole status in addition to the trigrams.
func trigramStatements(ctx context.Context, db *sql.DB) ([]string, error) {
	const find = "SELECT quote_ident(nspname) FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE " +
		"extname = 'pg_trgm'"
	if _, err := db.ExecContext(ctx, "CREATE EXTENSION IF NOT EXISTS pg_trgm"); err != nil {
		return nil, fmt.Errorf("trigram index: %w", err)
	}
	var in string
	if err := db.QueryRowContext(ctx, find).Scan(&in); err != nil {
		return nil, fmt.Errorf("trigram index: %w", err)
	}
	using := " USING gin (error_message " + in + ".gin_trgm_ops)"
	statements := []string{
		"ALTER TABLE dlq_entries ALTER COLUMN error_message SET STATISTICS 1000",
		"ANALYZE dlq_entries (error_message)",
		"DROP INDEX IF EXISTS " + trigramIndex, // an interrupted one exists, but is useless
	}
	partitions, err := partitionsOf(ctx, db)
	if err != nil {
		return nil, err
	}
	if len(partitions) == 0 {
		return append(statements, "CREATE INDEX CONCURRENTLY "+trigramIndex+" ON dlq_entries"+using), nil
	}
	statements = append(statements, "CREATE INDEX "+trigramIndex+" ON ONLY dlq_entries"+using)
	for _, p := range partitions {
		name := trigramIndex + "_" + p
		statements = append(statements,
			"DROP INDEX IF EXISTS "+name,
			"CREATE INDEX CONCURRENTLY "+name+" ON dlq_entries_"+p+using,
			"ALTER INDEX "+trigramIndex+" ATTACH PARTITION "+name)
	}
	return statements, nil
}
