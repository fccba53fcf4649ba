// Package sqlstore keeps dead letters in a SQL database: PostgreSQL, MySQL or MariaDB, or a SQLite file. Import it for
// its side effect of registering the schemes, together with the SQL driver; this package imports none.
//
//	import (
//		_ "github.com/redrive-go/redrive/dlq/sqlstore"
//		_ "github.com/jackc/pgx/v5/stdlib"             // or
//		_ "github.com/go-sql-driver/mysql"             // or
//		_ "modernc.org/sqlite"
//	)
//
//	letters, err := dlq.Open(ctx, "postgres://app:password@db:5432/app")
//
// The tables are made and brought up to date when the store is opened, by one process under a lock of the database,
// however many start at once.
//
// # URL
//
// postgres://user:password@host:5432/database (or postgresql://) is PostgreSQL 12 or later,
// mysql://user:password@host:3306/database (or mariadb://) MySQL 8.0, MariaDB 10.6 or later. Parameters, each also with
// x- before its name:
//
//	archive                PostgreSQL: the schema of the archive; archive, or the name of schema and _archive
//	conn-lifetime  30m     how long a connection is used; 0 is forever
//	driver                 the database/sql driver to use, when it is registered under another name than pgx or mysql
//	migrate        true    makes the tables and brings them up to date; false refuses a store that is missing or of
//	                       another version
//	partition              PostgreSQL: month makes the tables partitioned by the month in which a letter is stored;
//	                       forever
//	readers        8       connections that read, at most
//	schema                 PostgreSQL: the schema of the tables; the first one of the search_path. Both are made when
//	                       they are not there
//	writers        4       connections that write, at most
//
// The driver's own parameters stand next to them (sslmode, search_path, application_name, tls, timeout, socket ...);
// any other is refused. No error shows a password.
//
// sqlite:///absolute/path, sqlite:relative/path, or just a path, is SQLite 3.35 or later. A missing file is created.
//
//	busy-timeout   5s      how long to wait for another process that writes
//	driver                 the database/sql driver to use, when more than one is imported: sqlite (modernc.org) or
//	                       sqlite3 (mattn)
//	migrate        true    false refuses a file that is missing or of another version
//	readers        4       connections that read at once
//	synchronous    full    normal is ten times faster and may lose the last dead letters when the power fails
//
// # Tables
//
// The view dlq_events has the columns of the table of that name that others have used, under their names, with
// the exact payload and the rest alongside them: event_payload is JSON, or NULL for a payload that the database's JSON
// cannot hold; correlation_id on PostgreSQL is a UUID, or NULL for an id of another form, and correlation its text.
// Behind the view dlq_entries has what is searched and changed, and dlq_bodies the messages; on PostgreSQL, dlq_keys
// has the ids by which entries are found, and on MySQL dlq_parts the rest of payloads above 1 MiB. dlq_groups,
// dlq_counts and dlq_hours are statistics that every change keeps up to date, so that no dashboard ever scans the
// entries; who changes dlq_entries by hand calls Recount. On PostgreSQL an UPDATE of dlq_events (status, resolved_at,
// resolved_by, event_payload, retry_count, max_retries, last_retry_at) and a DELETE from it are counted and audited,
// and a DELETE archives. dlq_audit is append-only, by triggers where the server lets
// an application make them: MySQL, whose binary log is on by default, with log_bin_trust_function_creators = ON. Purged
// entries are in archive.dlq_events_archive on PostgreSQL, else in dlq_events_archive, and [Store.Unarchive] restores
// them.
//
// # Several stores in one database
//
// On PostgreSQL each has a schema (schema=payroll), and an archive in another (archive=payroll_archive). On MySQL a
// schema is a database: each store has one, on as many servers as you like. A SQLite file is one store.
//
// # Partitions
//
// On PostgreSQL partition=month makes dlq_entries and dlq_bodies partitioned, also of a store that is there, whose
// tables become the first partition without a copy. The ranges are of ids, which then begin with a month, so both
// tables have the same, ids are unique, and an id determines its partition; dlq_keys, by which a delivery is one entry,
// stays whole. [Store.PurgeMonths], which dlq.Manager.Purge calls, drops months. docs/operations.md describes the
// migration.
//
// # Durability
//
// Put returns when the letters are committed. PostgreSQL waits for the disk in each transaction (synchronous_commit =
// on), whatever the database's default says; on MySQL that is the server's innodb_flush_log_at_trx_commit, whose
// default is right.
//
// # Concurrency
//
// Concurrent Puts are joined into one transaction: while one commits, the next gather; on a server two commit at once.
// On PostgreSQL new letters are stored by functions of the schema, dlq_put_letter and dlq_put_letters, which a role
// other than the tables' owner needs the right to execute (by default every role has it), and a Put of hundreds of
// letters may be several transactions. Any number of processes may share a server's database, and processes of one
// machine a file; transactions that end in a deadlock are tried again. [Store.PutTx] stores in a transaction of the
// caller's, and blocks no other writer until that is committed.
//
// A process that hangs in a transaction keeps others from the rows that it has locked. The server ends one of ours that
// does nothing for 30 s, unless its own bound is shorter or PostgreSQL's URL, role or database has one. MySQL ends the
// session, so that a connection which is not used is closed after 15 s. Behind a pooler the server's settings are all
// there is, and with [New] those of the caller's pool.
//
// # Limits
//
// On MySQL a page of one topic or event type is sorted, because its names are longer than an index takes; on the others
// every page is a range of an index. PayloadText and PayloadFields read every payload that the rest of a filter leaves,
// ErrorText every error. On PostgreSQL, indexes make frequent searches for fields of payloads or for words in errors
// fast, and every insert slower. With the larger sample, the planner knows that a word is rare; partitioned tables
// cannot have an index CONCURRENTLY:
//
//	CREATE INDEX CONCURRENTLY ON dlq_bodies USING gin (payload_json jsonb_path_ops);
//
//	CREATE EXTENSION pg_trgm;
//	CREATE INDEX CONCURRENTLY ON dlq_entries USING gin (error_message gin_trgm_ops);
//	ALTER TABLE dlq_entries ALTER error_message SET STATISTICS 1000;
//	ANALYZE dlq_entries (error_message);
package sqlstore
