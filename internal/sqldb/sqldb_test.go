package sqldb_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/internal/sqldb"
)

func parse(t *testing.T, raw string) *url.URL {
	t.Helper()
	u, err := url.Parse(raw)
	require.NoError(t, err)
	return u
}

func TestReadURL(t *testing.T) {
	t.Parallel()
	const commits = "autocommit=1&charset=utf8mb4&completion_type=0&maxAllowedPacket=0&"
	const session = "rejectReadOnly=true&sql_mode=%27STRICT_ALL_TABLES%27&sql_select_limit=18446744073709551615"
	const strict = commits + session
	for raw, want := range map[string]string{
		"postgres://u:p@h:1/d?sslmode=disable": "postgres://u:p@h:1/d?sslmode=disable",
		"postgresql://h/d":                     "postgres://h/d",
		"postgres://h/d?options=-c%20geqo=off": "postgres://h/d?options=-c%20geqo%3Doff",
		"mysql://u:p%40%2F:@h/d?tls=true":      "u:p@/:@tcp(h:3306)/d?" + strict + "&tls=true",
		"mariadb://root@[::1]:3307/d":          "root@tcp([::1]:3307)/d?" + strict,
		"mysql://u@/d?socket=%2Frun%2Fm.sock":  "u@unix(/run/m.sock)/d?" + strict,
		"mysql://u@h/d?rejectReadOnly=false": "u@tcp(h:3306)/d?" + commits +
			strings.Replace(session, "true", "false", 1),
		"mysql://u@h/d?charset=utf8&tls=true": "u@tcp(h:3306)/d?" + strict + "&tls=true",
		"mysql://h/a%20b?sql_mode=ANSI": "tcp(h:3306)/a%20b?" + commits +
			"rejectReadOnly=true&sql_mode=ANSI&sql_select_limit=18446744073709551615",
		"mysql://h/d?time_zone=%27%2B09%3A00%27&x=%26%20": "tcp(h:3306)/d?" + strict +
			"&time_zone=%27%2B09%3A00%27&x=%26+",
		"sqlite:///var/q.db":                                  "file:/var/q.db?_txlock=immediate",
		"sqlite://q.db?_pragma=synchronous(off)":              "file:q.db?_pragma=synchronous%28off%29&_txlock=immediate",
		"sqlite://dir/q%3F.db":                                "file:dir/q%3F.db?_txlock=immediate",
		"sqlite:dead.db?x=1":                                  "file:dead.db?_txlock=immediate&x=1",
		"sqlite::memory:":                                     ":memory:?_txlock=immediate",
		"sqlite3:///%C3%BCn%C3%AF/per%25cent%20and%20space.d": "file:/%C3%BCn%C3%AF/per%25cent%20and%20space.d?_txlock=immediate",
	} {
		u := parse(t, raw)
		s, err := sqldb.ReadURL(u, u.Query())
		require.NoError(t, err, raw)
		require.Equal(t, want, s.DSN, raw)
	}
	for raw, want := range map[string]string{
		"postgres://ana:secret@db":        "names no database",
		"mysql://ana:secret@db":           "names no database",
		"mysql://ana:secret@db/a/b":       "names no database",
		"mysql://a%3Ab:secret@db/app":     "colon in the user name",
		"oracle://ana:secret@db/app":      `unknown scheme "oracle"`,
		"sqlite:":                         "names no file",
		"sqlite://ana:secret@/?mode=none": "names no file",
	} {
		u := parse(t, raw)
		_, err := sqldb.ReadURL(u, u.Query())
		require.ErrorContains(t, err, want, raw)
		require.NotContains(t, err.Error(), "secret", raw)
	}
}

// Settings of SQLite in the URL are not repeated.
func TestReadURL_PragmasOfTheURLWin(t *testing.T) {
	t.Parallel()
	u := parse(t, "sqlite://q.db?_pragma=synchronous(off)&_pragma=busy_timeout=1")
	s, err := sqldb.ReadURL(u, u.Query())
	require.NoError(t, err)
	require.Equal(t, []string{"PRAGMA journal_mode = WAL"}, s.Pragmas)
}

// No error of a driver shows a password, in any form, and it is still the same error.
func TestSource_HidesSecrets(t *testing.T) {
	t.Parallel()
	u := parse(t, "postgres://ana:p%40ss%20w@db/app?sslpassword=keyword")
	s, err := sqldb.ReadURL(u, u.Query())
	require.NoError(t, err)
	for _, text := range []string{"bad: p@ss w", "bad: p%40ss%20w", "bad: p%40ss+w", "bad: keyword"} {
		cause := errors.New(text)
		require.Equal(t, "bad: xxxxx", s.Hide(cause).Error())
		require.ErrorIs(t, s.Hide(cause), cause)
	}
	plain := errors.New("refused")
	require.Equal(t, plain, s.Hide(plain))
}

type pgError string

func (e pgError) Error() string    { return string(e) }
func (e pgError) SQLState() string { return string(e) }

type mysqlError struct {
	Number   uint16
	SQLState [5]byte
	Message  string
}

func (e *mysqlError) Error() string { return e.Message }

type mattnNo int

type mattnError struct{ Code, ExtendedCode mattnNo }

func (e mattnError) Error() string { return "locked" }

func TestCode(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]error{
		"40P01": fmt.Errorf("commit: %w", pgError("40P01")),
		"1213":  errors.Join(errors.New("other"), &mysqlError{Number: 1213}),
		"5":     sqliteError(5),
		"6":     mattnError{Code: 6, ExtendedCode: 262},
		"":      errors.New("40P01"),
	} {
		require.Equal(t, want, sqldb.Code(err))
	}
	require.Empty(t, sqldb.Code(nil))
	require.Empty(t, sqldb.Code((*mysqlError)(nil)), "an error that is a nil pointer panics nowhere")
	require.True(t, sqldb.MySQL.Conflict(&mysqlError{Number: 1213}))
	require.False(t, sqldb.PostgreSQL.Conflict(&mysqlError{Number: 1213}))
	require.True(t, sqldb.PostgreSQL.Conflict(pgError("25P03")), "the process stood still in a transaction")
	require.True(t, sqldb.MySQL.Conflict(&mysqlError{Number: 4031}), "and there")
	require.True(t, sqldb.SQLite.Locked(mattnError{Code: 5}))
	require.True(t, sqldb.PostgreSQL.Refused(pgError("22021")))
}

// A service with a spool starts without its database, also behind a proxy that accepts connections for it.
func TestAway(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		dialect sqldb.Dialect
		err     error
		want    bool
	}{
		{sqldb.PostgreSQL, pgError("57P03"), true},
		{sqldb.PostgreSQL, fmt.Errorf("server login has been failing (server_login_retry): %w", pgError("08P01")), true},
		{sqldb.PostgreSQL, fmt.Errorf("unexpected message: %w", pgError("08P01")), false},
		{sqldb.PostgreSQL, fmt.Errorf("connect: %w", io.EOF), true},
		{sqldb.PostgreSQL, fmt.Errorf("connect: %w", pgconn.ErrReadOnlyConnection), true},
		{sqldb.PostgreSQL, fmt.Errorf("read only connection: %w", pgError("28P01")), false},
		{sqldb.PostgreSQL, pgError("25006"), true},
		{sqldb.PostgreSQL, nil, false},
		{sqldb.MySQL, fmt.Errorf("ping: %w", mysql.ErrInvalidConn), true},
		{sqldb.MySQL, &mysqlError{Number: 1045, Message: "invalid connection"}, false},
		{sqldb.MySQL, &mysqlError{Number: 1203}, true},
		{sqldb.MySQL, &mysqlError{Number: 1045}, false},
		{sqldb.SQLite, io.EOF, false},
		{sqldb.PostgreSQL, errors.Join(&net.OpError{Op: "dial", Err: io.EOF}, pgError("28P01")), false},
	} {
		require.Equal(t, tt.want, tt.dialect.Away(tt.err), "%v", tt.err)
	}
}

// A database keeps what the messages of others hold: only its owner reads it.
func TestSource_FilesAreTheOwners(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "q.db")
	u := &url.URL{Scheme: "sqlite", Path: path}
	s, err := sqldb.ReadURL(u, url.Values{})
	require.NoError(t, err)

	careful, err := s.Open(sqldb.Pool{Max: 1, MustExist: true})
	require.NoError(t, err)
	require.ErrorIs(t, careful.PingContext(t.Context()), os.ErrNotExist)
	require.NoError(t, careful.Close())
	require.NoFileExists(t, path)

	db, err := s.Open(sqldb.Pool{Max: 1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	_, err = db.ExecContext(t.Context(), "CREATE TABLE a (b)")
	require.NoError(t, err)
	for _, suffix := range []string{"", "-wal", "-shm"} {
		info, err := os.Stat(path + suffix)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), suffix)
	}
}

// Checking a schema reports what there is and makes nothing; a newer one is refused.
func TestSchema(t *testing.T) {
	t.Parallel()
	u := &url.URL{Scheme: "sqlite", Path: filepath.Join(t.TempDir(), "q.db")}
	s, err := sqldb.ReadURL(u, url.Values{})
	require.NoError(t, err)
	db, err := s.Open(sqldb.Pool{Max: 4})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })

	files := func(names ...string) fstest.MapFS {
		m := fstest.MapFS{}
		for _, name := range names {
			m["migrations/sqlite/"+name+".sql"] = &fstest.MapFile{Data: []byte("-- +goose Up\nCREATE TABLE IF NOT EXISTS t_" + name + " (a);\n")}
		}
		return m
	}
	schema := func(names ...string) sqldb.Schema {
		return sqldb.Schema{Dialect: sqldb.SQLite, Files: files(names...), Table: "versions"}
	}
	one, two := schema("00001_a"), schema("00001_a", "00002_b")
	for range 2 {
		require.ErrorIs(t, one.Check(t.Context(), db), sqldb.ErrSchemaMissing)
	}
	require.NoError(t, one.Up(t.Context(), db))
	require.NoError(t, one.Check(t.Context(), db))
	require.ErrorIs(t, two.Check(t.Context(), db), sqldb.ErrSchemaOlder)
	require.NoError(t, two.Up(t.Context(), db))
	require.NoError(t, two.Up(t.Context(), db))
	require.NoError(t, two.Check(t.Context(), db))
	require.ErrorIs(t, one.Check(t.Context(), db), sqldb.ErrSchemaNewer)
	require.ErrorIs(t, one.Up(t.Context(), db), sqldb.ErrSchemaNewer)
}
