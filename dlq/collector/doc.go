// Package collector brings the dead letters that lie in brokers into a dead letter store: from the queues and topics of
// any service, in any language, so that all of them can be searched, grouped and redriven in one place.
//
//	c, err := collector.New(collector.Config{
//		Sink: letters, // *dlq.Letters
//		Sources: []collector.Source{
//			{Broker: "rabbit", Topic: "orders_dlq", Subscriber: rabbit.Subscriber()},
//			{Broker: "kafka", Topic: "payments.DLT", Subscriber: kafka.Subscriber()},
//		},
//	})
//	err = c.Run(ctx) // until ctx ends
//
// and the way back:
//
//	router, err := collector.NewRouter(collector.RouterConfig{Targets: targets, Store: letters.Store()})
//	manager := letters.Manager(router)
//
// # Guarantees
//
// A message is acked when the sink has it durably, and not before. The same delivery collected twice is one entry, as
// long as the message has an id or a position (Kafka, SQL) or both; a RabbitMQ message whose producer set no message-id
// gets a new one, so that a crash between store and ack makes a second entry of it: one entry too many, because two
// messages that look alike must not become one. While the sink fails, messages are held unacked and retried with
// growing pauses, so that the broker sends no more; after [Config].Hold they are nacked, so that one that the sink
// refuses does not block the others. Run ends when everything that was delivered is stored or nacked.
//
// # Formats
//
// The headers of each system are read for what died, why, where and when. The first format that knows its own headers
// wins:
//
//	format        by                                   to the consumer of
//	redrive       x-dead-letter-reason, x-origin-topic  x-origin-topic, x-consumer
//	nservicebus   NServiceBus.FailedQ                   the queue FailedQ
//	masstransit   MT-Fault-*, MT-Reason                 the queue in MT-Fault-InputAddress
//	connect       __connect.errors.*                    the topic, for group connect-<connector>
//	spring-kafka  kafka_dlt-*, and x-original-topic     kafka_dlt-original-topic, -consumer-group
//	spring-amqp   x-exception-*, x-original-routingKey  the queue that rejected it, else the routing key
//	watermill     *_poisoned                            topic_poisoned
//	envelope      x-retry-count, consumer_error, or an  as plain; error and retry_count of the body
//	              envelope's JSON body
//	rabbitmq      x-death, x-first-death-*              the queue whose consumer rejected it, or in which it expired;
//	                                                    as plain if messages only wait there: *.retry.*, *-delayed-*,
//	                                                    and the source's name has an ending of plain
//	plain         nothing                               the queue's own name without _dlq, .DLT, .failed, .limbo, ...
//
// Numbers that Java writes as 4 or 8 bytes are read as such. [Source].Origin replaces what a message lacks or has
// wrong. A header that cannot be read is left out of the entry's columns and never stops the message; the headers are
// stored as they came. Where the collector found the message is kept separately (driver.Body.Collected), because any
// producer can write a header.
//
// # Redriving collected messages
//
// A [Router] sends a message back to where it came from, without what made it a dead letter: the headers of its format,
// those that the broker made, and ours. All others are as they were, with x-redrive-id and x-redrive-count added, by
// which a second death finds its entry.
//
// On RabbitMQ that is the queue itself, so no other consumer sees it. On Kafka it is the topic, where every group reads
// it again, since a foreign group reads nothing else; give a source another topic ([Source].Origin) when the service
// has a separate retry topic.
//
// A consumer without our pipeline never reports the result. A collected entry is therefore RESOLVED, by "redrive" and
// with a note, when the broker has confirmed its message, and PENDING again when its dead letter comes back.
// [OutcomeReported] is for services whose pipeline has this store as its dead letter sink and reports: their entries
// wait for it.
package collector
