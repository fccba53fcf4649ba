// Package sqlstore keeps dead letters in a SQL database: PostgreSQL, MySQL or MariaDB, or a SQLite file. Import it for
// its side effect of registering the schemes, together with a SQL driver, of which this package imports none.
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
// Opening a store creates the tables, or updates those of an earlier version. Any number of processes may start at
// once: one of them migrates, and the others wait for its lock.
//
// # URL
//
// postgres://user:password@host:5432/database (or postgresql://) is PostgreSQL 12 or later,
// mysql://user:password@host:3306/database (or mariadb://) MySQL 8.0 or later, or MariaDB 10.6 or later. Each of these
// parameters may also have x- before its name:
//
//	archive                PostgreSQL: the schema of the archive. Defaults to archive, or to the name of schema and
//	                       _archive.
//	conn-lifetime  30m     how long a connection is used; 0 means forever
//	driver                 the name of the database/sql driver, if it is registered under another one than pgx or mysql
//	migrate        true    false refuses a store that does not exist or has another version, instead of migrating it
//	partition              PostgreSQL: month partitions the tables by the month in which a letter is stored. This cannot
//	                       be undone.
//	readers        8       the maximum number of connections that read
//	schema                 PostgreSQL: the schema of the tables. Defaults to the first one of the search_path. Missing
//	                       schemas are created.
//	writers        4       the maximum number of connections that write
//
// The driver's own parameters may be added (sslmode, search_path, application_name, tls, timeout, socket ...); any
// other is refused. No error shows a password.
//
// sqlite:///absolute/path, sqlite:relative/path, or just a path, is SQLite 3.42 or later. A missing file is created.
//
//	busy-timeout   5s      how long to wait for another process that writes
//	driver                 the database/sql driver, if several are imported: sqlite (modernc.org) or sqlite3 (mattn)
//	migrate        true    false refuses a file that does not exist or has another version
//	readers        4       the maximum number of connections that read
//	synchronous    full    normal is ten times faster, and may lose the last dead letters when the power fails
//
// # Tables
//
// The view dlq_events has the columns of the table that other systems have under this name, and ours after them:
// event_payload is JSON, or NULL for a payload that the database's JSON functions cannot read, and payload has the
// exact bytes; on PostgreSQL correlation_id is a UUID, or NULL for an id of another form, and correlation its text.
// Behind the view, dlq_entries has what is searched and changed, and dlq_bodies the messages. On PostgreSQL, dlq_keys
// has the ids by which entries are found; on MySQL, dlq_parts has the rest of payloads above 1 MiB.
//
// dlq_groups, dlq_counts and dlq_hours are statistics that every change updates, so that a dashboard scans no entries.
// Call Recount after you have changed dlq_entries by hand. On PostgreSQL an UPDATE of dlq_events (status, resolved_at,
// resolved_by, event_payload, retry_count, max_retries, last_retry_at) and a DELETE from it are counted and audited,
// and a DELETE archives.
//
// dlq_audit is append-only. Triggers enforce this; MySQL, whose binary log is on by default, only lets an application
// create them with log_bin_trust_function_creators = ON. Purged entries are in dlq_events_archive, on PostgreSQL in the
// schema archive, and [Store.Unarchive] restores them.
//
// # Several stores in one database
//
// On PostgreSQL each store has a schema (schema=payroll), and another one for its archive (archive=payroll_archive). On
// MySQL a schema is a database, so each store needs a database. A SQLite file is one store.
//
// # Partitions
//
// On PostgreSQL partition=month partitions dlq_entries and dlq_bodies. The tables of an existing store become the first
// partition as they are, without a copy. New ids begin with their month, so that both tables have the same ranges of
// ids, ids are unique, and an id determines its partition. dlq_keys is not partitioned, because a delivery is one
// entry, whichever month it is redelivered in. [Store.PurgeMonths], which dlq.Manager.Purge calls, drops months.
// docs/operations.md describes the migration.
//
// # Durability
//
// Put returns when the letters are committed. On PostgreSQL each transaction waits for the disk (synchronous_commit =
// on), whatever the database's default is; on MySQL the server's innodb_flush_log_at_trx_commit decides, whose default
// is right.
//
// # Concurrency
//
// Concurrent Puts share a transaction: while one commits, the next callers gather; on a server two commit at once. On
// PostgreSQL, functions of the schema store new letters, dlq_put_letter and dlq_put_letters. A role other than the
// tables' owner needs the right to execute them, which every role has by default. There, a Put of hundreds of letters
// may take several transactions. Any number of processes may share a server's database, and processes of one machine a
// file; a transaction that ends in a deadlock is repeated. [Store.PutTx] stores in a transaction of the caller, and
// blocks no other writer until it commits.
//
// A process that hangs in a transaction keeps the rows that it has locked from all others. The server aborts a
// transaction of ours that is idle for 30 s, unless its own limit is shorter, or PostgreSQL's URL, role or database
// sets one. MySQL ends the session as well, so unused connections are closed after 15 s. Behind a pooler only the
// server's settings apply, and with [New] those of the caller's pool.
//
// # Limits
//
// On MySQL a page of one topic or event type is sorted, because these names are longer than an index allows; on the
// others every page is a range of an index. PayloadText and PayloadFields read every payload that the rest of the
// filter selects, ErrorText every error. On PostgreSQL, indexes make frequent searches for fields of payloads or for
// words in errors fast, and every insert slower. Partitioned tables cannot have an index CONCURRENTLY. The larger
// sample lets the planner know that a word is rare:
//
//	CREATE INDEX CONCURRENTLY ON dlq_bodies USING gin (payload_json jsonb_path_ops);
//
//	CREATE EXTENSION pg_trgm;
//	CREATE INDEX CONCURRENTLY ON dlq_entries USING gin (error_message gin_trgm_ops);
//	ALTER TABLE dlq_entries ALTER error_message SET STATISTICS 1000;
//	ANALYZE dlq_entries (error_message);
package sqlstore
