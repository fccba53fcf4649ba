package services

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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
		// No test kills it, and on a busy machine it must not lose its leaders because a heartbeat is late.
		return StartKafka(ctx, KafkaConfig{Settings: map[string]string{"broker.session.timeout.ms": "60000"}})
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
	at, ports, err := newPlace("kafka", account{}, 4)
	if err != nil {
		return nil, err
	}
	node := kafkaNode{place: at, libs: libs, java: java}
	k := &KafkaServer{Brokers: []string{loopback(ports[0])}}
	if err := k.prepare(ctx, cfg, node, ports); err != nil {
		return nil, errors.Join(fmt.Errorf("services: kafka: %w", err), k.Proxy.Cut(), removeDir(at.dir))
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
		place:      node.place,
		stopSignal: syscall.SIGTERM,
		command:    node.command,
		ready:      k.serves,
		closing:    func() { _ = k.Proxy.Cut() },
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
	Need(t, err)
	defer admin.Close()
	Need(t, admin.CreateTopic(name, &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: 1}, false))
	// The controller responds before the broker leads the partitions.
	await.True(t, func() bool {
		topics, err := admin.DescribeTopics([]string{name})
		return err == nil && len(topics) == 1 && topics[0].Err == sarama.ErrNoError &&
			len(topics[0].Partitions) == int(partitions) && !slices.ContainsFunc(topics[0].Partitions, leaderless)
	}, "each partition of a new topic gets a leader")
	return name
}

func leaderless(p *sarama.PartitionMetadata) bool { return p.Err != sarama.ErrNoError }

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

// kafkaInstalled returns the directory of Kafka's jars and the Java that runs them.
func kafkaInstalled() (libs, java string, err error) {
	libs, err = unpacked("kafka", "TEST_KAFKA_BROKERS", "REDRIVE_KAFKA_LIBS", "kafka-"+kafkaVersion,
		"kafka-clients-"+kafkaVersion+".jar")
	if err != nil {
		return "", "", err
	}
	if java, err = exec.LookPath("java"); err != nil {
		return "", "", &UnavailableError{Service: "kafka", Env: "TEST_KAFKA_BROKERS", Cause: err}
	}
	return libs, java, nil
}

// kafkaNode has the files of one broker. It runs as our user, because Kafka accepts root and its jars may be in our
// home directory.
type kafkaNode struct {
	place

	libs, java string
}

func (n kafkaNode) settings(ports []int, proxy *Proxy) map[string]string {
	direct, controller, proxied := loopback(ports[0]), loopback(ports[1]), loopback(ports[2])
	listeners := "PLAINTEXT://" + direct + ",CONTROLLER://" + controller
	advertised := "PLAINTEXT://" + direct
	if proxy != nil {
		listeners += ",PROXIED://" + proxied
		advertised += ",PROXIED://" + proxy.Addr
	}
	return map[string]string{
		"process.roles":                  "broker,controller",
		"node.id":                        "1",
		"controller.quorum.voters":       "1@" + controller,
		"controller.listener.names":      "CONTROLLER",
		"listeners":                      listeners,
		"advertised.listeners":           advertised,
		"inter.broker.listener.name":     "PLAINTEXT",
		"listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT",
		"log.dirs":                       n.in("data"),

		// One node keeps one copy of everything.
		"default.replication.factor":                       "1",
		"min.insync.replicas":                              "1",
		"offsets.topic.replication.factor":                 "1",
		"offsets.topic.num.partitions":                     "1",
		"transaction.state.log.replication.factor":         "1",
		"transaction.state.log.min.isr":                    "1",
		"transaction.state.log.num.partitions":             "1",
		"share.coordinator.state.topic.replication.factor": "1",
		"share.coordinator.state.topic.min.isr":            "1",
		"share.coordinator.state.topic.num.partitions":     "1",

		"num.partitions":                   "3",
		"auto.create.topics.enable":        "true",
		"group.initial.rebalance.delay.ms": "0",
		"group.min.session.timeout.ms":     "100",  // 6 s would slow down tests of lost consumers
		"broker.session.timeout.ms":        "3000", // after which a killed broker may register again; 9 s by default
		"broker.heartbeat.interval.ms":     "500",
		"num.network.threads":              "1",
		"num.io.threads":                   "2",
		"log.cleaner.dedupe.buffer.size":   "2097152", // 128 MB by default, a third of our heap
	}
}

// clusterID returns a new cluster id.
func clusterID() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	id[0] &= 0x7f           // an id that begins with "-" would be treated as an option
	return base64.RawURLEncoding.EncodeToString(id[:])
}

func (n kafkaNode) format(ctx context.Context, settings map[string]string, cluster string, options ...string) error {
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&text, "%s=%s\n", name, settings[name])
	}
	if err := n.write(properties, text.String()); err != nil {
		return err
	}
	return n.setUp(ctx, n.java, n.class("kafka.tools.StorageTool",
		append([]string{"format", "-c", properties, "-t", cluster}, options...)...)...)
}

const properties = "server.properties"

func (n kafkaNode) command(ctx context.Context) *exec.Cmd {
	return n.run(ctx, n.java, n.class("kafka.Kafka", properties)...)
}

// class returns Java's arguments for one of Kafka's classes.
func (n kafkaNode) class(name string, args ...string) []string {
	return append([]string{
		// fast compilation instead of fast code, because tests mostly start it
		"-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:ActiveProcessorCount=2",
		"-Djava.awt.headless=true", "-Djava.io.tmpdir=" + n.dir,
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true",
		"-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
		"-cp", filepath.Join(n.libs, "*"), name,
	}, args...)
}

// KafkaSecurity is a listener that requires TLS with a client certificate, and a user with a password over any of
// PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512.
type KafkaSecurity struct {
	Addr           string // host:port
	User, Password string
	CA, Cert, Key  string // PEM files: the trusted authority, and the client's certificate and key
	keystore       string
}

// newKafkaSecurity writes certificates for the listener at addr to dir.
func newKafkaSecurity(dir, addr string) (*KafkaSecurity, error) {
	c, err := NewCertificates(dir)
	if err != nil {
		return nil, err
	}
	var keystore []byte // the format that Kafka reads: key, then certificate
	for _, file := range []string{c.ServerKey, c.ServerCert} {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		keystore = append(keystore, content...)
	}
	s := &KafkaSecurity{
		Addr: addr, User: "alice", Password: "s3cret of alice",
		CA: c.CA, Cert: c.ClientCert, Key: c.ClientKey, keystore: filepath.Join(dir, "broker.pem"),
	}
	return s, os.WriteFile(s.keystore, keystore, 0o600)
}

// listen adds the listener to a broker's settings.
func (s *KafkaSecurity) listen(settings map[string]string) {
	settings["listeners"] += ",SECURED://" + s.Addr
	settings["advertised.listeners"] += ",SECURED://" + s.Addr
	settings["listener.security.protocol.map"] += ",SECURED:SASL_SSL"
	const name = "listener.name.secured."
	settings[name+"ssl.keystore.type"] = "PEM"
	settings[name+"ssl.keystore.location"] = s.keystore
	settings[name+"ssl.truststore.type"] = "PEM"
	settings[name+"ssl.truststore.location"] = s.CA
	settings[name+"ssl.client.auth"] = "required"
	settings[name+"sasl.enabled.mechanisms"] = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"
	const module = "org.apache.kafka.common.security."
	plain := fmt.Sprintf("plain.PlainLoginModule required user_%s=%q;", s.User, s.Password)
	settings[name+"plain.sasl.jaas.config"] = module + plain
	settings[name+"scram-sha-256.sasl.jaas.config"] = module + "scram.ScramLoginModule required;"
	settings[name+"scram-sha-512.sasl.jaas.config"] = module + "scram.ScramLoginModule required;"
}

// users returns the options that create the users of a new cluster; none for a nil KafkaSecurity.
func (s *KafkaSecurity) users() (options []string) {
	if s == nil {
		return nil
	}
	for _, mechanism := range []string{"SCRAM-SHA-256", "SCRAM-SHA-512"} {
		options = append(options, "--add-scram", fmt.Sprintf("%s=[name=%s,password=%s]", mechanism, s.User, s.Password))
	}
	return options
}
