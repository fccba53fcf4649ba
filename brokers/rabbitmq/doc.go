// Package rabbitmq is the amqp:// and amqps:// driver: RabbitMQ 3.10 and later, with quorum queues. Importing it
// registers it:
//
//	import _ "github.com/redrive-go/redrive/brokers/rabbitmq"
//
//	broker, err := brokers.Open(ctx, "amqp://guest:guest@localhost:5672/?delays=10s,20s,40s&prefetch=50&concurrency=20")
//
// # URL
//
// The URL is RabbitMQ's own, amqp://user:password@host:port/vhost, with its parameters heartbeat, connection_timeout,
// channel_max, auth_mechanism, cacertfile, certfile, keyfile and server_name_indication. Besides the parameters of
// every driver (see package brokers) these are understood, as <name> or x-<name>, and under params in a brokers.Config:
//
//	parameter         default   meaning
//	transport         ttl       how delays are waited for: ttl, plugin or reject (default with naming=ttl-cycle)
//	declare           all       what to declare: all, adopt (what is missing; the rest as it is), none
//	prefetch          1         messages sent ahead to one subscription, at least its concurrency
//	queue-type        quorum    type of consumers' queues: quorum or classic; with declare=adopt that of the queues that
//	                            are there
//	retry-queue-type  quorum    type of delay and dead letter queues
//	grid              on        queues for delays that Config.Delays does not name, up to 21 per consumer; off: none
//	tolerance         1         how late such a delay may end, in percent; 50 saves steps where delays are jittered
//	                  anyway
//	delivery-limit    1000000   deliveries after which RabbitMQ itself dead-letters, on queues that we declare
//	crash-limit       5         how often a message may end its process before it is dead-lettered; 0 means never
//	nack-pause        100ms     before a nacked message is handed out again; doubled by each nack, up to 64 times
//	retry-ttl         5s        time to live of the waiting queue of transport=reject; without it the one delay of the
//	                            policy
//	max-message       16MiB     largest message with its headers; set it to the broker's max_message_size, 0 leaves it to
//	                            the broker
//	exchange-type     direct    of the producers' exchange; topic with a naming scheme of patterns
//	int-headers                 headers sent as integers; retry count and original delay with naming=service-bus,
//	                            delayed-backoff
//
// A topic is a queue with naming=laravel, delayed-backoff and store-only, and is published to through the default
// exchange. With the default scheme, which lets several groups read one topic, it is a routing key of the direct
// exchange "redrive". With naming=service-bus it is an event name on {project}.bus, and Subscribe takes patterns.
//
// # Delivery semantics
//
// At least once. Publish, Reschedule and DeadLetter return nil when RabbitMQ has confirmed that a queue has the
// message: everything is persistent, mandatory and confirmed, many at a time on one channel each for what users
// publish, retries and dead letters, and what no queue takes is an *[UnroutableError] that names exchange and routing
// key. What a lost connection left without a confirm is published again on the next one, within the publish timeout:
// that, and a crash between a confirm and an ack, is where duplicates come from.
//
// Acks and publishes have a connection each, because RabbitMQ stops reading from connections that publish when it is
// short of memory. [Broker.Stats] counts connections and channels: two, and one channel plus one per subscription.
//
// What is above the connections, such as pauses of nacks, crash suspects and the keeping of what cannot be published
// for now, is the same for every broker: see package brokers. RabbitMQ counts deliveries (x-delivery-count) for
// crashes, lost connections, restarts and consumer timeouts alike, and for everything that was sent ahead. A message
// that was counted twice is published again with the header x-suspect and runs apart, behind the others; one that ends
// its process crash-limit times is dead-lettered with reason crash, to brokers.Config.DeadLetters, and without one, or
// when it fails, into the dead letter queue. A message that RabbitMQ has counted ten times, or half as often as a lower
// delivery-limit allows, is published anew, before a queue that is not of our making dead-letters it. Nacks stay in
// this process and are not counted. Classic queues count nothing.
//
// A message that came early and cannot be sent on for the rest of its delay, because of an alarm for instance, stays in
// hand and is handled when it is due. Others are sent ahead meanwhile, to further consumers on the same channel.
//
// Acks share frames: they wait up to 5 ms for others, in a quarter of the places of the prefetch that no handler needs,
// or in a sixteenth of the prefetch. A process that dies repeats those messages and the ones that it was handling. A
// message that was handled and whose ack could not be sent is acked when it comes again to this process; an ack that
// was lost with the connection on its way is not known.
//
// What is deleted while a subscription runs is declared again: its queue at once, delay and dead letter queues by the
// next message that needs them, exchanges and bindings within 30 s or by a publish of the same process. [Broker.Ping]
// reports what is missing, as far as AMQP tells.
//
// Headers that amqp091-go cannot decode (tables nested deeper than 32, more than 8,192 entries) would end the
// connection. Such a message is dead-lettered with reason malformed, its payload, and the bytes of its headers in
// x-undecoded-headers, at most 96 KiB of them.
//
// Subscribing is our own and not watermill-amqp's (v2.1.3), which handles one message at a time per Subscribe whatever
// the prefetch: with a handler of 1 ms its eight subscriptions reach 5,500 messages/s on a quorum queue where one of
// ours with concurrency=64 and the whole pipeline reaches 29,000, and 64 workers on the bare client 35,900
// (BenchmarkConcurrency in integration/rabbitmq, one run, two cores). It also nacks at Close what is being handled,
// hands out empty messages when a queue is deleted, hangs in Close while the broker is down, and swaps connections
// without locks.
//
// # How delay works
//
// transport=ttl: one queue per delay, {queue}_retry.<ms> in the default scheme, from which messages go back to the
// consumer's queue, and no other, when its time to live ends; quorum queues with at-least-once dead-lettering, without
// x-expires. Config.Delays names the delays that get a separate queue and are waited for in one go. Any other delay up
// to 30 days waits in the largest queue of the grid that is not longer, comes to the consumer with x-not-before, and is
// sent on for the rest, without the handler's knowing: never early, late by at most 1 % or 100 ms. Subscribe declares
// the queues of the named delays. One of the grid is declared when a message first needs it: RabbitMQ, killed within
// some seconds after it declared a quorum queue, can come back with that queue out of reach until it is restarted, so
// name the delays of your policy, or apply [Plan.All] beforehand. With naming=laravel and delayed-backoff, and with
// grid=off where no delay is named, there is one wait queue without a number, from which each message expires on its
// own: a shorter delay behind a longer one is late by the rest of that one, never early.
//
// First deliveries to a queue wait where its retries wait; those to an exchange in {exchange}.delayed.<topic>.<ms>,
// which are declared when first needed, or beforehand by Apply(PlanDelayed(topics...).All()). A program that delays to
// topics without end makes queues without end.
//
// transport=plugin: an x-delayed-message exchange of the queue's name. Opening fails if the broker has none. Its
// messages exist once, on one node, and are lost with it; RabbitMQ 4.3 no longer runs it. Publications to it cannot be
// mandatory.
//
// transport=reject: the queue's own cycle through {queue}.deadletter, whose time to live is the delay; for queues that
// exist. The copy that waits is confirmed before the ack and carries its counter; cycles that other consumers made by
// rejecting are read from x-death.
//
// # Headers
//
// Headers are strings in a message's metadata; one that was not is written as text (tables and arrays as JSON) and its
// AMQP type under x-header-types, so that a retry or dead letter carries the same header of the same type. A value that
// a handler changed keeps the type as far as it fits. Properties stand under envelope.KeyAMQP..., the routing key and
// exchange of the first publication under x-routing-key and x-exchange.
//
// Published are the properties message id, correlation id, content type and encoding, type, app id, reply-to, timestamp
// and priority, and all headers but those that the broker made (x-death, x-delivery-count, ...), CC, BCC and x-delay.
// Expiration and user id are never repeated. Besides envelope's, the driver writes x-not-before and x-delay-rest, both
// in milliseconds, to messages that wait in more than one step, x-consumer to retries, and x-stage to every message but
// dead letters: by its value a copy of a retry is known.
//
// # Limits
//
// Headers must fit one frame (128 KiB), names and properties 255 bytes: more is brokers.ErrTooLarge, before it can end
// the connection, and first publications leave 4 KiB for what a retry adds. A nacked message keeps its place of the
// prefetch. A clock that is fast by an hour ends the last step of an unnamed delay early; a slow one cannot lengthen
// it. Bindings and policies are not visible through AMQP: [Broker.Check] compares them when management names the API.
// Tested on 3.10 and 4.3; not tested: clusters, power loss.
package rabbitmq
