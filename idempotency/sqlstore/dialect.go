package sqlstore

import (
	"strconv"
	"strings"
)

// Dialect names the kind of database behind a *sql.DB.
type Dialect string

// The databases that [New] takes.
const (
	PostgreSQL Dialect = "postgres" // 12 and later
	MySQL      Dialect = "mysql"    // MySQL 8.0, MariaDB 10.6 and later
	SQLite     Dialect = "sqlite"   // 3.42 and later
)

// dialect is what differs between the databases.
type dialect struct {
	now          string // microseconds since 1970, in no session's time zone
	bind         func(query string) string
	insertIgnore func(insert string) string
	purge        string
}

var dialects = map[Dialect]dialect{
	PostgreSQL: withPurge(dialect{
		// clock_timestamp: in the handler's transaction, time goes on.
		now:          "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
		bind:         numbered,
		insertIgnore: onConflict,
	}, "DELETE FROM redrive_processed WHERE (consumer, message_id) IN (SELECT consumer, message_id FROM redrive_processed "+
		"WHERE until < {now} ORDER BY until LIMIT 1000)"),
	MySQL: withPurge(dialect{
		now:          "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
		bind:         func(query string) string { return query },
		insertIgnore: func(insert string) string { return insert + " ON DUPLICATE KEY UPDATE owner = redrive_processed.owner" },
	}, "DELETE FROM redrive_processed WHERE until < {now} ORDER BY until LIMIT 1000"),
	SQLite: withPurge(dialect{
		now:          "CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000",
		bind:         func(query string) string { return query },
		insertIgnore: onConflict,
	}, "DELETE FROM redrive_processed WHERE (consumer, message_id) IN (SELECT consumer, message_id FROM redrive_processed "+
		"WHERE until < {now} ORDER BY until LIMIT 1000)"),
}

func withPurge(d dialect, purge string) dialect {
	stable := strings.Replace(d.now, "clock_timestamp", "statement_timestamp", 1) // an index condition can use it
	d.purge = strings.Replace(purge, "{now}", stable, 1)
	return d
}

func onConflict(insert string) string { return insert + " ON CONFLICT DO NOTHING" }

// numbered rewrites each ? into $1, $2, ... The statements here hold no literal question marks.
func numbered(query string) string {
	var b strings.Builder
	for n := 1; ; n++ {
		before, after, found := strings.Cut(query, "?")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		b.WriteByte('$')
		b.WriteString(strconv.Itoa(n))
		query = after
	}
}
