package services

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
)

// RabbitCluster is a RabbitMQ with several nodes. A node that cannot reach more than half of them pauses itself
// (pause_minority).
type RabbitCluster struct {
	Nodes []*Rabbit
}

// RabbitMQOf starts a cluster of n nodes for this test only, and stops it at the end of the test.
func RabbitMQOf(t testing.TB, cfg RabbitConfig, n int) *RabbitCluster {
	t.Helper()
	return own(t, n, func(ctx context.Context, n int) (*RabbitCluster, error) { return StartRabbitCluster(ctx, cfg, n) })
}

// StartRabbitCluster starts n nodes and returns once all know each other. The caller must close the cluster.
func StartRabbitCluster(ctx context.Context, cfg RabbitConfig, n int) (*RabbitCluster, error) {
	rabbits, err := newRabbits(ctx, cfg, n)
	if err != nil {
		return nil, err
	}
	c := &RabbitCluster{Nodes: rabbits}
	var starting errgroup.Group // together, because each looks for the others
	for _, r := range rabbits {
		starting.Go(func() error { return r.Start(ctx) })
	}
	if err := starting.Wait(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	if err := poll(ctx, func() error { return c.complete(ctx) }); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// complete returns nil once every node reports all nodes as running.
func (c *RabbitCluster) complete(ctx context.Context) error {
	for _, r := range c.Nodes {
		var nodes []struct {
			Running bool `json:"running"`
		}
		if err := r.Management().Do(ctx, "GET", nil, &nodes, "nodes"); err != nil {
			return err
		}
		running := 0
		for _, n := range nodes {
			if n.Running {
				running++
			}
		}
		if running < len(c.Nodes) {
			return fmt.Errorf("%s reports %d of %d nodes", r.node.name(), running, len(c.Nodes))
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

// Close ends all nodes.
func (c *RabbitCluster) Close() error {
	var errs []error
	for _, r := range slices.Backward(c.Nodes) { // the first has the name server for all
		errs = append(errs, r.Close())
	}
	return errors.Join(errs...)
}

// cluster returns the configuration with which nodes find each other.
func cluster(nodes []rabbitNode) string {
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
