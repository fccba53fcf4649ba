package kafka

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/brokers/internal/kafkaurl"
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

// clientOptions are common to all clients: addresses, encryption, credentials, and timeouts.
func clientOptions(cfg brokers.Config, seeds []string, user *url.Userinfo) ([]kgo.Opt, error) {
	p := cfg.Params
	encryption, faultTLS := tlsConfig(p)
	credentials, faultSASL := authentication(p.String("sasl"), user)
	if err := errors.Join(faultTLS, faultSASL); err != nil {
		return nil, err
	}
	opts := []kgo.Opt{
		kgo.SeedBrokers(seeds...),
		kgo.ClientID(kafkaurl.ClientID(cfg.Name)),
		kgo.DialTimeout(dialTimeout),
		kgo.DisableClientMetrics(),
		kgo.MetadataMinAge(metadataPause), // a topic that was just created needs another look
		kgo.RetryBackoffFn(retrying.After),
	}
	if encryption != nil {
		opts = append(opts, kgo.DialTLSConfig(encryption))
	}
	if credentials != nil {
		opts = append(opts, kgo.SASL(credentials))
	}
	return opts, nil
}

const (
	dialTimeout = 10 * time.Second
	// metadataPause is how long a client waits before it asks again which broker leads a partition.
	metadataPause = 50 * time.Millisecond
)

// byName limits the requests that this driver builds itself to versions that identify topics by name. Newer versions
// identify them only by id.
func byName() kgo.Opt {
	versions := kversion.Stable()
	versions.SetMaxKeyVersion(kmsg.Fetch.Int16(), 12)
	versions.SetMaxKeyVersion(kmsg.OffsetCommit.Int16(), 9)
	versions.SetMaxKeyVersion(kmsg.OffsetFetch.Int16(), 9)
	return kgo.MaxVersions(versions)
}

// authentication returns nil if there is no user.
func authentication(name string, user *url.Userinfo) (sasl.Mechanism, error) {
	if user == nil {
		if name != "" {
			return nil, fmt.Errorf("sasl=%s needs a user name and a password, in the URL or in Config.Username and "+
				"Config.Password", name)
		}
		return nil, nil //nolint:nilnil // missing credentials are not an error
	}
	password, _ := user.Password()
	switch name {
	case "scram-sha-256":
		return scram.Auth{User: user.Username(), Pass: password}.AsSha256Mechanism(), nil
	case "scram-sha-512":
		return scram.Auth{User: user.Username(), Pass: password}.AsSha512Mechanism(), nil
	default:
		return plain.Auth{User: user.Username(), Pass: password}.AsMechanism(), nil
	}
}

func groupOptions(p brokers.Params, group, topic string) []kgo.Opt {
	return []kgo.Opt{
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.Balancers(assignors[p.String("assignor")]()),
		kgo.SessionTimeout(p.Duration("session-timeout")),
		kgo.HeartbeatInterval(p.Duration("session-timeout") / 10), // also how soon it learns of a rebalance
		kgo.RebalanceTimeout(p.Duration("rebalance-timeout")),
		kgo.DisableAutoCommit(), // the committer does it, for the main topic and retry topics alike
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), // for a position that is out of range, never the newest
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(), // the end of a transaction moves the position, or there would be a lag
		kgo.FetchMaxWait(fetchWait),
		kgo.FetchMaxPartitionBytes(fetchPartitionBytes),
	}
}

const (
	// fetchWait is how long a broker may hold a fetch of the topic until there are records. It is also how long a
	// partition may wait to be fetched again while others on its broker are idle.
	fetchWait           = 250 * time.Millisecond
	fetchPartitionBytes = 1 << 20
)

// tlsConfig returns nil if the connection is not to be encrypted.
func tlsConfig(p brokers.Params) (*tls.Config, error) {
	ca, cert, key := p.String("tls-ca"), p.String("tls-cert"), p.String("tls-key")
	if !p.Bool("tls") {
		if ca+cert+key != "" {
			return nil, errors.New("tls-ca, tls-cert and tls-key need tls=true")
		}
		return nil, nil //nolint:nilnil // missing encryption is not an error
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("parameter tls-ca: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("parameter tls-ca: %s holds no PEM certificate", ca)
		}
	}
	if cert != "" || key != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("parameters tls-cert and tls-key: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// Cooperative assignors let a member keep its partitions, and continue with them, while others come and go. The eager
// ones are for groups with members that do not support this.
var assignors = map[string]func() kgo.GroupBalancer{
	"cooperative-sticky": kgo.CooperativeStickyBalancer,
	"sticky":             kgo.StickyBalancer,
	"range":              kgo.RangeBalancer,
	"roundrobin":         kgo.RoundRobinBalancer,
}
