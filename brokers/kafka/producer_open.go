package kafka

import (
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/redrive-go/redrive/brokers"
)

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
// order. It never gives up a record whose fate is unknown.
func newProducer(cfg brokers.Config, common []kgo.Opt, limit int64) (*producer, error) {
	p := cfg.Params
	batch := min(limit+batchOverhead, maxBatch)
	client, err := kgo.NewClient(append(slices.Clone(common),
		kgo.RecordPartitioner(partitioner{partitioners[p.String("partitioner")]}),
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
	made.gather = batcher{release: made.release, topics: map[string]*gathering{}}
	return made, nil
}

var compressions = map[string]kgo.CompressionCodec{
	"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
	"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
}
