package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/IBM/sarama"

	"github.com/redrive-go/redrive/brokers"
)

// producer sends records through one sarama AsyncProducer and waits for the broker's answers: records of one call, and
// of calls at the same time, share requests. It is safe for concurrent use.
type producer struct {
	async   sarama.AsyncProducer
	limit   int // bytes of one record
	drained sync.WaitGroup

	mu     sync.RWMutex // held for reading while records go in, so that close does not pull the channel away
	closed bool
}

// call is what one send waits for.
type call struct {
	mu      sync.Mutex
	pending int
	faults  []error
	done    chan struct{}
}

// ticket travels with a record through sarama.
type ticket struct {
	call      *call
	partition int32 // where the record has to go, or anyPartition
}

func newProducer(client sarama.Client, limit int) (*producer, error) {
	async, err := sarama.NewAsyncProducerFromClient(client)
	if err != nil {
		return nil, err
	}
	p := &producer{async: async, limit: limit}
	p.drained.Go(func() {
		for pm := range async.Successes() {
			settle(pm, nil)
		}
	})
	p.drained.Go(func() {
		for fault := range async.Errors() {
			settle(fault.Msg, fault.Err)
		}
	})
	return p, nil
}

func settle(pm *sarama.ProducerMessage, err error) {
	t, ok := pm.Metadata.(*ticket)
	if !ok {
		return
	}
	if err != nil {
		err = fmt.Errorf("topic %s: %w", pm.Topic, classify(err))
	}
	t.call.settle(1, err)
}

func (c *call) settle(n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil && len(c.faults) < 3 { // the others say the same
		c.faults = append(c.faults, err)
	}
	if c.pending -= n; c.pending == 0 {
		close(c.done)
	}
}

// send returns nil when the broker has stored every record on all in-sync replicas. When ctx ends first, what was not
// answered yet may be stored or not.
func (p *producer) send(ctx context.Context, records ...*sarama.ProducerMessage) error {
	if len(records) == 0 {
		return nil
	}
	for _, pm := range records {
		if size(pm) > p.limit {
			return fmt.Errorf("%w: %w", tooLarge(pm, p.limit), brokers.ErrTooLarge)
		}
	}
	c := &call{pending: len(records), done: make(chan struct{})}
	tickets := make([]ticket, len(records))
	if err := p.input(ctx, c, tickets, records); err != nil {
		return err
	}
	select {
	case <-c.done:
		return errors.Join(c.faults...)
	case <-ctx.Done():
		return fmt.Errorf("no answer of the broker, the outcome is unknown: %w", context.Cause(ctx))
	}
}

func (p *producer) input(ctx context.Context, c *call, tickets []ticket, records []*sarama.ProducerMessage) error {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed {
		return brokers.ErrClosed
	}
	for i, pm := range records {
		tickets[i] = ticket{call: c, partition: pm.Partition}
		pm.Metadata = &tickets[i]
		select {
		case p.async.Input() <- pm:
		case <-ctx.Done():
			c.settle(len(records)-i, nil)
			return fmt.Errorf("the broker takes no records: %w", context.Cause(ctx))
		}
	}
	return nil
}

// close sends what was given to it and waits for the answers.
func (p *producer) close() {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return
	}
	p.closed = true
	p.mu.Unlock()
	p.async.AsyncClose()
	p.drained.Wait()
}

// classify gives the errors that callers decide on their common names.
func classify(err error) error {
	switch {
	case errors.Is(err, sarama.ErrMessageSizeTooLarge):
		return fmt.Errorf("%w: %w", err, brokers.ErrTooLarge)
	case errors.Is(err, sarama.ErrUnknownTopicOrPartition), errors.Is(err, sarama.ErrInvalidTopic), errors.Is(err, sarama.ErrInvalidPartition):
		return fmt.Errorf("%w: %w", err, brokers.ErrUnroutable)
	case errors.Is(err, sarama.ErrShuttingDown), errors.Is(err, sarama.ErrClosedClient):
		return fmt.Errorf("%w: %w", err, brokers.ErrClosed)
	default:
		return err
	}
}

// newPartitioner sends a record where its ticket says, and others by their key.
func newPartitioner(byKey sarama.PartitionerConstructor) sarama.PartitionerConstructor {
	return func(topic string) sarama.Partitioner {
		return &partitioner{byKey: byKey(topic)}
	}
}

type partitioner struct{ byKey sarama.Partitioner }

// Partition implements sarama.Partitioner.
func (p *partitioner) Partition(pm *sarama.ProducerMessage, partitions int32) (int32, error) {
	t, ok := pm.Metadata.(*ticket)
	if !ok || t.partition == anyPartition {
		return p.byKey.Partition(pm, partitions)
	}
	if t.partition >= partitions {
		return -1, sarama.ErrInvalidPartition
	}
	return t.partition, nil
}

// RequiresConsistency implements sarama.Partitioner.
func (p *partitioner) RequiresConsistency() bool { return p.byKey.RequiresConsistency() }

// MessageRequiresConsistency says that only records without a key may avoid a partition whose leader is away.
func (p *partitioner) MessageRequiresConsistency(pm *sarama.ProducerMessage) bool {
	if t, ok := pm.Metadata.(*ticket); ok && t.partition != anyPartition {
		return true
	}
	if d, ok := p.byKey.(sarama.DynamicConsistencyPartitioner); ok {
		return d.MessageRequiresConsistency(pm)
	}
	return p.byKey.RequiresConsistency()
}
