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
//	declare           all       what to declare: all, adopt (what is missing; the rest as it is), none, read
//	prefetch          1         messages sent ahead to one subscription, at least its concurrency
//	queue-type        quorum    type of consumers' queues: quorum or classic; with adopt, that of the existing ones
//	retry-queue-type  quorum    type of delay and dead letter queues
//	grid              true      queues for delays that Config.Delays does not name, up to 21 per consumer
//	delivery-limit    1000000   deliveries after which RabbitMQ itself dead-letters, on queues that we declare
//	crash-limit       5         how often a message may end its process before it is dead-lettered; 0 means never
//	nack-pause        100ms     before a nacked message is delivered again; doubled by each nack, up to 64 times
//	retry-ttl         5s        time to live of the waiting queue of transport=reject; by default the policy's one delay
//	max-message       16MiB     largest message with its headers; set it to the broker's max_message_size
//	management                  address of the management API, by which Check sees bindings and policies
//
// A topic is a queue with naming=laravel, delayed-backoff and store-only, and is published to through the default
// exchange. With the default scheme, which lets several groups read one topic, it is a routing key of the direct
// exchange "redrive". With naming=service-bus it is an event name on {project}.bus, and Subscribe takes patterns.
//
// # Delivery semantics
//
// At least once. Publish, Reschedule and DeadLetter return nil once RabbitMQ has confirmed that a queue has the
// message: everything is persistent, mandatory and confirmed, with many messages in flight on one channel each for the
// users' publications, retries and dead letters. A message that no queue accepts fails with an *[UnroutableError] that
// names exchange and routing key. A publication that a lost connection left without a confirm is repeated on the next
// connection, within the publish timeout: that, and a crash between a confirm and an ack, is where duplicates come
// from.
//
// Acks and publishes have a connection each, because RabbitMQ stops reading from connections that publish when it is
// short of memory. Acks share frames: they wait up to 5 ms for others, in a quarter of the prefetch that no handler
// needs, or in a sixteenth of all of it. If the process dies, those messages are repeated along with the ones that it
// was handling.
//
// RabbitMQ counts deliveries (x-delivery-count) for crashes, lost connections, restarts and consumer timeouts alike,
// and for every prefetched message. A message that was counted twice is republished with the header x-suspect and runs
// alone, after the others; one that kills its process crash-limit times is dead-lettered with reason crash. A message
// that RabbitMQ has counted ten times, or half as often as a lower delivery-limit allows, that of the URL or of an
// existing queue, is republished before a queue that we did not declare dead-letters it. The limit that a policy sets
// is only known with the management API (x-management). Nacks stay in this process and are not counted. Classic queues
// count nothing.
//
// Objects that are deleted while a subscription runs are declared again: its queue at once, delay and dead letter
// queues by the next message that needs them, exchanges and bindings within 30 s or by a publish of the same process.
// [Broker.Ping] reports missing ones, as far as AMQP shows them. A consumer that RabbitMQ sends nothing, although its
// queue has messages, is replaced within 35 s.
//
// # How delay works
//
// transport=ttl: one queue per delay, {queue}_retry.<ms> in the default scheme, from which messages return to the
// consumer's queue, and no other, when its time to live ends; quorum queues with at-least-once dead-lettering, without
// x-expires. Delays in Config.Delays get a separate queue and take one step. Any other delay up to 30 days waits in the
// largest queue of the grid that is not longer, arrives at the consumer with x-not-before, and is sent on for the rest,
// without reaching the handler: never early, late by at most 1 % or 100 ms. Subscribe declares the queues of the named
// delays. One of the grid is declared when a message first needs it: if RabbitMQ is killed within seconds of declaring
// a quorum queue, that queue can stay unreachable until the next restart, so name the delays of your policy, or apply
// [Plan.All] beforehand. With naming=laravel and delayed-backoff, and with grid=false without named delays, there is
// one wait queue without a number, from which each message expires individually: a shorter delay behind a longer one is
// late by the rest of that one, never early.
//
// First deliveries to a queue wait in its retry queues; those to an exchange in {exchange}.delayed.<topic>.<ms>, which
// are declared when first needed, or beforehand by Apply(PlanDelayed(topics...).All()). A program that delays messages
// to an unlimited number of topics creates an unlimited number of queues.
//
// transport=plugin: an x-delayed-message exchange named after the queue. Opening fails if the broker has no such
// plugin. Delayed messages exist once, on one node, and are lost with it; RabbitMQ 4.3 no longer runs the plugin.
// Publications to it cannot be mandatory.
//
// transport=reject: the queue's own cycle through {queue}.deadletter, whose time to live is the delay; for existing
// queues. The waiting copy is confirmed before the ack and carries its counter; cycles that other consumers made by
// rejecting are read from x-death.
//
// # Headers
//
// Headers are strings in a message's metadata; a header of another type is written as text (tables and arrays as JSON)
// with its AMQP type under x-header-types, so that a retry or dead letter carries the same header of the same type. A
// value changed by a handler keeps the type if it fits. Properties are under envelope.KeyAMQP..., the routing key and
// exchange of the first publication under x-routing-key and x-exchange. With naming=service-bus and delayed-backoff,
// whose consumers read numbers, x-retry-count and x-original-delay are sent as integers.
//
// Published are the properties message id, correlation id, content type and encoding, type, app id, reply-to, timestamp
// and priority, and all headers except those that the broker creates (x-death, x-delivery-count, ...), CC, BCC and
// x-delay. Expiration and user id are never repeated. In addition to envelope's headers, the driver adds x-not-before
// and x-delay-rest, both in milliseconds, to messages that wait in more than one step, x-consumer to retries, and
// x-stage to every message except dead letters: its value identifies copies of a retry.
//
// Headers that amqp091-go cannot decode (tables nested deeper than 32, more than 8,192 entries) would end the
// connection. Such a message is dead-lettered with reason malformed, its payload, and the bytes of its headers in
// x-undecoded-headers, at most 96 KiB of them.
//
// # Limits
//
// Headers must fit one frame (128 KiB), names and properties 255 bytes; otherwise publishing fails with
// brokers.ErrTooLarge, before the connection can break, and first publications leave 4 KiB for what a retry adds. If
// another producer's headers leave less, a retry of the default naming scheme and any dead letter carry them behind
// the payload, whose length is then in x-headers-after; subscribers restore them. With other schemes, whose consumers
// may be foreign, such a message is dead-lettered at its first failure, and redriving it fails until frame_max is
// raised. A nacked message keeps its place in the prefetch. A clock that is an hour fast ends the last step of an
// unnamed delay early; a slow one cannot lengthen it. AMQP does not show bindings and policies: [Broker.Check]
// compares them if management names the API. Tested on 3.10 and 4.3; not tested: clusters, power loss.
package rabbitmq
