package services

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/IBM/sarama"
	"golang.org/x/sync/errgroup"
)

// cluster is several servers that know each other.
type cluster[S startable] struct{ Nodes []S }

// start starts the nodes together, because one alone waits for the others or has no majority, and returns once complete
// returns nil.
func (c *cluster[S]) start(ctx context.Context, complete func() error) error {
	var starting errgroup.Group
	for _, node := range c.Nodes {
		starting.Go(func() error { return node.Start(ctx) })
	}
	if err := starting.Wait(); err != nil {
		return err
	}
	return poll(ctx, complete)
}

// Close ends all nodes.
func (c *cluster[S]) Close() error {
	var errs []error
	for _, node := range slices.Backward(c.Nodes) { // the first RabbitMQ has the name server for all
		errs = append(errs, node.Close())
	}
	return errors.Join(errs...)
}

// KafkaCluster is a Kafka with several nodes, each of which is broker and controller. Topics have a replica on every
// node, and a record is confirmed when all but one of them have it.
type KafkaCluster struct {
	cluster[*KafkaServer]

	Brokers []string // host:port of every node
}

// KafkaOf starts a cluster of n nodes for this test only, and stops it at the end of the test.
func KafkaOf(t testing.TB, n int) *KafkaCluster {
	t.Helper()
	return own(t, n, startKafkas)
}

func startKafkas(ctx context.Context, n int) (_ *KafkaCluster, err error) {
	libs, java, err := kafkaInstalled()
	if err != nil {
		return nil, err
	}
	ports, err := freePorts(3 * n)
	if err != nil {
		return nil, err
	}
	c := &KafkaCluster{}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	var voters []string
	for i := range n {
		c.Brokers = append(c.Brokers, loopback(ports[3*i]))
		voters = append(voters, strconv.Itoa(i+1)+"@"+loopback(ports[3*i+1]))
	}
	replicas, enough := strconv.Itoa(n), strconv.Itoa(max(n-1, 1))
	id := clusterID()
	for i := range n {
		dir, err := newDir("kafka", account{})
		if err != nil {
			return c, fmt.Errorf("services: kafka: %w", err)
		}
		node := kafkaNode{place: place{dir: dir}, libs: libs, java: java}
		settings := node.settings(ports[3*i:3*i+3], nil)
		maps.Copy(settings, map[string]string{
			"node.id":                                  strconv.Itoa(i + 1),
			"controller.quorum.voters":                 strings.Join(voters, ","),
			"default.replication.factor":               replicas,
			"min.insync.replicas":                      enough,
			"offsets.topic.replication.factor":         replicas,
			"transaction.state.log.replication.factor": replicas,
		})
		k := &KafkaServer{Brokers: c.Brokers[i : i+1]}
		k.runs(node)
		c.Nodes = append(c.Nodes, k)
		if err := node.format(ctx, settings, id); err != nil {
			return c, fmt.Errorf("services: kafka: %w", err)
		}
	}
	return c, c.start(ctx, c.complete)
}

// URL returns kafka://host:port,host:port of all nodes.
func (c *KafkaCluster) URL() string { return "kafka://" + strings.Join(c.Brokers, ",") }

// complete returns nil once all nodes know each other.
func (c *KafkaCluster) complete() error {
	for _, addr := range c.Brokers {
		client, err := sarama.NewClient([]string{addr}, sarama.NewConfig())
		if err != nil {
			return err
		}
		known := len(client.Brokers())
		if err := client.Close(); err != nil {
			return err
		}
		if known < len(c.Brokers) {
			return fmt.Errorf("%s knows %d of %d brokers", addr, known, len(c.Brokers))
		}
	}
	return nil
}

// Leader returns the node that leads a partition.
func (c *KafkaCluster) Leader(t testing.TB, topic string, partition int32) *KafkaServer {
	t.Helper()
	client, err := sarama.NewClient(c.Brokers, sarama.NewConfig())
	Need(t, err)
	defer client.Close()
	leader, err := client.Leader(topic, partition)
	Need(t, err)
	return c.Nodes[leader.ID()-1]
}

// RabbitCluster is a RabbitMQ with several nodes. A node that cannot reach more than half of them pauses itself
// (pause_minority).
type RabbitCluster struct{ cluster[*Rabbit] }

// RabbitMQOf starts a cluster of n nodes for this test only, and stops it at the end of the test.
func RabbitMQOf(t testing.TB, cfg RabbitConfig, n int) *RabbitCluster {
	t.Helper()
	return own(t, n, func(ctx context.Context, n int) (*RabbitCluster, error) {
		rabbits, err := newRabbits(ctx, cfg, n)
		if err != nil {
			return nil, err
		}
		c := &RabbitCluster{cluster[*Rabbit]{rabbits}}
		if err := c.start(ctx, func() error { return c.complete(ctx) }); err != nil {
			return nil, errors.Join(err, c.Close())
		}
		return c, nil
	})
}

// complete returns nil once every node reports all nodes as running.
func (c *RabbitCluster) complete(ctx context.Context) error {
	type node struct {
		Running bool `json:"running"`
	}
	for _, r := range c.Nodes {
		nodes, err := get[[]node](ctx, r.Management(), "nodes")
		if err != nil {
			return err
		}
		running := slices.DeleteFunc(nodes, func(n node) bool { return !n.Running })
		if len(running) < len(c.Nodes) {
			return fmt.Errorf("%s reports %d of %d nodes", r.node.name(), len(running), len(c.Nodes))
		}
	}
	return nil
}

// Leader returns the node that leads a quorum queue of the default virtual host.
func (c *RabbitCluster) Leader(t testing.TB, queue string) *Rabbit {
	t.Helper()
	var q struct {
		Leader string `json:"leader"`
	}
	for _, r := range c.Nodes {
		if err := r.Management().Do(t.Context(), "GET", nil, &q, "queues", "/", queue); err == nil {
			break
		}
	}
	for _, r := range c.Nodes {
		if r.node.name() == q.Leader {
			return r
		}
	}
	t.Fatalf("services: no node leads %s", queue)
	return nil
}

// clusterConf returns the configuration with which nodes find each other.
func clusterConf(nodes []rabbitNode) string {
	lines := []string{
		"cluster_partition_handling = pause_minority",
		"cluster_formation.peer_discovery_backend = classic_config",
		fmt.Sprintf("cluster_formation.target_cluster_size_hint = %d", len(nodes)),
	}
	for i, n := range nodes {
		lines = append(lines, fmt.Sprintf("cluster_formation.classic_config.nodes.%d = %s", i+1, n.name()))
	}
	return strings.Join(lines, "\n") + "\n"
}
