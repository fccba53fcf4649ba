package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/redrive-go/redrive/brokers"
)

// producer sends records and waits for the broker's answers: records of one call, and of calls at the same time, share
// requests. It is safe for concurrent use.
type producer struct {
	client   *kgo.Client
	limit    int           // bytes of one record
	patience time.Duration // how long close waits for answers

	mu     sync.RWMutex // held for reading while records go in, so that close waits for all of them
	closed bool
}

// call is what one send waits for.
type call struct {
	mu      sync.Mutex
	pending int
	faults  []error
	done    chan struct{}
}

// settle is called by the client, once for each record.
func (c *call) settle(r *kgo.Record, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil && len(c.faults) < 3 { // the others say the same
		c.faults = append(c.faults, fmt.Errorf("topic %s: %w", r.Topic, classify(err)))
	}
	if c.pending--; c.pending == 0 {
		close(c.done)
	}
}

// send returns nil when the broker has stored every record on all in-sync replicas. When ctx ends first, what was not
// answered yet may be stored or not.
func (p *producer) send(ctx context.Context, records ...*kgo.Record) error {
	if len(records) == 0 {
		return nil
	}
	for _, r := range records {
		if size(r) > p.limit {
			return fmt.Errorf("%w: %w", tooLarge(r, p.limit), brokers.ErrTooLarge)
		}
	}
	c := &call{pending: len(records), done: make(chan struct{})}
	if err := p.input(ctx, c, records); err != nil {
		return err
	}
	select {
	case <-c.done:
		return errors.Join(c.faults...)
	case <-ctx.Done():
		return fmt.Errorf("no answer of the broker, the outcome is unknown: %w", context.Cause(ctx))
	}
}

// input hands records over. ctx bounds only the wait for room: records that are under way end with an answer, or all
// those behind them on their partition would have to fail with them.
func (p *producer) input(ctx context.Context, c *call, records []*kgo.Record) error {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed {
		return brokers.ErrClosed
	}
	settle := c.settle
	for _, r := range records {
		r.Context = context.Background()
		p.client.Produce(ctx, r, settle)
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
	ctx, cancel := context.WithTimeout(context.Background(), p.patience)
	defer cancel()
	_ = p.client.Flush(ctx) // what has no answer by then has an error
	p.client.Close()
}

// classify gives the errors that callers decide on their common names.
func classify(err error) error {
	switch {
	case errors.Is(err, kerr.MessageTooLarge), errors.Is(err, kerr.RecordListTooLarge):
		return fmt.Errorf("%w: %w", err, brokers.ErrTooLarge)
	case errors.Is(err, kerr.UnknownTopicOrPartition), errors.Is(err, kerr.UnknownTopicID), errors.Is(err, kerr.InvalidTopicException):
		return fmt.Errorf("%w: %w", err, brokers.ErrUnroutable)
	case errors.Is(err, kgo.ErrClientClosed):
		return fmt.Errorf("%w: %w", err, brokers.ErrClosed)
	default:
		return err
	}
}
