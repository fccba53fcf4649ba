package services

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

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
	dir, libs, java string
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
	if err := os.WriteFile(n.properties(), []byte(text.String()), 0o600); err != nil {
		return err
	}
	cmd := n.run(ctx, "kafka.tools.StorageTool",
		append([]string{"format", "-c", n.properties(), "-t", cluster}, options...)...)
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
		// fast compilation instead of fast code, because tests mostly start it
		"-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
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
