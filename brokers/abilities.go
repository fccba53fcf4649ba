package brokers

import (
	"context"

	"github.com/redrive-go/redrive/envelope"
)

// ReaderCounter is implemented by brokers that know whether a redrive would be read. Find out with a type assertion.
type ReaderCounter interface {
	// Readers returns how many consumers currently read the place to which a redrive to origin is published; 0 also if
	// there is no such place. The error is errors.ErrUnsupported if the broker does not know.
	Readers(ctx context.Context, origin envelope.Origin) (int, error)
}

// DepthReporter is implemented by brokers that can count their waiting messages, cheaply enough to do so every few
// seconds. Find out with a type assertion:
//
//	if counts, ok := broker.(brokers.DepthReporter); ok {
//
// The brokers of memory, RabbitMQ, Kafka, NATS and the SQL queue implement it. Package brokermetrics exports the
// numbers to Prometheus.
type DepthReporter interface {
	// Depths counts the messages that are stored and not delivered. Each broker documents which kinds it counts. Messages
	// move while they are counted, so the numbers need not be from one moment. A missing entry, like an entry of 0
	// messages, means that nothing waits. It fails when ctx ends, and after Close.
	Depths(ctx context.Context) ([]Depth, error)
}

// Depth counts waiting messages of one kind.
type Depth struct {
	// Topic from which they will be delivered; for dead letters, the one from which they were delivered.
	Topic string
	// Group that they wait for; "" if they wait for every group that reads the topic.
	Group string
	Kind  DepthKind
	// Messages is how many wait.
	Messages int64
}

// DepthKind is what messages wait for.
type DepthKind string

// The kinds of waiting.
const (
	// DepthDelayed messages wait for their first delivery.
	DepthDelayed DepthKind = "delayed"
	// DepthRetry messages have been delivered and wait for the next attempt.
	DepthRetry DepthKind = "retry"
	// DepthParked messages have no due time: they wait behind an earlier message of their key, on brokers that keep keys
	// in order across retries.
	DepthParked DepthKind = "parked"
	// DepthReady messages are due, and wait for a consumer with free capacity.
	DepthReady DepthKind = "ready"
	// DepthDeadLetter messages are stored in the dead letter queue of a consumer until they are collected.
	DepthDeadLetter DepthKind = "dead_letter"
)
