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
)

// kafkaVersion is the release in integration/kafka/pom.xml, a test compares them. Its broker needs Java 17.
const kafkaVersion = "4.3.1"

// KafkaConfig says how a Kafka of a test's own differs from ours. The zero value is fine.
type KafkaConfig struct {
	// Settings are further lines of server.properties, such as "message.max.bytes": "2000000".
	Settings map[string]string

	// Proxied puts a Proxy before the broker, which clients that start from KafkaServer.ProxiedBrokers then always
	// use. (A proxy put in between by hand is used once: clients go on to the address that the broker advertises.)
	Proxied bool
}

// KafkaServer is a running Kafka of one node, broker and controller at once.
type KafkaServer struct {
	server

	// Brokers are host:port addresses to start from.
	Brokers []string

	// Proxy stands before the broker if KafkaConfig.Proxied asked for it; ProxiedBrokers are the addresses behind it.
	Proxy          *Proxy
	ProxiedBrokers []string
}

var sharedKafka lazy[*KafkaServer]

// SharedKafka returns the broker that all tests of the process share. Use Topic to keep apart.
func SharedKafka(t testing.TB) *KafkaServer {
	t.Helper()
	k, err := sharedKafka.get(func() (*KafkaServer, error) {
		if brokers := os.Getenv("TEST_KAFKA_BROKERS"); brokers != "" {
			return &KafkaServer{server: server{name: "kafka", external: true}, Brokers: strings.Split(brokers, ",")}, nil
		}
		return StartKafka(context.Background(), KafkaConfig{})
	})
	must(t, err)
	return k
}

// Kafka starts a broker that belongs to the test alone and ends with it.
func Kafka(t testing.TB, cfg KafkaConfig) *KafkaServer {
	t.Helper()
	k, err := StartKafka(t.Context(), cfg)
	must(t, err)
	owned(t, k)
	return k
}

// StartKafka formats a data directory and starts a broker on it. The caller closes it.
func StartKafka(ctx context.Context, cfg KafkaConfig) (*KafkaServer, error) {
	libs, java, err := kafkaInstalled()
	if err != nil {
		return nil, &UnavailableError{Service: "kafka", Env: "TEST_KAFKA_BROKERS", Cause: err}
	}
	ports, err := freePorts(3)
	if err != nil {
		return nil, err
	}
	k := &KafkaServer{Brokers: []string{loopback(ports[0])}}
	if cfg.Proxied {
		if k.Proxy, err = StartProxy(loopback(ports[2])); err != nil {
			return nil, err
		}
		k.ProxiedBrokers = []string{k.Proxy.Addr}
	}
	dir, err := newDir("kafka", account{})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("services: kafka: %w", err), k.closeProxy())
	}
	node := kafkaNode{dir: dir, libs: libs, java: java}
	if err := node.format(ctx, node.settings(ports, k.Proxy, cfg.Settings)); err != nil {
		return nil, errors.Join(fmt.Errorf("services: kafka: %w", err), k.closeProxy(), removeDir(dir))
	}
	k.server = server{
		name:       "kafka",
		dir:        dir,
		stopSignal: syscall.SIGTERM,
		command:    node.command,
		ready:      k.serves,
		closing:    func() { _ = k.closeProxy() },
	}
	if err := k.Start(ctx); err != nil {
		return nil, errors.Join(err, k.Close())
	}
	return k, nil
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
	if err := admin.CreateTopic(name, &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: 1}, false); err != nil {
		t.Fatal(err)
	}
	return name
}

// serves returns nil when the broker is its cluster's controller and has registered.
func (k *KafkaServer) serves(ctx context.Context) error {
	// sarama would try for seconds where nothing listens yet.
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

// kafkaInstalled returns the directory of Kafka's jars and the Java that runs them.
func kafkaInstalled() (libs, java string, err error) {
	if !nativeSupported {
		return "", "", errors.New("servers are started natively only on Linux")
	}
	if libs = os.Getenv("REDRIVE_KAFKA_LIBS"); libs == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return "", "", err
		}
		libs = filepath.Join(cache, "redrive", "kafka-"+kafkaVersion)
	}
	if _, err := os.Stat(filepath.Join(libs, "kafka-clients-"+kafkaVersion+".jar")); err != nil {
		return "", "", err
	}
	java, err = exec.LookPath("java")
	return libs, java, err
}

// kafkaNode is where one broker lives. It runs as we do: Kafka does not mind root, and its jars may be in our home.
type kafkaNode struct {
	dir, libs, java string
}

func (n kafkaNode) settings(ports []int, proxy *Proxy, extra map[string]string) map[string]string {
	direct, controller, proxied := loopback(ports[0]), loopback(ports[1]), loopback(ports[2])
	listeners := "PLAINTEXT://" + direct + ",CONTROLLER://" + controller
	advertised := "PLAINTEXT://" + direct
	if proxy != nil {
		listeners += ",PROXIED://" + proxied
		advertised += ",PROXIED://" + proxy.Addr
	}
	settings := map[string]string{
		"process.roles":                  "broker,controller",
		"node.id":                        "1",
		"controller.quorum.voters":       "1@" + controller,
		"controller.listener.names":      "CONTROLLER",
		"listeners":                      listeners,
		"advertised.listeners":           advertised,
		"inter.broker.listener.name":     "PLAINTEXT",
		"listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT",
		"log.dirs":                       filepath.Join(n.dir, "data"),

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
		"group.min.session.timeout.ms":     "100",  // tests of lost consumers do not want to wait 6 s
		"broker.session.timeout.ms":        "3000", // a killed broker may register again only after it; 9 s by default
		"broker.heartbeat.interval.ms":     "500",
		"num.network.threads":              "1",
		"num.io.threads":                   "2",
		"log.cleaner.dedupe.buffer.size":   "2097152", // 128 MB by default, a third of our heap
	}
	maps.Copy(settings, extra)
	return settings
}

func (n kafkaNode) format(ctx context.Context, settings map[string]string) error {
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&text, "%s=%s\n", name, settings[name])
	}
	if err := os.WriteFile(n.properties(), []byte(text.String()), 0o600); err != nil {
		return err
	}
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	id[0] &= 0x7f           // an id that begins with "-" would be taken for an option
	cmd := n.run(ctx, "kafka.tools.StorageTool", "format", "-c", n.properties(), "-t", base64.RawURLEncoding.EncodeToString(id[:]))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("format: %w: %s", err, out)
	}
	return nil
}

func (n kafkaNode) command(ctx context.Context) *exec.Cmd {
	return n.run(ctx, "kafka.Kafka", n.properties())
}

// run returns the command for one of Kafka's classes.
func (n kafkaNode) run(ctx context.Context, class string, args ...string) *exec.Cmd {
	java := []string{
		"-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", // starts in half the time, runs at half the speed
		"-XX:ActiveProcessorCount=2",
		"-Djava.awt.headless=true",
		"-Djava.io.tmpdir=" + n.dir,
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
		"-Dorg.slf4j.simpleLogger.showDateTime=true",
		"-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
		"-cp", filepath.Join(n.libs, "*"), class,
	}
	cmd := exec.CommandContext(ctx, n.java, append(java, args...)...)
	cmd.Dir = n.dir
	cmd.Env = []string{"HOME=" + n.dir, "PATH=/usr/bin:/bin", "LC_ALL=C.UTF-8"}
	account{}.prepare(cmd, syscall.SIGKILL)
	return cmd
}

func (n kafkaNode) properties() string { return filepath.Join(n.dir, "server.properties") }
