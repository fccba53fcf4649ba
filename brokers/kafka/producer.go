package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/redrive-go/redrive/brokers"
)

// producer sends records and waits for the broker's answers: the records of one call, and of concurrent calls, share
// requests. It is safe for concurrent use.
type producer struct {
	client   *kgo.Client
	limit    int           // bytes of one record
	patience time.Duration // how long close waits for answers
	gather   batcher       // of calls with one record

	mu     sync.RWMutex // held for reading while records go in, so that close waits for all of them
	closed bool
}

// call is one call of send in progress.
type call struct {
	mu      sync.Mutex
	pending int
	faults  []error
	done    chan struct{}
}

// answer records the result of record i.
func (c *call) answer(i int, r *kgo.Record, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		err = fmt.Errorf("topic %s: %w", r.Topic, classify(err))
	}
	c.faults[i] = err
	if c.pending--; c.pending == 0 {
		close(c.done)
	}
}

// errNoAnswer represents an unknown outcome.
var errNoAnswer = errors.New("no answer of the broker, the outcome is unknown")

// send returns nil if the broker has stored every record on all in-sync replicas, otherwise an error for each. If ctx
// ends first, unanswered records may be stored or not. It skips nil records.
func (p *producer) send(ctx context.Context, records []*kgo.Record) []error {
	c := &call{pending: len(records), faults: make([]error, len(records)), done: make(chan struct{})}
	for i := range c.faults {
		c.faults[i] = errNoAnswer
	}
	if err := p.input(ctx, c, records); err != nil {
		return each(len(records), err)
	}
	select {
	case <-c.done:
		if slices.ContainsFunc(c.faults, func(err error) bool { return err != nil }) {
			return c.faults
		}
		return nil
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	faults := slices.Clone(c.faults)
	for i, err := range faults {
		if err == errNoAnswer { //nolint:errorlint // stored as this very value
			faults[i] = fmt.Errorf("%w: %w", err, context.Cause(ctx))
		}
	}
	return faults
}

// each returns one error for each of n records.
func each(n int, err error) []error { return slices.Repeat([]error{err}, n) }

// input passes records to the client. ctx only bounds the wait for room: records in flight end with an answer, or else
// all those behind them on their partition would have to fail with them.
func (p *producer) input(ctx context.Context, c *call, records []*kgo.Record) error {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed {
		return brokers.ErrClosed
	}
	for i, r := range records {
		switch one := (sending{ctx, r, c, i}); {
		case r == nil:
			c.answer(i, nil, nil)
		case size(r) > p.limit:
			c.answer(i, r, fmt.Errorf("%w: %w", tooLarge(r, p.limit), brokers.ErrTooLarge))
		case len(records) > 1:
			r.Context = context.Background()
			p.client.Produce(ctx, r, func(r *kgo.Record, err error) { c.answer(i, r, err) })
		case p.gather.add(one):
			p.produce(one)
		}
	}
	return nil
}

// produce passes gathered records to the client.
func (p *producer) produce(gathered ...sending) {
	for _, s := range gathered {
		s.record.Context = context.Background()
		p.client.Produce(s.ctx, s.record, func(r *kgo.Record, err error) {
			s.call.answer(s.index, r, err)
			p.gather.answered(r.Topic)
		})
	}
}

// release passes on records that have waited long enough, unless close does.
func (p *producer) release(t *gathering) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if !p.closed {
		p.produce(p.gather.take(t)...)
	}
}

// learns makes the client look at a topic again if it does not know the record's partition, which was added since its
// last look: on its own it looks every five minutes. It reports false if there is nothing to learn, or if ctx ends.
func (p *producer) learns(ctx context.Context, r *kgo.Record) (learned bool) {
	for r.Partition != anyPartition && p.knows(r.Topic, 0) {
		if p.knows(r.Topic, r.Partition) {
			return learned
		}
		learned = true
		p.client.ForceMetadataRefresh()
		if !sleep(ctx, metadataPause) {
			break
		}
	}
	return false
}

func (p *producer) knows(topic string, partition int32) bool {
	leader, _, err := p.client.PartitionLeader(topic, partition)
	return leader >= 0 || err != nil
}

// close sends pending records and waits for the answers.
func (p *producer) close() {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return
	}
	p.closed = true
	p.mu.Unlock()
	p.produce(p.gather.takeAll()...)
	ctx, cancel := context.WithTimeout(context.Background(), p.patience)
	defer cancel()
	_ = p.client.Flush(ctx) // unanswered records get an error
	p.client.Close()
}

// classify maps errors that callers check for to their common names.
func classify(err error) error {
	switch {
	case errors.Is(err, kerr.MessageTooLarge), errors.Is(err, kerr.RecordListTooLarge):
		return fmt.Errorf("%w: %w", err, brokers.ErrTooLarge)
	case errors.Is(err, kerr.UnknownTopicOrPartition), errors.Is(err, kerr.UnknownTopicID),
		errors.Is(err, kerr.InvalidTopicException):
		return fmt.Errorf("%w: %w", err, brokers.ErrUnroutable)
	case errors.Is(err, kgo.ErrClientClosed):
		return fmt.Errorf("%w: %w", err, brokers.ErrClosed)
	default:
		return err
	}
}
