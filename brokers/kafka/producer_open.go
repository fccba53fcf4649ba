package kafka

import (
	"fmt"
	"net/url"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	kscram "github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/redrive-go/redrive/brokers"
)

const (
	// batchOverhead is what Kafka's default for message.max.bytes allows a batch beyond 1 MiB.
	batchOverhead = 12
	// maxRequest is the largest that Kafka takes by default (socket.request.max.bytes), and maxBatch the largest that the
	// client makes.
	maxRequest = 100 << 20
	maxBatch   = 1 << 30
	// maxBuffered and maxBufferedBytes bound what callers together may have under way; further ones wait.
	maxBuffered      = 100_000
	maxBufferedBytes = 64 << 20
)

// newProducer makes a producer; it connects when it is first used. The client's defaults are acks=all and idempotence
// with several requests in flight: a record that is confirmed survives its leader, and one that is sent twice is stored
// once and in order. It never gives up a record whose fate is unknown.
func newProducer(cfg brokers.Config, seeds []string, user *url.Userinfo, limit int64) (*producer, error) {
	p := cfg.Params
	batch := min(limit+batchOverhead, maxBatch)
	opts := []kgo.Opt{
		kgo.SeedBrokers(seeds...),
		kgo.ClientID(clientID(cfg)),
		kgo.RecordPartitioner(partitioner{partitioners[p.String("partitioner")]}),
		kgo.ProducerLinger(0),                   // what comes while a request is under way shares the next one
		kgo.ProducerBatchMaxBytes(int32(batch)), //nolint:gosec // G115: at most maxBatch
		kgo.BrokerMaxWriteBytes(int32(max(batch, maxRequest))),
		kgo.MaxBufferedRecords(maxBuffered),
		kgo.MaxBufferedBytes(int(max(4*limit, maxBufferedBytes))),
		kgo.ProducerBatchCompression(compressions[p.String("compression")]),
		kgo.ProduceRequestTimeout(cfg.PublishTimeout),
		kgo.RecordDeliveryTimeout(max(cfg.PublishTimeout, time.Second)),
		kgo.MetadataMinAge(metadataPause), // a topic that has just been made needs another look
		kgo.RetryBackoffFn(func(tries int) time.Duration { return min(minPause<<min(max(tries-1, 0), 5), time.Second) }),
	}
	encryption, err := tlsConfig(p)
	if err != nil {
		return nil, err
	}
	if encryption != nil {
		opts = append(opts, kgo.DialTLSConfig(encryption))
	}
	if user != nil {
		opts = append(opts, kgo.SASL(mechanism(p.String("sasl"), user)))
	}
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, fmt.Errorf("producer: %w", err)
	}
	return &producer{client: client, limit: int(limit), patience: max(cfg.PublishTimeout, time.Second)}, nil
}

// metadataPause is how long a producer waits before it asks again which broker leads a partition.
const metadataPause = 50 * time.Millisecond

func mechanism(name string, user *url.Userinfo) sasl.Mechanism {
	password, _ := user.Password()
	switch name {
	case "scram-sha-256":
		return kscram.Auth{User: user.Username(), Pass: password}.AsSha256Mechanism()
	case "scram-sha-512":
		return kscram.Auth{User: user.Username(), Pass: password}.AsSha512Mechanism()
	default:
		return plain.Auth{User: user.Username(), Pass: password}.AsMechanism()
	}
}

var compressions = map[string]kgo.CompressionCodec{
	"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
	"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
}
