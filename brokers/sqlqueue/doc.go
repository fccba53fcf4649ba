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
// Besides what every broker does, a queue in the application's own database takes part in its transactions:
// [Broker.TxPublisher] publishes in one (the outbox), and [InTx] acks in one. [New] takes a *sql.DB that is open
// already.
//
// # URL
//
//	postgres://user:password@host:5432/database?sslmode=verify-full&x-lease=1m    driver pgx, else postgres
//	mysql://user:password@host:3306/database?x-lease=1m                          driver mysql; mariadb:// is the same
//	sqlite:///var/lib/app/queue.db, sqlite://relative/queue.db                   driver sqlite, else sqlite3
//
// Parameters without x- belong to the database driver. mysql:// takes socket=/run/mysqld.sock in place of the host.
// Ours are these, alongside those of every driver (package brokers); in a brokers.Config they stand under Params
// without the x-:
//
//	parameter          Params key       default   meaning
//	x-driver           driver           scheme's  name of the database/sql driver
//	x-migrate          migrate          true      make and upgrade the tables at start
//	x-lease            lease            30s       how long a message stays with a worker that shows no sign of life
//	x-poll             poll             75ms      longest pause between two looks at an idle queue
//	x-listen           listen           true      use LISTEN and NOTIFY, with PostgreSQL and pgx
//	x-prefetch         prefetch         1024      most messages leased beyond those being handled; 0 for none
//	x-nack-pause       nack-pause       100ms     pause after a nack; doubles with each delivery, up to 64 times
//	x-crash-limit      crash-limit      5         leases in a row without an answer that make a dead letter; 0 for never
//	x-retention        retention        0s        how long acked messages are kept in redrive_queue_archive
//	x-max-message      max-message      0         largest message, headers included; 0 is what the database takes
//	x-max-connections  max-connections  8         size of the pool
//	x-conn-lifetime    conn-lifetime    30m       how long a connection is used; 0 is forever
//
// # Delivery semantics
//
// At least once. Publish returns when the transaction is committed. A topic has one queue per consumer group, and a
// message is a row in each of them from the moment it is published. Groups are registered by Subscribe: a group sees
// what is published after its first Subscribe, and the first group of a topic also sees everything published before.
//
// A worker leases rows in a separate statement: no transaction is open while a handler runs, and no open transaction
// anywhere holds deliveries up. It renews the lease for as long as the handler takes. When a worker dies, others take
// its rows over after x-lease; when it is out of touch with the database for that long, its handler's context is
// cancelled with [ErrLeaseLost], and what it still does to the message has no effect. An ack that came too late counts
// when the message comes to the same process again, which then does not handle it a second time.
//
// On MySQL and SQLite each row has a separate lease. On PostgreSQL new rows are leased up to 490 at a time by one row
// of redrive_queue_leases, and stay as they are until they are acked: an UPDATE of each would cost three times as much
// as reading and deleting it, because it writes a second version of the row and of its index entries. What is nacked,
// rescheduled, renewed or taken over has a separate lease from then on.
//
// An ack deletes the row. Answers gather for up to 5 ms; a crash in that time delivers the messages again. While the
// database cannot store them they are tried again, and the leases kept. A row that another session has locked delays
// no answer but its own. A nack makes the row visible again after x-nack-pause. Rescheduling changes the row itself,
// in one statement that also ends the lease: there is no moment in which a crash delivers a retry twice. The messages
// of one Publish are one transaction, which callers share that publish to one topic at the same time; where the
// database refuses it, each caller's are tried apart. DeliveryCount counts leases since the message was last
// rescheduled.
//
// A message whose handler ends the process gives no answer. Once x-crash-limit of its leases in a row have run out, the
// subscriber dead-letters it before it reaches a handler, with reason crash: to brokers.Config.DeadLetters, and without
// one, or when it fails, to the dead letter topic. The first crash counts for every message that the process had
// leased, later ones only for those whose handlers had begun, and after the second they are run one after the other:
// with a limit of 3 or more, what was handled alongside a message that kills is not treated as it. A nack is an answer
// and no crash.
//
// With concurrency 1 and one worker, messages come in the order of their due times.
//
// # How delay works
//
// A row has a due time in microseconds since 1970, computed and compared by the database's clock. No session's time
// zone and no client's clock can shift it. The index on (queue, due time) holds due rows at its beginning, so that a
// million waiting ones cost nothing. A subscription knows when its next row is due and sleeps until then. It is woken
// earlier by NOTIFY on PostgreSQL with pgx; elsewhere the broker looks after 2, 4, 8 ... ms, at most x-poll, with one
// statement for all of its idle subscriptions. Either way a message comes within 100 ms of its due time, and never
// before.
//
// # Headers
//
// All headers, UUID and payload survive byte for byte. The column headers holds a JSON object for operators' queries,
// or, when a header is not UTF-8, the packed form under the key $binary. Producers that write rows by SQL may put any
// JSON object there. x-delay and Watermill's delay headers are taken from a published message; see package envelope.
//
// # Limits
//
//   - Topics and groups have up to 255 bytes.
//   - A message has up to 256 MiB; on MySQL, max_allowed_packet less 64 KiB; x-max-message sets less. 20 KiB of that
//     are for what a retry or a dead letter adds to the headers of a message that has just fitted.
//   - There are no topic patterns: Subscribe refuses a topic with the word * or #.
//   - A group that stopped consuming for good keeps collecting messages: delete its row in redrive_queues, and those
//     with its id in redrive_queue_messages.
//   - SQLite has one writer at a time. Every publish and claim waits for the disk; concurrent ones share a commit.
//     With _pragma=synchronous(normal) they do not wait, and a loss of power may take the last ones back.
//   - A publish in a transaction that makes the very first message of a new topic blocks other firsts until it ends.
//   - Rows that were acked stay in PostgreSQL's tables until vacuum may remove them, which the oldest open transaction
//     decides. Claims read on behind them; a transaction that stays open for days should still be looked for.
//   - On PostgreSQL the claims of one queue come one after the other, for about a millisecond each.
//   - PostgreSQL keeps one connection for LISTEN. With max-connections below 3 the queue polls.
//   - Behind a pooler such as pgbouncer, also in transaction mode, which is recognised at Open, statements are not
//     prepared under names (default_query_exec_mode=cache_describe, unless the URL says another), and the queue polls
//     where it does not hear its own notification. A pool for [New] needs that parameter in its DSN.
//
// # Why this is not watermill-sql
//
// This began as watermill-sql v3.1.0 with a SchemaAdapter and a separate OffsetsAdapter. Kept are: messages through
// database/sql with any driver, one SQL dialect behind a small seam, and a publisher that takes the caller's
// transaction. Replaced are its publisher and its subscriber, which cannot meet the conformance suite whatever the
// adapters:
//
//   - Its subscriber handles a batch inside the transaction that read it, and acks it by naming its last row, so that
//     with SKIP LOCKED a batch is one message. 16 handlers then hold 16 connections and 16 transactions while they run,
//     and one that outlives AckDeadline is started again concurrently with itself. Here 16 handlers hold none, and are
//     started once. With a handler that does nothing it is about 20 times slower than this queue.
//   - A nack is sent again in place, with the transaction open, and everything behind it waits. There are no delays.
//   - With its own schema and 10,000 messages waiting it is 3 times slower, runs one handler at a time, and keeps
//     every message forever. Any open transaction that has written, in any table, stops it.
//
// BenchmarkConsume and the tests named TestWatermillSQL in the integration module measure these. Plain watermill-sql
// topics work with the retry pipeline, within the same limits; TestWatermillSQL_TopicsWorkWithThePipeline shows how.
package sqlqueue
