package sqlstore

import (
	"context"
	"embed"
	"errors"
	"fmt"

	"github.com/redrive-go/redrive/internal/sqldb"
)

// versionTable is where the migrator records its progress; separate, to avoid the application's.
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
		return fmt.Errorf("%w: this is not a dead letter store yet; \"redrive migrate\" makes one, as does a service that "+
			"opens it", err)
	case errors.Is(err, sqldb.ErrSchemaOlder):
		return fmt.Errorf("%w: \"redrive migrate\" of this version brings them up to date, as does a service that opens "+
			"the store", err)
	case sqldb.IsCode(err, "42P07"):
		return fmt.Errorf("%w: tables of another system have names of this store:"+
			" \"redrive migrate --from-table dlq_events\" takes over a table of dead letters,"+
			" and schema=NAME in the store's URL keeps a store apart from it", err)
	}
	return err
}
