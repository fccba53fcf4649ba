// Package nats is a broker on NATS JetStream. The server keeps delays, as message schedules: it needs nats-server 2.12
// or later.
//
//	broker, err := brokers.Open(ctx, "nats://localhost:4222") // with import _ ".../brokers/nats"
//
// # URL
//
// nats://user:password@host:4222, or several servers of a cluster, nats://host1:4222,host2:4222; nats+tls:// encrypts.
// In addition to the parameters of every driver (see package brokers), which may all be written without x-:
//
//	parameter    default  meaning
//	declare      true     create missing streams and consumers, and change consumers to the configuration
//	replicas     0        replicas of new streams, 1 to 5; 0 means 3 on a cluster, otherwise 1
//	max-age      0        how long a stream keeps messages, at least 1h; 0 sets no limit
//	ack-wait     30s      silence after which the server gives the messages of a dead process to another one
//	prefetch     1        messages that the server sends ahead to one subscription; at least its concurrency
//	nack-pause   100ms    before a nacked message is delivered again; doubled by each further nack, up to 64 times
//	crash-limit  5        how often a message may end its process before it is dead-lettered; 0 means never
//	credentials  -        file with the user's JWT and seed
//	tls-ca       -        file with the certificates to trust; the system's if not given
//	tls-cert, tls-key     files with the client's certificate and key
//
// # Delivery semantics
//
// At least once. A topic is a stream, whose subject is the topic's name, and each group is a durable consumer of it. A
// stream keeps handled messages, as Kafka's topics do, until its max-age: a new group starts with the oldest message.
// The server confirms acks; if it has no replicas and is killed, it forgets the most recent ones. While a handler runs,
// we report progress to the server: ack-wait limits how long the messages of a dead process wait, not how long a
// handler may take.
//
// Reschedule publishes to a subject that only the group's consumer reads, and the copy is deleted after its ack. Nacked
// messages stay unacked for their pause. Lost connections are retried forever. A stream or consumer that an operator
// deletes is recreated, the consumer after the last message that its group acked.
//
// # How delay works
//
// A message with a due time is stored under a separate subject, as a schedule for the topic or for the consumer
// (Nats-Schedule: @at). The server moves it there when it is due by the server's clock, and deletes the schedule. It
// checks at most four times a second. A delay is never early if the clocks agree; otherwise it may be early by their
// difference.
//
// # Headers
//
// Metadata become headers of NATS. Those that NATS cannot carry (names that HTTP does not allow, line breaks, values
// with leading or trailing space, and the server's own names, Nats-*) are percent-encoded in the header
// Redrive-Headers. The UUID is in _watermill_message_uuid, as in watermill-nats; a message without it uses its
// Nats-Msg-Id.
//
// # Limits
//
// A message is at most as large as the server's max_payload, less 24 KiB, which its retries and its dead letter may
// need. An existing stream with a topic's subject is used if it has all that is needed and deletes no messages that
// have not been handled; otherwise it is refused with the necessary changes. Changes to a group's consumer are undone
// within ten seconds, except its ack-wait; with declare=false, one that would lose messages is refused.
//
// While a stream with max_msgs or max_bytes that discards new messages is full, publishing fails. nats-server 2.12 then
// keeps the messages that become due, and delivers them only after it is restarted or the stream has another leader:
// limit a stream by its age.
//
// The sequence numbers of our streams start with the current time, so that they differ from those of earlier streams
// with the same name, because an ack names only the stream, the consumer and the number. If you recreate a stream by
// hand while handlers still have messages of the old one, give it a FirstSeq too.
package nats
