package sqldb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"github.com/pressly/goose/v3"

	"github.com/redrive-go/redrive/internal/wait"
)

// Results of Check.
var (
	ErrSchemaMissing = errors.New("the tables do not exist")
	ErrSchemaOlder   = errors.New("the tables are of an older version of this program")
	ErrSchemaNewer   = errors.New("the tables are of a newer version of this program")
)

// Schema is one component's tables, created by goose migrations.
type Schema struct {
	Dialect Dialect
	// Files has a directory migrations/<dialect> with 00001_name.sql ...
	Files fs.FS
	// Table is goose's record of applied migrations; with a separate one each component's migrations stay apart from the
	// application's and other components' in the same database.
	Table string
}

// Check reports whether db has exactly these migrations, and changes nothing: nil, or an error that is one of
// ErrSchemaMissing, ErrSchemaOlder and ErrSchemaNewer, or the database's.
func (s Schema) Check(ctx context.Context, db *sql.DB) error {
	has, err := s.version(ctx, db)
	if err != nil {
		return err
	}
	known, err := s.newest()
	switch {
	case err != nil:
		return err
	case has == 0:
		return ErrSchemaMissing
	case has < known:
		return fmt.Errorf("%w: version %d, this one has %d", ErrSchemaOlder, has, known)
	case has > known:
		return fmt.Errorf("%w: version %d, this one knows %d; use the program that migrated them, or a later one",
			ErrSchemaNewer, has, known)
	}
	return nil
}

// tableExists are queries that count tables of a name in the current schema.
var tableExists = map[Dialect]string{
	PostgreSQL: "SELECT count(to_regclass(?))",
	MySQL:      "SELECT count(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = ?",
	SQLite:     "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?",
}

// version is the last applied migration, 0 for none.
func (s Schema) version(ctx context.Context, db *sql.DB) (version int64, err error) {
	var tables int
	err = db.QueryRowContext(ctx, s.Dialect.Bind(tableExists[s.Dialect]), s.Table).Scan(&tables)
	if err == nil && tables > 0 {
		err = db.QueryRowContext(ctx, "SELECT coalesce(max(version_id), 0) FROM "+s.Table+" WHERE is_applied").Scan(&version)
	}
	return version, err
}

func (s Schema) dir() string { return "migrations/" + string(s.Dialect) }

// newest is the last migration of the files.
func (s Schema) newest() (newest int64, err error) {
	names, err := fs.Glob(s.Files, s.dir()+"/*.sql")
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		version, err := goose.NumericComponent(name)
		if err != nil {
			return 0, fmt.Errorf("migration %s: %w", name, err)
		}
		newest = max(newest, version)
	}
	return newest, nil
}

// Up applies the missing migrations, if any. Any number of processes may call it at once: they take a database lock in
// turn, and all but the first find nothing to do. When a process is killed, PostgreSQL releases the lock but finishes
// its statement, so there migrations also lock Table. If the schema is newer than this program, the error is
// ErrSchemaNewer.
//
// On SQLite, which has no such lock, and with a pool of one connection, which cannot hold it while goose runs, each
// migration must be repeatable (IF NOT EXISTS) or a single transaction.
func (s Schema) Up(ctx context.Context, db *sql.DB) error {
	err := s.Check(ctx, db)
	if !errors.Is(err, ErrSchemaMissing) && !errors.Is(err, ErrSchemaOlder) {
		return err
	}
	kind := map[Dialect]goose.Dialect{
		PostgreSQL: goose.DialectPostgres, MySQL: goose.DialectMySQL, SQLite: goose.DialectSQLite3,
	}[s.Dialect]
	files, err := fs.Sub(s.Files, s.dir())
	if err != nil {
		return err
	}
	provider, err := goose.NewProvider(kind, db, files, goose.WithTableName(s.Table),
		goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return err
	}
	up := func() error {
		if s.Dialect == MySQL { // goose needs the first row of Table, and a process may be killed before it
			_, _ = db.ExecContext(ctx, "INSERT INTO "+s.Table+" (version_id, is_applied)"+ //nolint:gosec // a constant
				" SELECT 0, TRUE FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM "+s.Table+")") // no Table: goose creates it
		}
		_, err := provider.Up(ctx)
		return err
	}
	if s.Dialect == SQLite || db.Stats().MaxOpenConnections == 1 {
		return upUnlocked(ctx, up)
	}
	return s.Dialect.WithLock(ctx, db, s.Table, up)
}

// unlocked serializes this process's migrations; conflicts with other processes are retried.
var unlocked sync.Mutex

// upUnlocked tries again: two processes that start at once can both find the schema missing, and one of them then fails
// with "busy" or "exists already".
func upUnlocked(ctx context.Context, up func() error) error {
	unlocked.Lock()
	defer unlocked.Unlock()
	for attempt := 1; ; attempt++ {
		err := up()
		if err == nil || attempt == 2*attempts {
			return err
		}
		if ended := wait.For(ctx, time.Duration(attempt)*10*time.Millisecond); ended != nil {
			return errors.Join(ended, err)
		}
	}
}
