// Package amqp opens watermill-amqp as a broker: watermill+amqp:// and watermill+amqps:// URLs.
//
//	// with import _ ".../brokers/watermill/amqp"
//	broker, err := brokers.Open(ctx, "watermill+amqp://guest:guest@localhost:5672/")
//
// # URL
//
// The AMQP URI behind watermill+. Delayed messages wait in a second broker, whose URL is in the environment variable
// named by x-delays-env (REDRIVE_DELAYS_URL): a URL with a password does not belong in another one.
//
// # Topology
//
// That of watermill-amqp's NewDurablePubSubConfig: a fanout exchange for each topic, and a queue for each group with
// the name of the naming scheme, {topic}.{group}. A plain Watermill service can publish to it, and read from it,
// unchanged.
//
// # Configuration that avoids faults of watermill-amqp v2.1.3
//
//	confirms, queues declared first   a publish returned before the server had the message, and a fanout exchange drops
//	                                  messages while no queue is bound to it
//	no channel pool                   each cut connection lost a pooled channel, until Publish hung
//	prefetch 1, N subscriptions       a subscription handles one message at a time, whatever its prefetch
//	a tolerant marshaler              a header that is not text (an x-death, a delivery count, another service's number)
//	                                  made the server redeliver the message forever, before any handler
//	no ghosts                         the deletion of a queue was delivered as an empty message
//
// # Limits
//
// Every publish opens a channel: a few hundred per second for each caller. After a lost connection all messages in
// flight are redelivered, and acks in flight are lost without a report. Package rabbitmq has none of these limits.
package amqp
