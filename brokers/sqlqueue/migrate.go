package sqlqueue

import (
	"context"
	"database/sql"
	"embed"
	"fmt"

	"github.com/redrive-go/redrive/internal/sqldb"
)

//go:embed migrations
var migrations embed.FS

// schemaTable records the applied migrations.
const schemaTable = "redrive_queue_schema"

// Migrate creates and upgrades the queue's tables in db. Any number of processes may run it concurrently. [New] and the
// driver call it, unless migrate=false.
func Migrate(ctx context.Context, db *sql.DB, name Dialect) error {
	if err := (sqldb.Schema{Dialect: name, Files: migrations, Table: schemaTable}).Up(ctx, db); err != nil {
		return fmt.Errorf("sqlqueue: migrate: %w", err)
	}
	return nil
}
