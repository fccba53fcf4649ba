package sqldb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
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
	if err := db.QueryRowContext(ctx, s.Dialect.Bind(tableExists[s.Dialect]), s.Table).Scan(&tables); err != nil ||
		tables == 0 {
		return 0, err
	}
	err = db.QueryRowContext(ctx, "SELECT coalesce(max(version_id), 0) FROM "+s.Table+" WHERE is_applied").Scan(&version)
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
		digits, _, _ := strings.Cut(path.Base(name), "_")
		version, err := strconv.ParseInt(digits, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("migration %s: %w", name, err)
		}
		newest = max(newest, version)
	}
	return newest, nil
}

// Up applies the missing migrations, if any. Any number of processes may call it at once: they take a database lock in
// turn, and all but the first find nothing to do. If the schema is newer than this program, the error is
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
	if s.Dialect == SQLite || db.Stats().MaxOpenConnections == 1 {
		return upUnlocked(ctx, provider)
	}
	return s.Dialect.WithLock(ctx, db, s.Table, func() error {
		_, err := provider.Up(ctx)
		return err
	})
}

// unlocked serializes this process's migrations; conflicts with other processes are retried.
var unlocked sync.Mutex

// upUnlocked tries again: two processes that start at once can both find the schema missing, and one of them then fails
// with "busy" or "exists already".
func upUnlocked(ctx context.Context, provider *goose.Provider) error {
	unlocked.Lock()
	defer unlocked.Unlock()
	for attempt := 1; ; attempt++ {
		_, err := provider.Up(ctx)
		if err == nil || attempt == 2*attempts {
			return err
		}
		if ended := wait.For(ctx, time.Duration(attempt)*10*time.Millisecond); ended != nil {
			return errors.Join(ended, err)
		}
	}
}
