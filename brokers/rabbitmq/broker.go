package rabbitmq

import (
	"context"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/internal/engine"
)

// Broker is an open RabbitMQ.
type Broker struct {
	*engine.Broker
	transport *transport
}

var (
	_ brokers.Broker        = (*Broker)(nil)
	_ brokers.DepthReporter = (*Broker)(nil)
	_ brokers.ReaderCounter = (*Broker)(nil)
)

func open(ctx context.Context, cfg brokers.Config, d *design) (*Broker, error) {
	t, err := connect(ctx, cfg, d)
	if err != nil {
		return nil, err
	}
	//nolint:contextcheck // the broker outlives the context it was opened with
	b, err := engine.New(engine.Config{Config: cfg, Params: Driver{}.Params(), Transport: t})
	if err != nil {
		_ = t.Close(ctx) // nothing is in flight
		return nil, err
	}
	return &Broker{Broker: b, transport: t}, nil
}

// Capabilities implements brokers.Broker.
func (b *Broker) Capabilities() brokers.Capabilities {
	c := b.Broker.Capabilities()
	c.DelayTolerance = b.transport.Capabilities().DelayTolerance // a pipeline may announce another wait later
	return c
}

// WritesTables implements middleware.TableWriter: RabbitMQ gives each retry an x-death.
func (b *Broker) WritesTables() bool { return true }

// Stats are gauges of the broker's open connections and channels, and a counter of failed acks.
type Stats struct {
	Connections int // at most 3
	Channels    int // a fixed few for publishing, and one per subscription

	// AcksFailed counts, since Open, messages that were handled and are redelivered because their channel ended before
	// their acks could be sent. They are acked on redelivery. An ack that was sent and lost with the connection is not
	// counted.
	AcksFailed uint64
}

// Stats returns the number of open connections and channels, and of failed acks.
func (b *Broker) Stats() Stats {
	s := Stats{AcksFailed: b.AcksFailed()}
	for _, l := range []*connection{b.transport.publishing, b.transport.consuming, b.transport.asking} {
		connections, channels := l.counts()
		s.Connections += connections
		s.Channels += channels
	}
	return s
}

// Counts is Stats for brokermetrics.
func (b *Broker) Counts() (connections, channels int) {
	s := b.Stats()
	return s.Connections, s.Channels
}

// Depths implements brokers.DepthReporter for the queues that this Broker knows: those of the consumers that have
// subscribed on it, with their retry and dead letter queues, and the delay queues of the topics to which it has
// published delayed messages (with x-declare=none, only the former). It counts messages that are delayed, in retry,
// ready and in dead letter queues; those delivered by the broker are not ready. It queries the queues one by one, at
// most 2,000, on a separate connection, and fails if one of them does not answer, such as a quorum queue without a
// leader.
//
// If a naming scheme has no exchange, first deliveries wait in the retry queues of their consumer, and all are counted
// under this Broker's first use of these queues. With x-transport=plugin messages wait inside the plugin, which AMQP
// cannot query, so they are not counted.
func (b *Broker) Depths(ctx context.Context) ([]brokers.Depth, error) {
	return b.Broker.Depths(ctx, b.transport)
}
