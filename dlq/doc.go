// Package dlq keeps dead letters as data: it stores them without loss, finds and groups them, and sends them back.
//
// A [Letters] is the sink that the retry pipeline hands its dead letters to. It writes them to a [Store]; while the
// store cannot be reached it appends them to a local file, the spool, and imports that file automatically when the
// store is back. A [Manager] has the operations of an operator: list, search, group, show, edit, redrive, resolve,
// discard, park, restore, export, import, purge, singly or for everything that a filter selects.
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
// A message whose redrives are used up (3, see [WithRedriveBudget]) is PARKED instead of PENDING when it dies again,
// and waits for a person: rules, and runs over PENDING entries, skip it. Otherwise it can be changed like a PENDING
// entry.
//
// Every arrow is a compare-and-set and a record in an append-only audit log: of two operators who press the same button
// one wins, and the other gets a [driver.ConflictError] that names the winner.
//
// Package redrive redrives in bulk, by runs and by rules.
//
// # Identity
//
// The same delivery dead-lettered twice is one entry: [Entry.Key] is a digest of where the message came from, its id
// and its content. A redriven message carries its entry's id (x-redrive-id) and the number of the redrive
// (x-redrive-count), so a second death updates the same entry and a success closes it.
//
// # Spool
//
// The spool is a directory with a numbered subdirectory for each process, which only that process has open. Its file
// named store has the store's URL without its password: only a process with the same store imports what waits there,
// or any process if there is no such file. Remove the file when the store has a new address. The files dlq-<n>.log have
// one record per line: the CRC-32C in 8 hex digits, a space, JSON with the bytes in base64, a line feed. A record is
// durable once it is written and synced; after any error the file is abandoned and never written again. Imported files
// are removed. Three kinds are kept for a person, with an alarm: dlq-<n>.damaged, in which a line did not match its
// checksum, dlq-<n>.torn.damaged, a last line that is incomplete, and refused.damaged, with records that the store
// rejected. The spool is bounded (1 GiB); when it is full, DeadLetter fails and the message stays with the broker.
//
// Alarms are log records of [envelope.LevelCritical]; [Letters.Stats] has the numbers for gauges.
//
// # Guarantees
//
// [Letters.DeadLetter] returns nil only when the dead letter is durable: committed by the store, or written and synced
// to the spool. Payload bytes and headers are stored exactly as they are; the text columns next to them are made valid
// UTF-8 and bounded. Redrives are at least once: a crash between the publish and its record can send a message twice,
// but never loses it.
package dlq
