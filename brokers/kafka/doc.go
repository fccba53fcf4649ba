// Package kafka is the broker driver for Apache Kafka 2.4 and later. Importing it registers the scheme:
//
//	import _ "github.com/redrive-go/redrive/brokers/kafka"
//
//	broker, err := brokers.Open(ctx, "kafka://host:9092,host2:9092?group=billing&concurrency=16")
//
// # URL
//
// kafka://[user:password@]host[:port][,host[:port]...] names the seed brokers; port 9092 may be omitted, and there is
// no path. The parameters of every driver are listed in package brokers, group is required to subscribe, and these are
// Kafka's own. Each is also a key of Config.Params, and each may be written with x- in front:
//
//	parameter          default             meaning
//	auto-create        true                create topics that are missing
//	partitions         broker's            partitions of the topics that Publish and Subscribe create
//	replication        broker's            replicas of the topics created
//	offset             oldest              where a new group begins: oldest or newest
//	order              none                what a waiting retry holds back: none, or key
//	order-dead         continue            with order=key, what follows a dead letter of a key: continue or block
//	commit-interval    200ms               how often offsets are committed
//	nack-pause         100ms               pause before a nacked message comes back; doubles up to 64 times
//	max-message-bytes  1MiB                largest record, headers included
//	compression        none                none, gzip, snappy, lz4 or zstd
//	partitioner        murmur2             hash of the key: murmur2 as in Java, fnv as in sarama and watermill-kafka
//	assignor           cooperative-sticky  cooperative-sticky, sticky, range or roundrobin
//	session-timeout    10s                 silence after which the group gives a member's partitions away
//	rebalance-timeout  60s                 how long a rebalance waits for running handlers
//	tls                false               connect with TLS
//	tls-ca             system's            file with the certificates to trust
//	tls-cert, tls-key  none                files with the client's certificate and key
//	sasl               plain               with a user: plain, scram-sha-256 or scram-sha-512
//
// A group with members that use watermill-kafka, or any other client with eager rebalancing, needs assignor=range until
// all of them have moved; a producer that replaces watermill-kafka needs partitioner=fnv to keep keys on their
// partitions.
//
// # Delivery semantics
//
// At least once, from the moment Publish has returned nil: with acks=all and idempotence, a record is on every in-sync
// replica, once. Concurrent calls, and all messages of one call, share requests.
//
// concurrency=N runs N handlers per partition, not per subscription. Messages with the same key run one after the other
// in the order of the partition; with N = 1, all of them do. Offsets are committed up to the first message that is not
// settled. Messages settled behind it are recorded in the metadata that Kafka stores with an offset, so that the member
// that takes over skips them: a rebalance or a shutdown repeats nothing as long as the handlers finish within the
// rebalance-timeout or the drain. A process that dies repeats the messages whose handler was running, and those handled
// since the last commit, which is at most commit-interval plus one request old.
//
// When a partition is revoked nothing more is delivered, waits are interrupted, running handlers finish, and their
// offsets are committed, before the group reassigns the partition. Cooperative rebalances leave all other partitions
// running. A group client that fails is replaced, after a pause of 100 ms that doubles up to 10 s.
//
// Subscribe returns before the group has admitted the member. A new group begins at the oldest record and misses
// nothing; with offset=newest, it receives records from the moment at which [Broker.Joined] returns.
//
// Every record reaches a handler: tombstones, empty and binary ones, repeated or null headers. None stops a partition.
//
// A nacked message is redelivered in place after nack-pause, and holds up its key in the meantime, or with
// concurrency=1 its partition; the pipeline never nacks as a policy. It has the same bytes then: a handler must not
// change a Payload in place. Origin.Position is "partition/offset" of the message on its topic, in retries too, and
// envelope.StableID derives the id of messages without one from it.
//
// order=none keeps the order of a key among messages that do not fail; a failed one is overtaken by later ones. With
// order=key the later messages of the key are moved to a separate topic, {queue}_retry.parked, and handled when the
// retry has ended; other keys continue. If it ends as a dead letter the key continues or, with order-dead=block, stops
// until the dead letter has been redriven successfully, [Broker.Release] is called, or a member without block has the
// partition; for that the broker has to be one of the pipeline's dead letter sinks, for example next to a store.
// Messages without a key have no order.
//
// # How delay works
//
// A message that has to wait is written to a retry topic of its group, one per length of wait, to the partition it has
// on the main topic. The member that owns a partition of the main topic reads the same partition of all retry topics,
// holds the first record of each until it is due, and passes it to its handlers; no other member sees it. Long waits
// cost no requests and the memory of one fetch, at most 256 KiB a partition, and hold nothing else up.
//
// There are 23 lengths from 100 ms to 10 days (1, 2, 5, 10, 20, 30 s and so on), and those in Config.Delays. Any other
// delay up to 30 days is split over several topics, late by at most 1 % or 250 ms, never early. Subscribe creates retry
// topics for short waits and for Config.Delays; the others are created when they are needed.
//
// The broker timestamps the records in retry topics, and waits are measured on its clock: no other clock matters.
//
// First-delivery delays wait the same way, in topics without a group; each group reads them separately. Consumers that
// do not use this driver never see such a message.
//
// [Broker.Depths] counts waiting messages. The group also commits its offsets on its retry topics, so
// kafka-consumer-groups.sh --describe and lag exporters show an upper bound of them, as lag.
//
// # Headers
//
// All headers of a record are metadata, as bytes. Two more are: x-kafka-key, the record's key, absent if that is null,
// and x-kafka-tombstone, "true" if the value is null. x-kafka-headers holds what a map cannot: repeated names, and null
// values. Publish restores them. The Watermill UUID travels as _watermill_message_uuid, as with watermill-kafka.
//
// Records in retry and dead letter topics also have x-consumer (the group), x-origin-topic, and x-kafka-partition,
// x-kafka-offset and x-kafka-timestamp (Unix ms) of the message on its topic; those that wait have x-kafka-wait (ms),
// and x-not-before (Unix ms on the broker's clock) after the first topic, and a retry has x-stage, which is the same
// for two copies of it, so that a process handles only one. x-kafka-control marks records that are not messages.
//
// # Limits
//
// The names from package brokers must be valid in Kafka: at most 249 of a-z, A-Z, 0-9, dot, underscore and dash. The
// templates retry and delayed need {delay}, and {topic} or a {queue} that has it.
//
// Our own topics allow 128 KiB more than max-message-bytes, so that a message of the largest size can still be retried
// and dead-lettered. If an operator made them smaller, a record loses the trace of its error first, then its texts; if
// that is not enough it is refused, and the pipeline tries its next sink.
//
// Retry topics must have message.timestamp.type=LogAppendTime; the driver creates them that way. It needs permission to
// create topics, or auto-create=false and the topics that [Broker.Plan] lists, which [Broker.Apply] creates and
// [Broker.Check] compares. Kafka does not count deliveries: a message that crashes its consumer is redelivered forever.
//
// # Clients
//
// The client is franz-go. A Broker has two clients, one for users' publishes and one for retries, dead letters,
// administration and retry topics, so that neither waits for the other; each subscription adds one, the member of its
// group. Other clients can share keys and groups with it while a service moves; see partitioner and assignor.
package kafka
