// Package sqlqueue is a message queue in PostgreSQL, MySQL, MariaDB or SQLite, through database/sql. The program brings
// the driver:
//
//	import (
//		_ "github.com/jackc/pgx/v5/stdlib"                 // or go-sql-driver/mysql, or modernc.org/sqlite
//		_ "github.com/redrive-go/redrive/brokers/sqlqueue"
//	)
//
//	broker, err := brokers.Open(ctx, "postgres://app@db.example.com/app")
//
// In addition to what every broker does, a queue in the application's own database takes part in its transactions:
// [Broker.TxPublisher] publishes in one (the outbox), and [InTx] acks in one. [New] accepts an open *sql.DB.
//
// # URL
//
//	postgres://user:password@host:5432/database?sslmode=verify-full&x-lease=1m    driver pgx, else postgres
//	mysql://user:password@host:3306/database?x-lease=1m                          driver mysql; mariadb:// is the same
//	sqlite:///var/lib/app/queue.db, sqlite://relative/queue.db                   driver sqlite, else sqlite3
//
// Parameters without x- belong to the database driver. mysql:// accepts socket=/run/mysqld.sock instead of a host. With
// pgx, target_session_attrs=read-write is the default: a failover leaves no connections to a read-only server. Ours are
// these, in addition to those of every driver (package brokers); in a brokers.Config they are in Params without the x-:
//
//	parameter          Params key       default   meaning
//	x-driver           driver           scheme's  name of the database/sql driver
//	x-migrate          migrate          true      create and upgrade the tables at start
//	x-lease            lease            30s       how long a message stays with a worker that does not renew it
//	x-poll             poll             75ms      longest pause between two polls of an idle queue
//	x-prefetch         prefetch         1024      most messages leased beyond those being handled; 0 for none
//	x-nack-pause       nack-pause       100ms     pause after a nack; doubles with each delivery, up to 64 times
//	x-crash-limit      crash-limit      5         leases in a row that may expire before a dead letter; 0 for no limit
//	x-max-message      max-message      0         largest message, headers included; 0 for what the database accepts
//	x-max-connections  max-connections  8         size of the pool, and of a second one for handlers in InTx
//
// # Delivery semantics
//
// At least once. Publish returns when the transaction is committed. A topic has one queue per consumer group, and a
// message is a row in each of them as soon as it is published. Subscribe registers groups: a group receives messages
// published after its first Subscribe, and the first group of a topic also those published before.
//
// A worker leases rows by a statement: no transaction is open while a handler runs, and open transactions elsewhere
// delay no delivery. It renews the lease for as long as the handler takes. When a worker dies, others take
// over its rows after x-lease; if it cannot reach the database for that long, its handler's context is cancelled with
// [ErrLeaseLost], and the outcome of that handler has no effect. An ack that was too late is applied if the message is
// redelivered to the same process, which then does not handle it again. A worker that hangs while the server waits for
// it in a transaction, as a suspended machine does, delays others for at most 30 seconds more, except behind a pooler.
//
// On MySQL and SQLite each row has a separate lease. On PostgreSQL up to 490 new rows at a time are leased by one row
// of redrive_queue_leases, and are not changed until they are acked: an UPDATE of each would cost three times as much
// as reading and deleting it, because it writes a second version of the row and of its index entries. A row that is
// nacked, rescheduled, renewed or taken over has a separate lease from then on.
//
// An ack deletes the row. Acks and nacks are collected for up to 5 ms; a crash in that time redelivers the messages.
// While the database cannot store them they are retried, and the leases kept. A row locked by another session delays
// only its own ack. A nack makes the row visible again after x-nack-pause. Rescheduling changes the row itself, in one
// statement that also ends the lease: a crash can never deliver a retry twice. The messages of one Publish are one
// transaction, which concurrent callers that publish to the same topic share; if the database refuses it, each caller's
// messages are tried separately. DeliveryCount counts leases since the message was last rescheduled.
//
// A message whose handler kills the process is never settled. Once x-crash-limit consecutive leases have expired, the
// subscriber dead-letters it before it reaches a handler, with reason crash: to brokers.Config.DeadLetters or, without
// one or if that fails, to the dead letter topic. The first crash counts for every message leased by the process, later
// ones only for those whose handlers had started, and after the second they run one at a time: with a limit of 3 or
// more, messages handled alongside a killer are not mistaken for it. A nack does not count as a crash.
//
// With concurrency 1 and one worker, messages are delivered in the order of their due times.
//
// # How delay works
//
// A row has a due time in microseconds since 1970, computed and compared by the database's clock. No session's time
// zone and no client's clock can shift it. The index on (queue, due time) starts with the due rows, so a million
// waiting ones cost nothing. A subscription knows when its next row is due and sleeps until then. It is woken earlier
// by NOTIFY on PostgreSQL with pgx; elsewhere the broker polls after 2, 4, 8 ... ms, at most x-poll, with one statement
// for all of its idle subscriptions. Either way a message arrives within 100 ms of its due time, and never earlier.
//
// # Headers
//
// All headers, UUID and payload survive byte for byte. The column headers holds a JSON object for operators' queries
// or, if a header is not UTF-8, all of them in base64 under the key $binary. Producers that insert rows by SQL may use
// any JSON object. x-delay and Watermill's delay headers are taken from a published message; see package envelope.
//
// # Limits
//
//   - Topics, including dead letter topics, and groups have up to 255 bytes.
//   - A message has up to 256 MiB; on MySQL, max_allowed_packet less 64 KiB; x-max-message sets less. 20 KiB of that
//     are for what a retry or a dead letter adds to the headers of a message that has just fitted.
//   - There are no topic patterns: Subscribe refuses a topic with the word * or #.
//   - A group that has stopped consuming for good keeps collecting messages: delete its row in redrive_queues, and
//     those with its id in redrive_queue_messages.
//   - SQLite has one writer at a time. Every publish and claim waits for the disk; concurrent ones share a commit.
//     With _pragma=synchronous(normal) they do not wait, and a loss of power may take the last ones back.
//   - The first publish to a new topic, in a transaction, blocks others to that topic until the transaction ends. On
//     MySQL, a new group of a topic waits for the transactions that publish to it.
//   - Acked rows stay in PostgreSQL's tables until vacuum may remove them, which the oldest open transaction prevents.
//     Claims start behind them, but do not leave a transaction open for days.
//   - On PostgreSQL the claims of one queue come one after the other, for about a millisecond each.
//   - PostgreSQL keeps one connection for LISTEN. With max-connections below 3 the queue polls.
//   - Behind a pooler such as pgbouncer, also in transaction mode, which is recognised at Open, statements are not
//     prepared under names (default_query_exec_mode=cache_describe, unless the URL says another), and the queue polls
//     where it does not hear its own notification. A pool for [New] needs that parameter in its DSN.
//
// # Why this is not watermill-sql
//
// Whatever its adapters, watermill-sql v3.1.0 handles a batch inside the transaction that read it, and acks it by
// naming its last row. So a handler holds a connection and a transaction, runs again concurrently with itself after
// AckDeadline, and a nack holds up everything behind it. Here a handler holds neither. BenchmarkConsume and the tests
// named TestWatermillSQL in the integration module measure the difference; plain watermill-sql topics work with the
// retry pipeline, within these limits.
package sqlqueue
