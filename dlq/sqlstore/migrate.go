package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/pressly/goose/v3"
)

// versionTable is where the migrator notes what it has done; its own, so that it does not meet the application's.
const versionTable = "dlq_schema_version"

// migrate brings the schema up to date. Processes that start at once may all try: each migration is one transaction, so one of
// them does it, and the others fail on what is there already and find it done when they look again.
func migrate(ctx context.Context, db *sql.DB, d dialect) error {
	files, gooseDialect, options := d.migrations()
	options = append(options, goose.WithTableName(versionTable), goose.WithDisableGlobalRegistry(true))
	provider, err := goose.NewProvider(gooseDialect, db, files, options...)
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	const attempts = 20
	for attempt := 1; ; attempt++ {
		if _, err = provider.Up(ctx); err == nil {
			return nil
		}
		if attempt == attempts || ctx.Err() != nil {
			return fmt.Errorf("migrate: %w", err)
		}
		timer := time.NewTimer(time.Duration(attempt) * 10 * time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return errors.Join(ctx.Err(), err)
		}
	}
}
