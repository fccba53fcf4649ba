package sqlstore_test

import (
	"database/sql"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/sqlstore"
)

func TestOpen_Settings(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		params      string
		synchronous int64
	}{
		"defaults": {"", 2},
		"prefixed": {"?x-busy-timeout=250ms&x-readers=2&x-synchronous=extra", 3},
		"plain":    {"?busy-timeout=1s&synchronous=normal&driver=sqlite", 1},
	} {
		s, db := newFile(t, c.params)
		require.Equal(t, [][]any{{"wal"}}, rowsOf(t, db, "PRAGMA journal_mode"), name)
		require.Equal(t, c.synchronous, s.Pragma(t, "synchronous"), name)
	}
}

func TestOpen_Refuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	notADatabase := filepath.Join(dir, "text.db")
	require.NoError(t, os.WriteFile(notADatabase, []byte("this is no database, and long enough to say so in its header"),
		0o600))
	for url, want := range map[string]string{
		"sqlite:":                               "names no file",
		"sqlite:a.db?bussy-timeout=5s":          "known are busy-timeout, driver, migrate, readers, synchronous",
		"sqlite:a.db?busy-timeout=5":            "must be a duration",
		"sqlite:a.db?busy-timeout=-5s":          "negative",
		"sqlite:a.db?synchronous=off":           "may lose the last dead letters",
		"sqlite:a.db?readers=0":                 "from 1 to 1000",
		"sqlite:a.db?driver=oracle":             `add _ "modernc.org/sqlite"`,
		"sqlite:" + dir + "/none/dead.db":       "none/dead.db",
		"sqlite:" + notADatabase:                "not a database",
		"sqlite:a.db?readers=x&synchronous=off": "readers",
	} {
		_, err := sqlstore.Open(t.Context(), url)
		require.ErrorContains(t, err, want, url)
	}
	require.NoFileExists(t, "a.db")
}

// A store is created in an application's database and opened again; the application's own migrations are left alone.
func TestOpen_InAnApplicationsDatabase(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "app.db")
	db, err := sql.Open("sqlite", "file:"+path)
	require.NoError(t, err)
	_, err = db.ExecContext(t.Context(), "CREATE TABLE goose_db_version (id INTEGER); CREATE TABLE orders (id INTEGER)")
	require.NoError(t, err)
	require.NoError(t, db.Close())
	for range 2 {
		s := open(t, path)
		_, err := s.Put(t.Context(), entry(1, time.Now()))
		require.NoError(t, err)
		require.NoError(t, s.Close())
	}
}

// In the caller's transaction, the dead letter is there when that commits, and not when it is rolled back.
func TestPutTx(t *testing.T) {
	t.Parallel()
	s, db := newFile(t, "")
	for range 3 {
		_, err := s.Put(t.Context(), entry(0, time.Now()))
		require.NoError(t, err)
	}
	for _, commit := range []bool{false, true} {
		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		receipts, err := s.PutTx(t.Context(), tx, entry(1, time.Now()))
		require.NoError(t, err)
		require.Equal(t, driver.Stored, receipts[0].Result)
		if commit {
			require.NoError(t, tx.Commit())
		} else {
			require.NoError(t, tx.Rollback())
		}
		n, err := s.Count(t.Context(), dlq.Filter{}, 0)
		require.NoError(t, err)
		require.Equal(t, commit, n == 2)
		stats, err := s.Stats(t.Context(), dlq.StatsQuery{})
		require.NoError(t, err)
		require.Equal(t, n, stats.Counts.Pending)
	}
}

// Another process locks the database for longer than the timeout: an error in time, and no harm to later calls.
func TestPut_Busy(t *testing.T) {
	t.Parallel()
	s, db := newFile(t, "?busy-timeout=50ms")
	conn, err := db.Conn(t.Context())
	require.NoError(t, err)
	_, err = conn.ExecContext(t.Context(), "BEGIN IMMEDIATE")
	require.NoError(t, err)
	_, err = s.Put(t.Context(), entry(1, time.Now()))
	require.ErrorContains(t, err, "locked")
	require.Error(t, s.Ping(t.Context()))
	_, err = s.Get(t.Context(), 1)
	require.ErrorIs(t, err, dlq.ErrNotFound, "readers do not wait for writers")
	_, err = conn.ExecContext(t.Context(), "ROLLBACK")
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	require.NoError(t, s.Ping(t.Context()))
	_, err = s.Put(t.Context(), entry(1, time.Now()))
	require.NoError(t, err)
}

func TestOpen_InMemory(t *testing.T) {
	t.Parallel()
	s := open(t, "sqlite::memory:")
	defer s.Close()
	for range 3 {
		_, err := s.Put(t.Context(), entry(1, time.Now()))
		require.NoError(t, err)
	}
	e, err := s.Get(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, 3, e.SeenCount)
	require.Empty(t, s.SpoolDir())
}

// A store in the application's own database, which stays open; opening it read-only creates and changes nothing.
func TestNew(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "app.db")
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_txlock=immediate")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	_, err = sqlstore.New(t.Context(), db, sqlstore.Config{Dialect: "oracle", Monthly: true})
	require.ErrorContains(t, err, "known are postgres, mysql, sqlite")
	require.ErrorContains(t, err, "partitions are PostgreSQL's")
	_, err = sqlstore.New(t.Context(), db, sqlstore.Config{Dialect: sqlstore.SQLite, KeepSchema: true})
	require.ErrorContains(t, err, "the tables do not exist")
	require.Equal(t, [][]any{{int64(0)}}, rowsOf(t, db, "SELECT count(*) FROM sqlite_master"))

	s, err := sqlstore.New(t.Context(), db, sqlstore.Config{Dialect: sqlstore.SQLite, SpoolDir: "spool"})
	require.NoError(t, err)
	require.Equal(t, "spool", s.SpoolDir())
	_, err = s.Put(t.Context(), entry(1, time.Now()))
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.NoError(t, db.PingContext(t.Context()))
	kept := open(t, path+"?migrate=false")
	n, err := kept.Count(t.Context(), dlq.Filter{}, 0)
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
	require.NoError(t, kept.Close())
}

// A mistyped path is an error and creates no store; a store that a newer program has migrated is left alone.
func TestOpen_WithoutMigration(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	typo := filepath.Join(dir, "daed.db")
	_, err := sqlstore.Open(t.Context(), typo+"?migrate=false")
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoFileExists(t, typo)

	s, db := newFile(t, "")
	require.NoError(t, s.Close())
	path := rowsOf(t, db, "SELECT file FROM pragma_database_list")[0][0].(string)
	_, err = db.ExecContext(t.Context(), "INSERT INTO dlq_schema_version (version_id, is_applied) VALUES (999, 1)")
	require.NoError(t, err)
	for _, url := range []string{path, path + "?migrate=false"} {
		_, err = sqlstore.Open(t.Context(), url)
		require.ErrorContains(t, err, "newer version of this program: version 999", url)
		require.ErrorContains(t, err, "use the program that migrated them", url)
	}
}
