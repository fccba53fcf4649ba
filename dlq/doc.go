// Package dlq keeps dead letters as data: it stores them without loss, finds and groups them, and sends them back.
//
// A [Letters] is the sink that the retry pipeline hands its dead letters to. It writes them to a [Store]; while the store cannot
// be reached it appends them to a local file, the spool, and imports that file by itself when the store is back. A [Manager]
// does what an operator does afterwards: list, search, group, look, edit, redrive, resolve, discard, park, restore, export, import,
// purge, one by one or all that a filter picks.
//
//	import (
//		"github.com/redrive-go/redrive/dlq"
//		_ "github.com/redrive-go/redrive/dlq/sqlstore" // sqlite
//		_ "modernc.org/sqlite"                         // your SQL driver
//	)
//
//	letters, err := dlq.Open(ctx, os.Getenv("DLQ_URL")) // "" is the SQLite file dead-letters.db
//	defer letters.Close()
//	pipeline, err := middleware.New(middleware.Config{Rescheduler: broker, DeadLetters: letters})
//	manager := letters.Manager(broker)
//
// # States
//
//	            redrive                 the consumer succeeded
//	PENDING ──────────────> RETRYING ──────────────────────────> RESOLVED
//	  │  ^ ^                   │                                    │
//	  │  │ └───────────────────┘ it died again, or was not published│
//	  │  └──────────── restore ─────────────────────────────────────┤
//	  ├──────────────> resolve ─────────────────────────────────────┘
//	  └──────────────> discard ──> DISCARDED ──> restore ──> PENDING
//
// A message whose redrives are used up (3, see [WithRedriveBudget]) is PARKED instead of PENDING when it dies again, and waits for a
// person: rules, and runs over PENDING entries, leave it alone. Everything that can be done to a PENDING entry can be done to it.
//
// Every arrow is a compare-and-set and a record in an audit log that is only ever appended to: of two operators who press the
// same button one wins, and the other gets a [ConflictError] that names the winner.
//
// # Redrive runs
//
// A bulk redrive is a resource, a [Run]. Its set is frozen when it starts; then it goes on in steps that are one transaction each:
//
//	preview, err := manager.PreviewRun(ctx, spec, 10) // how many, of which topics, what the jq expression makes of ten of them
//	run, err := manager.StartRun(ctx, dlq.RunSpec{
//		Filter: dlq.Filter{Fingerprint: group}, Canary: []int{1, 10, 100}, Rate: 500, JQ: `.currency //= "EUR"`,
//	}, dlq.By{Actor: "ana", Note: "the bank is open"})
//	go manager.Work(ctx)                              // in the server: carries runs on, those of dead processes too
//	run, err = manager.Drive(ctx, run.ID)             // or here and now: one run, until it ends or needs a person
//
// A run is a pipeline: while the broker confirms up to two batches, one transaction claims the next and records the last, and what comes
// behind is read. Batches grow up to 1,000 entries ([WithBatch]) while the broker is fast; a pause, a cancel and a stop take effect
// between two of them. A redriver that publishes whole batches ([BatchRedriver]; those of brokers/rabbitmq and dlq/collector do) is asked
// once for each.
//
// The outcome of each message is what its consumer reports, not that it was published; RunSpec.CloseOnPublish is for consumers
// that report none. A run stops by itself when the share of failures passes RunSpec.Stop, or when the broker takes nothing. A process
// that dies has claimed what it was publishing in the store: the next one waits for the outcomes of these messages first, and
// sends only those again for which none comes within twice the publish timeout ([WithPublishTimeout]). A consumer that is further behind
// than that may get such a message twice, with the same message id.
//
// [Manager.Automate] redrives by rules, with backoff. Nothing is automatic without it.
//
// # Identity
//
// The same delivery dead-lettered twice is one entry: [Entry.Key] is a digest of where the message came from, its id and its
// content. A redriven message carries its entry's id (x-redrive-id) and the number of the redrive (x-redrive-count), so a second
// death comes back to the same entry and a success closes it.
//
// # Spool
//
// The spool is a directory with a numbered subdirectory for each process, which only that process has open. Its files, dlq-<n>.log,
// have a record a line: the CRC-32C in 8 hex digits, a space, JSON with the bytes in base64, a line feed. A record is promised
// when it is written and synced; on any error the file is given up and never written again. Imported files are removed. Two kinds
// stay for a person, with an alarm: dlq-<n>.damaged, in which a line did not match its checksum, and refused.damaged, with
// records that the store would not take although it answers. The spool is bounded (1 GiB); when it is full, DeadLetter fails and
// the message stays with the broker.
//
// Alarms are log records of [LevelCritical]; [Letters.Stats] has the numbers for gauges.
//
// # Guarantees
//
// [Letters.DeadLetter] returns nil only when the dead letter is durable: committed by the store, or written and synced to the
// spool. Payload bytes and headers are kept exactly, whatever they are; the text columns beside them are made valid UTF-8 and
// bounded. A redrive is at least once: a crash between the publish and its record can send a message twice, never lose it.
package dlq
