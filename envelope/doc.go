// Package envelope defines the message layout that everything else builds on: one immutable value for every message,
// from any producer and in either of two lossless modes, with fast paths for a pipeline to read and record its state.
//
// Start with [New] to create a message, [FromMessage] to read one, and [Handle] to write a handler that takes decoded
// data. A pipeline needs [ReadControl] before the handler and [RecordFailure] after it; neither decodes the payload.
//
// # Modes
//
// In binary mode, the default, the payload is the data, untouched, and control data are headers. In structured mode the
// payload is a JSON object with the members message_id, timestamp, version, source, queue, data, metadata, error and
// retry_count; data that are not JSON in UTF-8, or are surrounded by white space, are in data_base64 instead of data,
// as in CloudEvents. A failure changes the values of error and retry_count in that object and no other byte.
//
// A message is structured if
//
//   - its content type ([KeyContentType] or [KeyAMQPContentType]) is [ContentType]; or
//   - its payload is a JSON object that has message_id, timestamp, version, source, queue and data (or data_base64) at
//     its top level, or that has the first five of them and then ends early or breaks JSON's syntax;
//
// and binary if neither holds, or if it has the header x-envelope-version, which binary mode always writes: data that
// happen to be an envelope remain data. A structured message that cannot be read is [ErrMalformed]: never retried,
// never changed. Metadata, error and retry_count may be missing or null. If a member occurs twice, the last one counts.
// Other members are kept. A message stays in its mode unless [Envelope.WithMode] converts it.
//
// # Headers
//
// All values are strings. Times are RFC 3339 in UTC; ms is a decimal number of milliseconds. "Pipeline" is the
// middleware, by RecordFailure or RecordDeferral. The last column is the system, of five, that the name comes from: A
// (Laravel queues), B (delays on RabbitMQ), C (PostgreSQL store behind Kafka), D (nano-service), E (TTL cycle); W is
// Watermill, - is ours.
//
//	header                  type       written by, when                        read by                    from
//	x-message-id            string     New; pipeline, for a foreign message    all readers                A
//	x-timestamp             time       New; pipeline, for a foreign message    handlers, stores           A
//	x-envelope-version      "1.0"      New; pipeline, for a foreign message    ReadControl: binary mode   A
//	x-source                string     New                                     handlers, stores           A
//	x-queue                 string     New; pipeline, for a foreign message    handlers, stores           A
//	x-retry-count           0..10^6    pipeline, each failure                  pipeline; 0 if absent      D, A
//	x-error-message         text 1 KiB pipeline, each failure                  stores, people             A
//	x-error-code            text 255 B pipeline, each failure                  stores, people             A
//	x-error-trace           text 4 KiB pipeline, each failure                  stores, people             A
//	x-error-class           text 255 B pipeline, each failure                  stores, people             -
//	x-first-failure         time       pipeline, first failure                 pipeline: maximum age      -
//	x-deferred-since        time       pipeline, first deferral in a row       pipeline: maximum age      -
//	x-retry-count-invalid   text 255 B pipeline, unreadable retry count        people                     -
//	x-body-form             JSON       WithMode, to binary mode                WithMode, back             -
//	x-data-content-type     string     WithMode, to structured mode            WithMode, back             -
//	x-stage                 text       brokers, each publication               brokers: copies            -
//	x-suspect               number     brokers, after unanswered deliveries    brokers: it runs alone     -
//	x-headers-after         bytes      brokers, if headers fill their room     brokers, on delivery       -
//	x-original-delay        ms         SetDelay or TakeDelay, once             pipeline: backoff          B
//	x-delay                 ms         SetDelay                                publisher, which takes it  D
//	x-not-before            Unix ms    driver, on reschedule                   driver, on delivery        -
//	x-consumer              string     driver, on reschedule                   driver, on delivery        -
//	x-origin-topic          string     driver, on reschedule, dead letter      driver, redrive            -
//	x-exchange              string     driver, on reschedule, dead letter      driver, redrive            B, D
//	x-routing-key           string     driver, on reschedule, dead letter      driver, redrive            B, D
//	x-kafka-key             bytes      driver, on delivery                     driver, on publish         C
//	x-header-types          JSON       driver, on delivery                     driver, on publish         -
//	x-event                 string     New with EventNamed                     pipeline: system events    D
//	x-dead-letter-reason    Reason     pipeline, dead letter                   stores, people             -
//	x-dead-letter-rule      text 255 B pipeline, dead letter                   people                     -
//	consumer_error          text 1 KiB pipeline, dead letter                   D's tools                  D
//	reason_poisoned         text 1 KiB pipeline, dead letter                   Watermill's tools          W
//	topic_poisoned          text 255 B pipeline, dead letter                   Watermill's tools          W
//	handler_poisoned        text 255 B pipeline, dead letter                   Watermill's tools          W
//	subscriber_poisoned     text 255 B pipeline, dead letter                   Watermill's tools          W
//	x-redrive-id            string     PrepareRedrive                          pipeline: closes the entry C
//	x-redrive-count         decimal    PrepareRedrive                          stores: redrive budget     C
//	x-redrive-run           string     PrepareRedrive, bulk                    stores                     -
//	content-type            string     structured mode; the producer           ReadControl                -
//	correlation_id          string     the producer; Watermill's CorrelationID handlers, stores           A, C, W
//	name                    string     Watermill's cqrs marshalers             EventName                  W
//	_watermill_delayed_for  duration   Watermill's components/delay            TakeDelay, ReadControl     W
//	_watermill_delayed_until time      Watermill's components/delay            TakeDelay                  W
//	traceparent, tracestate string     the producer's tracing                  consumers' tracing         W3C
//	x-trace-link            string     middleware/tracing, retry to redrive    middleware/tracing         -
//	amqp-*                  string     the RabbitMQ driver: basic properties   the driver; Identify       -
//	ce_*, cloudEvents_*     string     CloudEvents producers                   envelope/cloudevents       -
//	x-death and the like    any        RabbitMQ (IsBrokerMade)                 information; not forwarded E
//
// The texts are valid UTF-8 on one line: control characters are written as \n, \r, \t or \xNN, and in the three
// x-error-* headers of the envelope a backslash as \\, so that they can be restored exactly. A text above its limit is
// cut at a rune boundary and ends in a marker with the full length. All of them together stay below MaxHeaders.
//
// # Identity
//
// A message keeps its id for its whole life. It is, in this order: x-message-id in binary mode or message_id in the
// body; AMQP's message-id; CloudEvents' id; the Watermill UUID; a UUIDv5 of where the message is stored ([StableID]),
// the same on every delivery; otherwise a new UUIDv7.
//
// # Hostile input
//
// No message makes this package panic, recurse, or take more than linear time. A retry count is decimal digits of 0 to
// 1,000,000 or invalid, and an invalid one is never treated as 0: see Control.RetryCountInvalid. If the body and a
// header both have one, the larger counts. Delays are clamped to [0, MaxDelay] and reported as clamped.
package envelope
