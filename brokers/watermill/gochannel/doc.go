// Package gochannel opens Watermill's own Pub/Sub in memory as a broker, for tests: gochannel:// URLs.
//
//	broker, err := brokers.Open(ctx, "gochannel://shop") // with import _ ".../brokers/watermill/gochannel"
//
// # URL
//
// Brokers of one name share their topics, in one process, for as long as one of them is open. gochannel:// without a
// name shares nothing. In a testing/synctest bubble everything runs in virtual time; open and close the broker in it.
//
// # Delivery semantics
//
// gochannel delivers every message to every subscriber. Here the subscriptions of one group share one of its
// subscriptions, and with it the messages, and a new group receives earlier messages, as on Kafka. Delayed messages are
// kept in memory.
//
// # Limits
//
// Nothing survives the process. The order of messages is not kept, and nothing is ever removed from a topic. Package
// brokers/memory has neither limit, and is preferable for tests, unless they are about Watermill's gochannel.
package gochannel
