// Package watermill turns any Watermill publisher and subscriber into a broker: a service keeps its Pub/Sub, and gets
// retries that do not block later messages, confirmed dead letters, first-delivery delays and an orderly shutdown.
//
//	broker, err := watermill.New(watermill.Config{
//		Publisher:     publisher,                                     // any message.Publisher
//		NewSubscriber: func(group string) (message.Subscriber, error) { ... }, // or Subscriber, for one group
//		Delays:        queue,                                         // keeps what waits: a SQL queue, mem:// in tests
//		Server:        "orders",                                      // names the Pub/Sub there
//	})
//
// # Delivery semantics
//
// At least once, as far as the Pub/Sub guarantees it: what its Publish confirms, and whether an ack reaches its server,
// depends on the Pub/Sub. The Pub/Sub receives no nack except at shutdown, because most redeliver a nacked message at
// once: the broker holds the message instead and delivers it again after a pause. Messages that arrive while a
// subscription ends are nacked. If a subscription's channel is closed, the broker subscribes again, with pauses.
//
// # How delay works
//
// A retry waits in the Delays broker, in a queue that only the consumer group reads, and arrives in the same
// subscription: other groups of the topic never see it. A first-delivery delay also waits there, and is published to
// its topic when due by any process that has a broker with the same Server open. Without Delays nothing can be delayed:
// then Capabilities.MaxDelay is 0, and brokers.Require reports it at start.
//
// # Headers
//
// All metadata is passed on unchanged. Messages are those of the Pub/Sub: plain Watermill services on the same topics
// read and write the same.
//
// # Limits
//
// Deliveries are not counted (Capabilities.DeliveryCount), so a message that kills its process is redelivered forever.
// Whether several groups can read a topic depends on NewSubscriber, and how many handlers run at once on how many
// messages the subscriber delivers before their acks.
package watermill
