package kafka

import (
	"context"
	"fmt"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
)

func init() { brokers.Register(Scheme, Driver{}) }

var _ brokers.Driver = Driver{}

// Driver opens kafka:// URLs.
type Driver struct{}

const defaultMaxMessage = "1MiB"

// Params declares the parameters that the package comment describes.
func (Driver) Params() []brokers.Param {
	return append([]brokers.Param{
		{Name: "auto-create", Type: brokers.Bool, Default: "true", Doc: "Create missing topics."},
		{
			Name: "partitions", Type: brokers.Int, Max: 100_000,
			Doc: "Partitions of the topics created for Publish and Subscribe; the broker's default if not given.",
		},
		{
			Name: "replication", Type: brokers.Int, Max: 32767,
			Doc: "Replicas of the topics created; the broker's default if not given.",
		},
		{Name: "offset", Default: "oldest", OneOf: []string{"oldest", "newest"}, Doc: "Where a new group begins."},
		{
			Name: "order", Default: "none", OneOf: []string{"none", "key"},
			Doc: "What a waiting retry holds back: nothing (none), or the later messages of its key (key).",
		},
		{
			Name: "order-dead", Default: "continue", OneOf: []string{"continue", "block"},
			Doc: "With order=key, what happens to later messages of a key after a dead letter.",
		},
		{
			Name: "commit-interval", Type: brokers.Duration, Default: "200ms", Min: int64(time.Millisecond),
			Max: int64(time.Minute), Doc: "How often offsets are committed.",
		},
		driver.NackPause(),
	}, append(clusterParams(), accessParams()...)...)
}

// clusterParams are the parameters of the client, topics and groups.
func clusterParams() []brokers.Param {
	return []brokers.Param{
		{
			Name: "max-message-bytes", Type: brokers.Size, Default: defaultMaxMessage, Min: 1024, Max: 1 << 30,
			Doc: "Largest record, headers included.",
		},
		{
			Name: "compression", Default: "none", OneOf: []string{"none", "gzip", "snappy", "lz4", "zstd"},
			Doc: "Compression of published batches.",
		},
		{
			Name: "partitioner", Default: "murmur2", OneOf: []string{"murmur2", "fnv"},
			Doc: "Hash of the key: murmur2, as Java clients use, or fnv, as sarama and watermill-kafka use.",
		},
		{
			Name: "assignor", Default: "cooperative-sticky",
			OneOf: []string{"cooperative-sticky", "sticky", "range", "roundrobin"}, Doc: "How a group shares partitions.",
		},
		{
			Name: "session-timeout", Type: brokers.Duration, Default: "10s", Min: int64(time.Second), Max: int64(time.Hour),
			Doc: "Silence after which a member's partitions go to the other members of its group.",
		},
		{
			Name: "rebalance-timeout", Type: brokers.Duration, Default: "60s", Min: int64(time.Second), Max: int64(time.Hour),
			Doc: "How long a rebalance waits for running handlers.",
		},
	}
}

// accessParams are the parameters of encryption and credentials.
func accessParams() []brokers.Param {
	return []brokers.Param{
		{Name: "tls", Type: brokers.Bool, Default: "false", Doc: "Connect with TLS."},
		{Name: "tls-ca", Doc: "File with the certificates to trust; the system's if not given."},
		{Name: "tls-cert", Doc: "File with the client's certificate."},
		{Name: "tls-key", Doc: "File with the client's key."},
		{
			Name: "sasl", OneOf: []string{"plain", "scram-sha-256", "scram-sha-512"},
			Doc: "How user name and password are sent; plain if not given.",
		},
	}
}

// Open connects to the cluster. It fails when no seed broker answers.
func (Driver) Open(ctx context.Context, cfg brokers.Config) (brokers.Broker, error) {
	b, err := open(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("kafka: open %s: %w", brokers.Redact(cfg.URL), err)
	}
	return b, nil
}
