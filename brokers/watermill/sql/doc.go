// Package sql opens watermill-sql as a broker: watermill+postgres:// and watermill+mysql:// URLs. The program imports
// the database/sql driver of its choice.
//
//	// with import _ ".../brokers/watermill/sql"
//	broker, err := brokers.Open(ctx, "watermill+postgres://app@localhost/shop")
//
// # URL
//
// The database's own URL behind watermill+; our parameters have an x- before their names, the rest is the database
// driver's. What must wait is kept by a second broker, whose URL is in the environment variable that x-delays-env
// names (REDRIVE_DELAYS_URL): the native queue in the same database (postgres://...) fits.
//
// watermill-sql v3 has no adapter for SQLite, and its subscriber keeps a transaction open while a handler runs, which
// there locks every writer out. watermill+sqlite:// says so; sqlite:// is the native queue.
//
// # Tables
//
// Those of watermill-sql: watermill_{topic} and watermill_offsets_{topic}, which it shares with plain Watermill
// services. The group of a consumer that names none is theirs too, "". Tables that are there are used as they are; new
// ones keep payloads as bytes and ids of any length. A name that the database would cut, and so confuse with another,
// ends in a hash.
//
// # What is configured to avoid which fault of watermill-sql v3.1.0
//
//	payloads as bytes              JSON refuses the very payloads that fail
//	wide ids                       36 characters were not enough for the ids of others
//	one message a transaction      an error in a batch delivered again what was acked before it
//	a long ack deadline            a handler slower than the deadline was started again while it still ran
//	tables made under a lock       services that start together fail to create the same table
//	a close that waits for the ack an ack right before Close was rolled back
//	separate pools                 a subscription holds a connection while its handler runs, and a pool of one is stuck
//	READ COMMITTED on MySQL        a handler that publishes to its own topic waited for its own transaction
//	metadata of any bytes          what is not UTF-8 was replaced
//
// # Limits
//
// One handler at a time for a group and topic. On PostgreSQL any open transaction that has written, in the whole
// cluster, holds deliveries up, and so does a handler of another topic while it runs. Nothing is ever deleted from the
// tables. Package brokers/sqlqueue has none of this.
package sql
