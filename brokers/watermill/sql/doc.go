// Package sql opens watermill-sql as a broker: watermill+postgres:// and watermill+mysql:// URLs. The program imports
// the database/sql driver of its choice.
//
//	// with import _ ".../brokers/watermill/sql"
//	broker, err := brokers.Open(ctx, "watermill+postgres://app@localhost/shop")
//
// # URL
//
// The database's own URL behind watermill+; our parameters start with x-, the rest belongs to the database driver.
// Delayed messages wait in a second broker, whose URL is in the environment variable named by x-delays-env
// (REDRIVE_DELAYS_URL): the native queue in the same database (postgres://...) is suitable.
//
// watermill-sql v3 has no adapter for SQLite, and its subscriber keeps a transaction open while a handler runs, which
// locks out every writer there. watermill+sqlite:// explains this; sqlite:// is the native queue.
//
// # Tables
//
// Those of watermill-sql: watermill_{topic} and watermill_offsets_{topic}, which it shares with plain Watermill
// services. The group of a consumer that names none is also theirs, "". Existing tables are used unchanged; new ones
// store payloads as bytes and ids of any length. A name that the database would truncate, and so confuse with another,
// ends in a hash.
//
// # Configuration that avoids faults of watermill-sql v3.1.0
//
//	payloads as bytes              JSON refuses just the payloads that fail
//	wide ids                       other producers' ids did not fit 36 characters
//	one message a transaction      an error in a batch redelivered the messages acked before it
//	a long ack deadline            a handler slower than the deadline was started again while it still ran
//	tables created under a lock    services that started together failed to create the same table
//	a close that waits for the ack an ack right before Close was rolled back
//	separate pools                 a subscription holds a connection while its handler runs, so a pool of one got stuck
//	READ COMMITTED on MySQL        a handler that published to its own topic waited for its own transaction
//	metadata of any bytes          bytes that are not UTF-8 were replaced
//	pgx: writable servers only     a failover left connections to a read-only server, which nothing works on
//
// # Limits
//
// There is one handler at a time for a group and topic. On PostgreSQL any open transaction that has written, in the
// whole cluster, delays deliveries, and so does a handler of another topic while it runs. Nothing is ever deleted from
// the tables. Package brokers/sqlqueue has none of these limits.
package sql
