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
	"path"
	"regexp"

	"github.com/redrive-go/redrive/internal/sqldb"
)

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

// archiveSchema is the schema of the archive.
func (d postgres) archiveSchema() string {
	if d.archiveIn == "" && d.schema != "" {
		return d.schema[:min(len(d.schema), 63-len(archiveSuffix))] + archiveSuffix
	}
	return cmp.Or(d.archiveIn, defaultArchive)
}

// inArchive is the name of a table in the archive.
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
			return fmt.Errorf("schema %s: %w", name, err)
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
