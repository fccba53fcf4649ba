package brokers

import "context"

// DepthReporter is implemented by brokers that can count what waits in them, cheaply enough to be asked every few
// seconds. Whether a broker does is found out by a type assertion:
//
//	if counts, ok := broker.(brokers.DepthReporter); ok {
//
// Those of memory, RabbitMQ, Kafka, NATS and the SQL queue do. Package brokermetrics shows the numbers to Prometheus.
type DepthReporter interface {
	// Depths counts the messages that are stored and not handed out. Which kinds a broker counts its own comment says.
	// What is counted changes while it is counted: the numbers need not be those of one moment. An absent entry means
	// that nothing waits, or one of 0 messages. It fails when ctx ends, and after Close.
	Depths(ctx context.Context) ([]Depth, error)
}

// Depth counts the messages of one kind that wait.
type Depth struct {
	// Topic that they will be delivered from; of dead letters, the one that they were delivered from.
	Topic string
	// Group that they wait for; "" where they wait for every group that reads the topic.
	Group string
	Kind  DepthKind
	// Messages that wait.
	Messages int64
}

// DepthKind says for what messages wait.
type DepthKind string

// The kinds of waiting.
const (
	// DepthDelayed messages wait for their first delivery.
	DepthDelayed DepthKind = "delayed"
	// DepthRetry messages have been delivered, and wait for the next time.
	DepthRetry DepthKind = "retry"
	// DepthParked messages have no separate time: they wait behind an earlier message of their key, where a broker
	// keeps keys in order over retries.
	DepthParked DepthKind = "parked"
	// DepthReady messages are due, and wait for a consumer that has room.
	DepthReady DepthKind = "ready"
	// DepthDeadLetter messages lie in the dead letter queue of a consumer, and wait for somebody to collect them.
	DepthDeadLetter DepthKind = "dead_letter"
)
