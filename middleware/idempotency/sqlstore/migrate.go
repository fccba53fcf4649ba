package sqlstore

import (
	"context"
	"database/sql"
	"embed"
	"io/fs"

	"github.com/redrive-go/redrive/internal/sqldb"
)

//go:embed migrations
var migrations embed.FS

func migrate(ctx context.Context, db *sql.DB, name Dialect) error {
	dir, err := fs.Sub(migrations, "migrations/"+string(name))
	if err != nil {
		return err
	}
	return sqldb.Schema{Dialect: name, Files: dir, Table: "redrive_processed_schema"}.Up(ctx, db)
}
