package sqlstore

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/pressly/goose/v3"

	"github.com/redrive-go/redrive/internal/sqlmigrate"
)

// versionTable is where the migrator notes what it has done; its own, so that it does not meet the application's.
const versionTable = "dlq_schema_version"

//go:embed migrations/*/*.sql
var migrations embed.FS

func migrationsOf(dialect string) fs.FS {
	dir, err := fs.Sub(migrations, "migrations/"+dialect)
	if err != nil {
		panic(err) // the directory is embedded above
	}
	return dir
}

// migrateLocked brings the schema up to date under a lock of the server, which processes take in turn.
func migrateLocked(ctx context.Context, db *sql.DB, dialect string) error {
	if err := sqlmigrate.Up(ctx, db, dialect, migrationsOf(dialect), versionTable); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	return nil
}

// migrateUnlocked brings the schema up to date where there is no such lock. Processes that start at once may all try: each migration
// is one transaction, so one of them does it, and the others fail on what is there already and find it done when they look again.
func migrateUnlocked(ctx context.Context, db *sql.DB, dialect goose.Dialect, files fs.FS) error {
	provider, err := goose.NewProvider(dialect, db, files, goose.WithTableName(versionTable), goose.WithDisableGlobalRegistry(true))
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
