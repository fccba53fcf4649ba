package sqlstore

import "github.com/redrive-go/redrive/internal/sqldb"

// Dialect names the kind of database behind a *sql.DB.
type Dialect = sqldb.Dialect

// The databases that [New] supports.
const (
	PostgreSQL = sqldb.PostgreSQL // 12 and later
	MySQL      = sqldb.MySQL      // MySQL 8.0, MariaDB 10.6 and later
	SQLite     = sqldb.SQLite     // 3.42 and later
)

// purgeQuery removes the oldest expired rows. MySQL supports no subquery on the table that it deletes from, the others
// no LIMIT.
func purgeQuery(d Dialect) string {
	oldest := "until < " + d.Now() + " ORDER BY until LIMIT 1000"
	if d == MySQL {
		return "DELETE FROM redrive_processed WHERE " + oldest
	}
	return "DELETE FROM redrive_processed WHERE (consumer, message_id) IN (SELECT consumer, message_id FROM " +
		"redrive_processed WHERE " + oldest + ")"
}
