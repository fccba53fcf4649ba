// Package watermill makes a broker of any Watermill publisher and subscriber: a service keeps the Pub/Sub that it has,
// and gets retries that step aside, confirmed dead letters, first-delivery delays and an orderly shutdown.
//
//	broker, err := watermill.New(watermill.Config{
//		Publisher:     publisher,                                     // any message.Publisher
//		NewSubscriber: func(group string) (message.Subscriber, error) { ... }, // or Subscriber, for one group
//		Delays:        queue,                                         // keeps what waits: a SQL queue, mem:// in tests
//	})
//
// # Delivery semantics
//
// At least once, as far as the Pub/Sub is: what its Publish confirms, and whether an ack reaches its server, is its
// own. A nack never reaches it but at shutdown, because most Pub/Subs deliver a nacked message again at once: a message
// is kept in hand and handed out again after a pause. What is handed out while a subscription ends is nacked. When the
// channel of a subscription ends, another one is opened, paced.
//
// # How delay works
//
// A retry waits in the Delays broker, in a queue that only the consumer group reads, and is handed out from there in
// the same subscription: other groups of the topic never see it. A first-delivery delay waits there too, and is
// published to its topic when it is due by whichever process has the broker open. Without Delays nothing can be
// delayed: then Capabilities.MaxDelay is 0, and brokers.Require reports it at start.
//
// # Headers
//
// All metadata is passed on as it is. Messages are those of the Pub/Sub: plain Watermill services on the same topics
// read and write the same.
//
// # Limits
//
// Deliveries are not counted (Capabilities.DeliveryCount), so a message that ends its process comes again and again.
// Whether several groups can read a topic depends on NewSubscriber, and how many handlers run at once on how many
// messages the subscriber hands out before their acks.
package watermill
