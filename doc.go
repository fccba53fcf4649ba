// Package redrive is the root of a framework on Watermill for Go services that consume messages: what happens when they
// fail. It holds no code; start with one of these packages.
//
//   - envelope: the layout of a message, from any producer and on any broker
//   - middleware: the pipeline that retries without blocking, dead-letters and defers
//   - brokers: RabbitMQ, Kafka, NATS, a SQL database, any Watermill Pub/Sub or memory, opened by URL, below the same
//     handlers
//   - dlq: dead letters as data, and what an operator does with them
//
// middleware, brokers and dlq do not know each other. They meet in the program that uses them:
//
//	broker, err := brokers.Open(ctx, os.Getenv("BROKER_URL")) // mem://, amqp://, kafka://, postgres://
//	letters, err := dlq.Open(ctx, os.Getenv("DLQ_URL"))       // a SQLite file by default
//	pipeline, err := middleware.New(middleware.Config{Rescheduler: broker, DeadLetters: letters})
//	router.AddMiddleware(pipeline.Middleware)
//	router.AddConsumerHandler("orders", "orders", broker.Subscriber(), handleOrder)
//
// docs/architecture.md walks a message through them, file by file.
//
// # Glossary
//
// One meaning a word, in code, logs and pages:
//
//   - delivery: a message as one consumer got it, once; the same message may be delivered again
//   - attempt: one run of the handler, counted from 1; a retry is a later attempt, counted from 1
//   - consumer: the processes that share one queue's messages: a group on a topic
//   - in flight: delivered and not settled yet
//   - settle: answer a delivery, once: ack, nack, or release, which is a nack that counts nothing
//   - kind: what an error means: retryable, permanent, malformed, or unknown
//   - rule: decides the kind of an error (middleware.Rule), or what redrive serve redrives (redrive.Rule)
//   - decision: what the pipeline does with a failed attempt: retry, dead-letter, skip, defer, return
//   - outcome: how a delivery ended, for metrics and logs
//   - reschedule: deliver a message again to the same consumer after a delay; defer is the same with no attempt
//     consumed
//   - park: keep a message aside until it is due, or an entry until a person looks at it
//   - dead letter: a message that is not retried any more, with the reason; an entry is one in a store
//   - sink: takes dead letters: a store, a queue, the spool
//   - spool: the file that takes dead letters while the store is down
//   - cause: the dead letters with one fingerprint, which is the error without what varies
//   - redrive: send an entry's message back to the consumer that failed; a run redrives a frozen set of them
//   - claim: the lease under which one redrive or worker has an entry or a row
//   - observer: is called with what happened, for metrics and traces, and changes nothing
//   - suspect: a delivery that may have killed its process, and therefore runs alone
//   - stage: a message between two publications by us, so that a replay of one is recognized
//   - transport: what a broker package implements; the engine above it keeps the promises
package redrive
