package services

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/IBM/sarama"

	"github.com/redrive-go/redrive/integration/await"
)

// kafkaVersion is the release in integration/kafka/pom.xml, with which a test compares it. Its broker needs Java 17.
const kafkaVersion = "4.3.1"

// KafkaConfig describes how a test's own Kafka differs from the shared one. The zero value is ready to use.
type KafkaConfig struct {
	// Settings are additional lines of server.properties, such as "message.max.bytes": "2000000".
	Settings map[string]string

	// Secured adds a listener that requires TLS with a client certificate and SASL; see KafkaServer.Secured.
	Secured bool

	// Proxied puts a Proxy in front of the broker, which clients that start from KafkaServer.ProxiedBrokers then always
	// use. (A proxy in front of an ordinary broker is only used once: clients then connect to the address that the broker
	// advertises.)
	Proxied bool
}

// KafkaServer is a running Kafka of one node, broker and controller at once.
type KafkaServer struct {
	server

	// Brokers are host:port addresses to start from.
	Brokers []string

	// Secured describes how to connect to the listener of KafkaConfig.Secured.
	Secured *KafkaSecurity

	// Proxy is in front of the broker if KafkaConfig.Proxied is set; ProxiedBrokers are the addresses to use with it.
	Proxy          *Proxy
	ProxiedBrokers []string
}

var sharedKafka lazy[*KafkaServer]

// SharedKafka returns the broker that all tests of the process share. Use Topic to separate tests.
func SharedKafka(t testing.TB) *KafkaServer {
	t.Helper()
	return sharedKafka.get(t, func(ctx context.Context) (*KafkaServer, error) {
		if brokers := os.Getenv("TEST_KAFKA_BROKERS"); brokers != "" {
			return &KafkaServer{server: server{name: "kafka", external: true}, Brokers: strings.Split(brokers, ",")}, nil
		}
		return StartKafka(ctx, KafkaConfig{})
	})
}

// Kafka starts a broker for this test only, and stops it at the end of the test.
func Kafka(t testing.TB, cfg KafkaConfig) *KafkaServer {
	t.Helper()
	return own(t, cfg, StartKafka)
}

// StartKafka formats a data directory and starts a broker with it. The caller must close it.
func StartKafka(ctx context.Context, cfg KafkaConfig) (*KafkaServer, error) {
	libs, java, err := kafkaInstalled()
	if err != nil {
		return nil, err
	}
	dir, ports, err := newPlace("kafka", account{}, 4)
	if err != nil {
		return nil, err
	}
	node := kafkaNode{dir: dir, libs: libs, java: java}
	k := &KafkaServer{Brokers: []string{loopback(ports[0])}}
	if err := k.prepare(ctx, cfg, node, ports); err != nil {
		return nil, errors.Join(fmt.Errorf("services: kafka: %w", err), k.closeProxy(), removeDir(dir))
	}
	return started(ctx, k)
}

func (k *KafkaServer) prepare(ctx context.Context, cfg KafkaConfig, node kafkaNode, ports []int) (err error) {
	k.runs(node)
	if cfg.Proxied {
		if k.Proxy, err = StartProxy(loopback(ports[2])); err != nil {
			return err
		}
		k.ProxiedBrokers = []string{k.Proxy.Addr}
	}
	settings := node.settings(ports, k.Proxy)
	if cfg.Secured {
		if k.Secured, err = newKafkaSecurity(node.dir, loopback(ports[3])); err != nil {
			return err
		}
		k.Secured.listen(settings)
	}
	maps.Copy(settings, cfg.Settings)
	return node.format(ctx, settings, clusterID(), k.Secured.users()...)
}

// runs returns how the broker is started and stopped.
func (k *KafkaServer) runs(node kafkaNode) {
	k.server = server{
		name:       "kafka",
		dir:        node.dir,
		stopSignal: syscall.SIGTERM,
		command:    node.command,
		ready:      k.serves,
		closing:    func() { _ = k.closeProxy() },
	}
}

// URL returns kafka://host:port of the brokers.
func (k *KafkaServer) URL() string { return "kafka://" + strings.Join(k.Brokers, ",") }

// Topic returns a name that no other test uses. Writing to it creates it with three partitions.
func (k *KafkaServer) Topic(t testing.TB) string {
	t.Helper()
	return "test-" + strings.ToLower(rand.Text()[:10])
}

// CreateTopic creates a topic of the given number of partitions, under a name that no other test uses.
func (k *KafkaServer) CreateTopic(t testing.TB, partitions int32) string {
	t.Helper()
	name := k.Topic(t)
	admin, err := sarama.NewClusterAdmin(k.Brokers, sarama.NewConfig())
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	if err := admin.CreateTopic(name, &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: 1},
		false); err != nil {
		t.Fatal(err)
	}
	// The controller responds before the broker leads the partitions.
	await.True(t, func() bool {
		topics, err := admin.DescribeTopics([]string{name})
		return err == nil && len(topics) == 1 && topics[0].Err == sarama.ErrNoError && led(topics[0], partitions)
	}, "each partition of a new topic gets a leader")
	return name
}

// led reports whether a topic has all its partitions and each has a leader.
func led(topic *sarama.TopicMetadata, partitions int32) bool {
	for _, p := range topic.Partitions {
		if p.Err != sarama.ErrNoError {
			return false
		}
	}
	return len(topic.Partitions) == int(partitions)
}

// serves returns nil once the broker is its cluster's controller and has registered.
func (k *KafkaServer) serves(ctx context.Context) error {
	// sarama would retry for seconds while nothing listens yet.
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", k.Brokers[0])
	if err != nil {
		return err
	}
	if err := conn.Close(); err != nil {
		return err
	}
	cfg := sarama.NewConfig()
	cfg.Metadata.Retry.Max = 0
	client, err := sarama.NewClient(k.Brokers, cfg)
	if err != nil {
		return err
	}
	_, err = client.Controller()
	return errors.Join(err, client.Close())
}

func (k *KafkaServer) closeProxy() error {
	if k.Proxy == nil {
		return nil
	}
	return k.Proxy.Close()
}
