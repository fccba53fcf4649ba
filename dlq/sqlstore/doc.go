// Package sqlstore keeps dead letters in a SQL database: a SQLite file, for now. Import it for its side effect of registering the
// schemes, together with the SQL driver of your choice; this package imports none.
//
//	import (
//		_ "github.com/redrive-go/redrive/dlq/sqlstore"
//		_ "modernc.org/sqlite"
//	)
//
//	letters, err := dlq.Open(ctx, "sqlite:///var/lib/app/dead.db")
//
// # URL
//
// sqlite:///absolute/path, sqlite:relative/path, or just a path. The file and its schema are made when they are not there. Parameters,
// each also with x- before its name:
//
//	busy_timeout   5s      how long to wait for another process that writes
//	driver                 the database/sql driver to use, when more than one is imported: sqlite (modernc.org) or sqlite3 (mattn)
//	readers        4       connections that read at once
//	synchronous    full    normal is ten times faster and may lose the last dead letters when the power fails
//
// # Tables
//
// The view dlq_events has the columns of the table of that name that others have used (C19), under their names, with the exact
// payload and the rest beside them. Behind it dlq_entries has what is searched and changed, and dlq_bodies the messages. dlq_groups,
// dlq_counts and dlq_hours are statistics that every change keeps up to date, so that no dashboard ever scans the entries; who changes
// dlq_entries by hand calls Recount. dlq_audit is append-only, by triggers. dlq_events_archive has what was purged.
//
// # Concurrency
//
// Concurrent Puts are joined into one transaction: while one commits, the next gather. A file may be shared by processes of one machine.
package sqlstore
