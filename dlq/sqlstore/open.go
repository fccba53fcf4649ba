package sqlstore

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/internal/scheme"
	"github.com/redrive-go/redrive/internal/sqldb"
)

// target is the database of a URL. Readers and writers have separate pools, so that a dead letter does not wait for the
// connections of a dashboard.
type target struct {
	*sqldb.Source
	dialect dialect

	driver           string
	readers, writers int
	lifetime, idle   time.Duration
	busyTimeout      time.Duration // SQLite
	synchronous      string        // SQLite
	migrate          bool
}

func openURL(ctx context.Context, u *url.URL) (*Store, error) {
	t, err := parseURL(u)
	if err != nil {
		return nil, fmt.Errorf("sqlstore: %w", err)
	}
	s, err := t.open(ctx)
	if err == nil {
		return s, nil
	}
	if ctx.Err() == nil {
		err = t.Dialect.Mark(err, driver.ErrUnavailable)
	}
	return nil, fmt.Errorf("sqlstore: open %s: %w", t.name(), t.Hide(t.Dialect.Advise(err)))
}

// parseURL reads our parameters, and passes on those of the driver that change nothing this package relies on.
func parseURL(u *url.URL) (*target, error) {
	t := &target{readers: 8, writers: 4, lifetime: 30 * time.Minute, idle: 5 * time.Minute, migrate: true}
	own := map[string]sqldb.Param{
		"driver":        sqldb.Text(&t.driver),
		"migrate":       sqldb.Boolean(&t.migrate),
		"readers":       sqldb.Integer(&t.readers, 1, 1000),
		"writers":       sqldb.Integer(&t.writers, 2, 1000), // a migration holds its lock on one
		"conn-lifetime": sqldb.Duration(&t.lifetime),
	}
	var native []string
	var d postgres
	forced := url.Values{}
	switch scheme.Canonical(u.Scheme) {
	case "postgres":
		native = postgresParams
		own["schema"], own["archive"] = readSchema(&d.schema), readSchema(&d.archiveIn)
		own["partition"] = func(value string) error {
			if d.monthly = value == "month"; !d.monthly {
				return errors.New("must be month")
			}
			return nil
		}
	case "mysql":
		native = mysqlParams
		forced.Set("interpolateParams", "true") // one round trip instead of three
	default:
		t.readers, t.writers, t.lifetime, t.idle = 4, 1, 0, 0
		t.busyTimeout, t.synchronous = 5*time.Second, "FULL"
		delete(own, "writers")
		delete(own, "conn-lifetime")
		own["busy-timeout"] = sqldb.Duration(&t.busyTimeout)
		own["synchronous"] = t.readSynchronous
	}
	params, err := sqldb.ReadParams(u, own, func(key string) bool { return slices.Contains(native, key) })
	if err != nil {
		return nil, err
	}
	if d.schema != "" {
		if params.Has("search_path") {
			return nil, errors.New("postgres URL: schema and search_path exclude each other")
		}
		forced.Set("search_path", d.schema) // alone: a missing table must not be found in another schema
	}
	maps.Copy(params, forced)
	if t.Source, err = sqldb.ReadURL(u, params); err != nil {
		return nil, err
	}
	switch t.Dialect {
	case sqldb.PostgreSQL:
		t.Drivers = []string{"pgx"} // it accepts slices as arrays
		t.dialect = d
	case sqldb.MySQL:
		t.dialect = mysql{}
	case sqldb.SQLite:
		t.dialect = sqlite{}
		t.Pragmas = t.pragmas()
	}
	return t, nil
}

func (t *target) readSynchronous(value string) error {
	t.synchronous = strings.ToUpper(value)
	if t.synchronous != "FULL" && t.synchronous != "NORMAL" && t.synchronous != "EXTRA" {
		return errors.New("must be full, extra or normal; normal may lose the last dead letters on a power loss")
	}
	return nil
}

// name is the database in error messages.
func (t *target) name() string {
	if t.Dialect == sqldb.SQLite {
		return "sqlite file " + t.Path
	}
	return string(t.Dialect)
}

func (t *target) open(ctx context.Context) (*Store, error) {
	s := &Store{dialect: t.dialect}
	if t.Dialect == sqldb.SQLite && !t.InMemory() {
		s.spoolDir = t.Path + "-spool"
	}
	if err := t.pools(ctx, s); err != nil {
		return nil, err
	}
	return s, s.start(ctx, !t.migrate)
}

// pools makes the pools. SQLite has one writer at a time: a second connection would wait in SQLite's busy handler,
// which polls, instead of in the writer's queue. An in-memory database belongs to one connection, so it has one pool.
func (t *target) pools(ctx context.Context, s *Store) (err error) {
	write := sqldb.Pool{
		Driver: t.driver, Max: t.writers, Lifetime: t.lifetime, Idle: t.idle, IdleTx: sqldb.IdleTx,
		MustExist: !t.migrate, Writes: t.migrate, // otherwise, a standby may be read
	}
	read := write
	read.Max = t.readers
	if t.Dialect == sqldb.SQLite {
		write.Pragmas, read.Pragmas = []string{"PRAGMA journal_mode=WAL"}, []string{"PRAGMA query_only=1"}
	}
	if s.write, err = t.Connect(ctx, write); err != nil {
		return err
	}
	if s.read = s.write; t.InMemory() {
		return nil
	}
	if s.read, err = t.Open(read); err != nil {
		return errors.Join(err, s.write.Close())
	}
	return nil
}

// postgresParams are the parameters of pgx and of PostgreSQL's client library, and the session settings that are useful
// here. Others can be set by options=-c%20name=value.
var postgresParams = []string{
	"application_name", "channel_binding", "client_encoding", "connect_timeout", "default_query_exec_mode",
	"description_cache_capacity", "host", "idle_in_transaction_session_timeout", "krbspn", "krbsrvname", "lock_timeout",
	"options", "passfile", "password", "port", "role", "search_path", "service", "servicefile", "sslcert", "sslkey",
	"sslmode", "sslnegotiation", "sslpassword", "sslrootcert", "sslsni", "statement_cache_capacity", "statement_timeout",
	"target_session_attrs", "timezone", "user", "work_mem",
}

// mysqlParams are the parameters of go-sql-driver that change nothing this package relies on.
var mysqlParams = []string{
	"allowCleartextPasswords", "allowFallbackToPlaintext", "allowNativePasswords", "allowOldPasswords",
	"checkConnLiveness", "collation", "compress", "connectionAttributes", "maxAllowedPacket", "parseTime", "readTimeout",
	"rejectReadOnly", "serverPubKey", "socket", "timeout", "tls", "writeTimeout",
}

// schemes are the URL schemes of this package.
var schemes = []string{"sqlite", "sqlite3", "postgres", "postgresql", "mysql", "mariadb"}

func init() {
	for _, scheme := range schemes {
		driver.Register(scheme, opener{})
	}
}

// opener is their driver.Driver.
type opener struct{}

var _ driver.Driver = opener{}

// OpenStore opens the store that the URL names.
func (opener) OpenStore(ctx context.Context, u *url.URL) (dlq.Store, error) {
	s, err := openURL(ctx, u)
	if err != nil {
		return nil, err // not s: a nil *Store in an interface is not nil
	}
	return s, nil
}

// On PostgreSQL a store is in the first schema of its connections' search_path, and its archive in another schema, so
// that several stores can share one database.

// defaultArchive is the archive's schema for a store whose URL has no schema.
const defaultArchive = "archive"

// archiveSuffix is appended to the name of a store's schema for that of its archive.
const archiveSuffix = "_archive"

// schemaName matches what PostgreSQL accepts as a name without quotes.
var schemaName = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)

// readSchema reads the name of a schema, which must not need quotes in a search_path or in a statement that someone
// writes by hand.
func readSchema(to *string) sqldb.Param {
	return func(value string) error {
		if err := checkSchema(value); err != nil {
			return err
		}
		*to = value
		return nil
	}
}

func checkSchema(name string) error {
	if !schemaName.MatchString(name) {
		return errors.New("must be the name of a schema: at most 63 lower-case letters, digits and _, and no digit first")
	}
	return nil
}

func (d postgres) archiveSchema() string {
	if d.archiveIn == "" && d.schema != "" {
		return d.schema[:min(len(d.schema), 63-len(archiveSuffix))] + archiveSuffix
	}
	return cmp.Or(d.archiveIn, defaultArchive)
}

func (d postgres) inArchive(table string) string {
	if d.archiveSchema() == defaultArchive {
		return defaultArchive + "." + table
	}
	return quoteName(d.archiveSchema()) + "." + table
}

// makeSchemas creates the missing schemas. A role that may not create any uses existing ones.
func (d postgres) makeSchemas(ctx context.Context, db *sql.DB) error {
	for _, name := range []string{d.schema, d.archiveSchema()} {
		if name == "" {
			continue
		}
		var there bool
		err := db.QueryRowContext(ctx, "SELECT to_regnamespace($1) IS NOT NULL", quoteName(name)).Scan(&there)
		if err == nil && !there {
			_, err = db.ExecContext(ctx, "CREATE SCHEMA IF NOT EXISTS "+quoteName(name))
		}
		if err != nil && !sqldb.IsCode(err, "23505", "42P06") { // another process was faster
			return fmt.Errorf("schema %s (schema=NAME and archive=NAME in the store's URL name others): %w", name, err)
		}
	}
	return nil
}

// checkPath rejects connections that would use the tables of another store.
func (d postgres) checkPath(ctx context.Context, pools ...*sql.DB) error {
	for _, db := range pools {
		var first sql.NullString
		if err := db.QueryRowContext(ctx, "SELECT current_schema()").Scan(&first); err != nil {
			return err
		}
		if d.schema != "" && first.String != d.schema {
			return fmt.Errorf("schema %s does not exist, or is not the first in the search_path of the connections, which is"+
				" %q: an application's pool needs search_path=%s, and a pooler must pass it on", d.schema, first.String, d.schema)
		}
	}
	return nil
}

// archivedFiles are the migrations with the name of the archive's schema filled in.
type archivedFiles struct {
	fs.FS
	dialect postgres
}

// Open returns a migration.
func (f archivedFiles) Open(name string) (fs.File, error) {
	file, err := f.FS.Open(name)
	if err != nil || f.dialect.archiveSchema() == defaultArchive || path.Ext(name) != ".sql" {
		return file, err
	}
	text, err := io.ReadAll(file)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	text = bytes.ReplaceAll(text, []byte(defaultArchive+".dlq_"), []byte(f.dialect.inArchive("dlq_")))
	return &migrationFile{File: file, text: bytes.NewReader(text)}, nil
}

// migrationFile is a file with replaced text.
type migrationFile struct {
	fs.File
	text io.Reader
}

// Read reads the text.
func (f *migrationFile) Read(p []byte) (int, error) { return f.text.Read(p) }

// versionTable is where goose records the applied migrations, apart from those of the application.
const versionTable = "dlq_schema_version"

//go:embed migrations/*/*.sql
var migrations embed.FS

// migrate updates the schema, or checks that it is up to date. Any number of processes may call it at once.
func (s *Store) migrate(ctx context.Context, keepSchema bool) error {
	schema := sqldb.Schema{Dialect: s.dialect.name(), Files: migrations, Table: versionTable}
	if d, ok := s.dialect.(postgres); ok {
		schema.Files = archivedFiles{migrations, d}
		if !keepSchema && errors.Is(schema.Check(ctx, s.write), sqldb.ErrSchemaMissing) {
			if err := d.makeSchemas(ctx, s.write); err != nil {
				return err
			}
		}
		if err := d.checkPath(ctx, s.write, s.read); err != nil {
			return err
		}
	}
	if keepSchema {
		return remedy(schema.Check(ctx, s.write))
	}
	if err := schema.Up(ctx, s.write); err != nil {
		return fmt.Errorf("migrate: %w", remedy(err))
	}
	return s.dialect.ready(ctx, s.write)
}

// remedy explains how to fix a schema error.
func remedy(err error) error {
	switch {
	case errors.Is(err, sqldb.ErrSchemaMissing):
		return fmt.Errorf("%w: \"redrive migrate\" creates them, as does a service that opens the store", err)
	case errors.Is(err, sqldb.ErrSchemaOlder):
		return fmt.Errorf("%w: \"redrive migrate\" of this version updates them, as does a service that opens the store", err)
	case sqldb.IsCode(err, "42P07"):
		return fmt.Errorf("%w: another system has tables with the names of this store's:"+
			" \"redrive migrate --from-table dlq_events\" takes over a table of dead letters,"+
			" and schema=NAME in the store's URL keeps the store in another schema", err)
	}
	return err
}
