// Package nats is a broker on NATS JetStream. Delays are kept by the server, as message schedules: it needs nats-server
// 2.12 or later.
//
//	broker, err := brokers.Open(ctx, "nats://localhost:4222") // with import _ ".../brokers/nats"
//
// # URL
//
// nats://user:password@host:4222, or several servers of a cluster, nats://host1:4222,host2:4222; nats+tls:// encrypts.
// In addition to the parameters of every driver (see package brokers), which may all be written without x-:
//
//	parameter    default  meaning
//	declare      true     make the streams and consumers that are missing, and change consumers to what is configured
//	replicas     0        replicas of the streams that are made, 1 to 5; 0: 3 on a cluster, else 1
//	max-age      0        how long a stream keeps messages, at least 1h; 0: for as long as its operator does
//	ack-wait     30s      silence after which the server gives the messages of a dead process to another one
//	prefetch     1        messages that the server sends ahead to one subscription; at least as many as its concurrency
//	nack-pause   100ms    pause before a nacked message is handed out again; doubled at each further nack, up to 64 times
//	crash-limit  5        deliveries without an answer after which a message is a dead letter before its handler; 0:
//	             never
//	credentials  -        file with the user's JWT and seed
//	tls-ca       -        file with the certificates to trust; the system's if not given
//	tls-cert, tls-key     files with the client's certificate and key
//
// # Delivery semantics
//
// At least once. A topic is a stream, with the subject of the topic's name, and each group a durable consumer of it. A
// stream keeps what was handled, as Kafka's topics do, until its max-age: a new group begins with the oldest message.
// Acks are confirmed by the server; one without replicas that is killed forgets those of its last moment. While a
// handler runs, the server gets a sign of progress: ack-wait bounds the life of a process that has died, not that of a
// handler.
//
// Reschedule publishes to a subject that only the consumer of the group reads, and the copy is deleted after its ack.
// Nacked messages are kept in hand for their pause. Connections are made again without an end, and a stream or consumer
// that an operator has deleted is made again, the consumer behind what its group had acked.
//
// # How delay works
//
// A message with a due time is stored under a separate subject, as a schedule for the topic or for the consumer
// (Nats-Schedule: @at). The server stores it there when its clock has come to the time, and deletes the schedule. It
// looks at most four times a second. Nothing is early as long as the clocks agree; what differs, a delay may be early
// by.
//
// # Headers
//
// Metadata are headers of NATS. What those cannot carry (names that HTTP would not take, line breaks, space at the ends
// of values, and names of the server's own, Nats-*) stands percent-encoded in the header Redrive-Headers. The UUID is
// in _watermill_message_uuid, as watermill-nats has it; a message without it has its Nats-Msg-Id for one.
//
// # Limits
//
// A message is at most as large as the server's max_payload, less 24 KiB, which its retries and its dead letter may
// need. A stream that has a topic's subject already is used if it has all that is needed, else refused with what to
// change.
//
// The sequence numbers of a stream that we make begin with the time, unlike those of any before with its name: an ack
// names no more than stream, consumer and number. Who makes streams again by hand, while handlers still have messages
// of the old one, gives them a FirstSeq too.
package nats
