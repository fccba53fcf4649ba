package kafka

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"runtime"
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
}

// call is one call of send in progress.
type call struct {
	mu      sync.Mutex
	pending int
	faults  []error
	done    chan struct{}
}

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

var errNoAnswer = errors.New("no answer of the broker, the outcome is unknown")

// send returns nil if the broker has stored every record on all in-sync replicas, otherwise an error for each. If ctx
// ends first, unanswered records may be stored or not. It skips nil records.
func (p *producer) send(ctx context.Context, records []*kgo.Record) []error {
	c := &call{pending: len(records), faults: slices.Repeat([]error{errNoAnswer}, len(records)), done: make(chan struct{})}
	p.input(ctx, c, records)
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

// input passes records to the client. ctx only bounds the wait for room: records in flight end with an answer, or else
// all those behind them on their partition would have to fail with them.
func (p *producer) input(ctx context.Context, c *call, records []*kgo.Record) {
	for i, r := range records {
		switch one := (sending{ctx, r, c, i}); {
		case r == nil:
			c.answer(i, nil, nil)
		case size(r) > p.limit:
			c.answer(i, r, fmt.Errorf("%w: %w", tooLarge(r, p.limit), brokers.ErrTooLarge))
		case len(records) > 1:
			p.pass(ctx, r, func(r *kgo.Record, err error) { c.answer(i, r, err) })
		case p.gather.add(one):
			p.produce(one)
		}
	}
}

// produce passes gathered records to the client.
func (p *producer) produce(gathered ...sending) {
	for _, s := range gathered {
		p.pass(s.ctx, s.record, func(r *kgo.Record, err error) {
			s.call.answer(s.index, r, err)
			p.gather.answered(r.Topic)
		})
	}
}

// pass passes a record to the client. When ctx ends, the client would also fail the records of other callers, those of
// the same batch and those that wait until their topic is known, so it gets one that only ends while it waits for room.
func (p *producer) pass(ctx context.Context, r *kgo.Record, promise func(*kgo.Record, error)) {
	r.Context = context.Background()
	if p.client.BufferedProduceRecords() < maxBuffered/2 && p.client.BufferedProduceBytes() < maxBufferedBytes/2 {
		p.client.Produce(r.Context, r, promise) //nolint:contextcheck // it does not wait
		return
	}
	wait, end := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, end)
	p.client.Produce(wait, r, promise)
	stop()
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

// close sends pending records and waits for the answers. Records that are sent later are refused.
func (p *producer) close() {
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

const (
	// batchOverhead is by how much Kafka's default for message.max.bytes exceeds 1 MiB.
	batchOverhead = 12
	// maxRequest is the largest request that Kafka accepts by default (socket.request.max.bytes), and maxBatch the largest
	// batch that the client makes.
	maxRequest = 100 << 20
	maxBatch   = 1 << 30
	// maxBuffered and maxBufferedBytes bound the records in flight of all callers together; further ones wait.
	maxBuffered      = 100_000
	maxBufferedBytes = 64 << 20
)

// newProducer creates a producer; it connects on first use. The client's defaults are acks=all and idempotence with
// several requests in flight: a confirmed record survives its leader, and one that is sent twice is stored once and in
// order. It never gives up a record whose fate is unknown. partitions chooses the partitions of records.
func newProducer(cfg brokers.Config, common []kgo.Opt, partitions kgo.Partitioner, limit int64) (*producer, error) {
	p := cfg.Params
	batch := min(limit+batchOverhead, maxBatch)
	client, err := kgo.NewClient(append(slices.Clone(common),
		kgo.RecordPartitioner(partitions),
		kgo.ProducerLinger(0),                   // single records are gathered, see batcher
		kgo.ProducerBatchMaxBytes(int32(batch)), //nolint:gosec // G115: at most maxBatch
		kgo.BrokerMaxWriteBytes(int32(max(batch, maxRequest))),
		kgo.MaxBufferedRecords(maxBuffered),
		kgo.MaxBufferedBytes(int(max(4*limit, maxBufferedBytes))),
		kgo.ProducerBatchCompression(compressions[p.String("compression")]),
		kgo.ProduceRequestTimeout(cfg.PublishTimeout),
		kgo.RecordDeliveryTimeout(max(cfg.PublishTimeout, time.Second)),
	)...)
	if err != nil {
		return nil, fmt.Errorf("producer: %w", err)
	}
	made := &producer{client: client, limit: int(limit), patience: max(cfg.PublishTimeout, time.Second)}
	made.gather.topics = map[string]*gathering{}
	made.gather.release = func(t *gathering) { made.produce(made.gather.take(t)...) }
	return made, nil
}

var compressions = map[string]kgo.CompressionCodec{
	"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
	"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
}

// batchWait bounds how long a record waits for others.
const batchWait = time.Millisecond

// batcher combines single records of many callers into few requests: the client sends each at once, and a request costs
// the broker as much as a hundred records. So a record waits while another one of its topic is unanswered, at most
// batchWait: a slow partition does not hold the others up, and a single caller never waits.
type batcher struct {
	release func(t *gathering) // called in a goroutine that may block

	mu     sync.Mutex
	topics map[string]*gathering // those with unanswered records
}

// gathering is a topic's unanswered and waiting records.
type gathering struct {
	unanswered int
	waiting    []sending
	overdue    *time.Timer // runs while records wait
}

// sending is a record on its way to the client.
type sending struct {
	ctx    context.Context // bounds the wait for room in the client
	record *kgo.Record
	call   *call
	index  int // of the record in its call
}

// add reports whether s is to be sent at once. Otherwise release follows.
func (g *batcher) add(s sending) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	t := g.topics[s.record.Topic]
	if t == nil {
		g.topics[s.record.Topic] = &gathering{unanswered: 1}
		return true
	}
	if t.waiting = append(t.waiting, s); len(t.waiting) == 1 {
		t.overdue = time.AfterFunc(batchWait, func() { g.release(t) })
	}
	return false
}

// answered is called once for each sent record.
func (g *batcher) answered(topic string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	t := g.topics[topic]
	if t.unanswered--; t.unanswered > 0 {
		return
	}
	if len(t.waiting) == 0 {
		delete(g.topics, topic)
		return
	}
	go func() {
		runtime.Gosched() // let the callers of the answered records add their next ones first
		g.release(t)
	}()
}

// take returns the waiting records, which are to be sent now.
func (g *batcher) take(t *gathering) []sending {
	g.mu.Lock()
	defer g.mu.Unlock()
	taken := t.waiting
	if len(taken) > 0 {
		t.overdue.Stop()
		t.unanswered += len(taken)
		t.waiting = make([]sending, 0, len(taken)) // about as many are expected next
	}
	return taken
}

// partitioners map keys to partitions as other clients do. Without a key they rotate: all records of a batch go to one
// partition.
var partitioners = map[string]kgo.Partitioner{
	"murmur2": kgo.StickyKeyPartitioner(nil),
	"fnv":     kgo.StickyKeyPartitioner(kgo.SaramaCompatHasher(fnv32a)),
}

func fnv32a(key []byte) uint32 {
	h := fnv.New32a()
	_, _ = h.Write(key) // never fails
	return h.Sum32()
}
