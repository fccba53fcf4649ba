// Package kafka opens watermill-kafka as a broker: watermill+kafka:// URLs.
//
//	// with import _ ".../brokers/watermill/kafka"
//	broker, err := brokers.Open(ctx, "watermill+kafka://localhost:9092/?group=billing")
//
// # URL
//
// host:port of one or more brokers behind watermill+kafka://, separated by commas. Params lists the parameters. A user
// name and a password are sent with SASL/PLAIN; other mechanisms go through [Config].Sarama. Delayed messages wait in a
// second broker, whose URL is in the environment variable named by x-delays-env (REDRIVE_DELAYS_URL).
//
// # Headers
//
// Records are those of watermill-kafka's DefaultMarshaler, plus a key: metadata x-kafka-key is the key of the record,
// in both directions, and a record without it has none. A null value is x-kafka-tombstone. If a header occurs twice,
// only the last is kept.
//
// # Configuration that avoids faults of watermill-kafka v3.1.2
//
//	a marshaler with keys      the default one drops the key at each publish, and refuses a message with one of its
//	                           headers
//	a marshaler without errors one record that it cannot read stops its partition, and its group rejoins forever
//	acks of all replicas       by default a leader that dies loses what it had confirmed
//	the oldest offset          by default a new group misses messages published before it joined
//	acks before the close      an ack right before Close was lost each time; it counts until the claim has returned
//	a supervised consumer      after an error of the group it reconnected hundreds of times a second, and never recreated
//	                           the topic; now the subscription ends, and the next one, after a pause, creates the topic
//	topics created first       a publish to a missing topic failed, or created it with the server's defaults
//
// # Limits
//
// Only one message of a partition is handled at a time, so there are never more handlers than partitions, and a slow
// handler delays its partition. A rebalance waits for running handlers, at most for x-rebalance-timeout; a handler that
// takes longer runs again elsewhere. Package brokers/kafka has none of these limits, and keeps retries in Kafka itself.
package kafka
