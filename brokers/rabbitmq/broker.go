package rabbitmq

import (
	"context"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/internal/engine"
)

// Broker is an open RabbitMQ.
type Broker struct {
	*engine.Broker
	transport  *transport
	design     *design
	publishing *link
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
	return &Broker{Broker: b, transport: t, design: d, publishing: t.publishing}, nil
}

// Capabilities implements brokers.Broker.
func (b *Broker) Capabilities() brokers.Capabilities {
	c := b.Broker.Capabilities()
	c.DelayTolerance = b.transport.Capabilities().DelayTolerance // a pipeline may announce another wait
	return c
}

// WritesTables implements middleware.TableWriter: RabbitMQ gives each retry an x-death.
func (b *Broker) WritesTables() bool { return true }

// Stats are gauges of what the broker holds open, and a counter of acks that failed.
type Stats struct {
	Connections int // at most 2, and 1 for Depths once it has been asked for
	Channels    int // a fixed few for publishing, and one per subscription

	// AcksFailed counts, since Open, messages that were handled and are delivered again because their channel ended
	// before their acks could be sent. They are acked when they come again. An ack that was sent and lost with the
	// connection on its way is not known here.
	AcksFailed uint64
}

// Stats returns the connections and channels that are open now, and how many acks have failed.
func (b *Broker) Stats() Stats {
	s := Stats{AcksFailed: b.AcksFailed()}
	for _, l := range []*link{b.publishing, b.transport.consuming, b.transport.counting} {
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

// Depths implements brokers.DepthReporter, over the queues that this Broker has come to know: those of the consumers
// that have subscribed on it, with the queues of their retries and dead letters, and the delay queues of the topics it
// has published delayed messages to (with x-declare=none, only the former). It counts what is delayed, in retry, ready
// and in dead letter queues, and what the broker has handed out is not ready. It asks for one queue after the other,
// 2,000 at most, on a connection that nothing else uses, and fails while one of them does not answer, such as a quorum
// queue without a leader.
//
// Where a naming scheme has no exchange, first deliveries wait in the retry queues of their consumer, and all count as
// what this Broker has used these queues for first. With x-transport=plugin messages wait inside the plugin, which does
// not tell AMQP how many: there is nothing to count.
func (b *Broker) Depths(ctx context.Context) ([]brokers.Depth, error) {
	return b.Broker.Depths(ctx, b.transport)
}
