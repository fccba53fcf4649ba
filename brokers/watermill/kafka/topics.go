package kafka

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/internal/wait"
)

// topics creates missing topics, and remembers existing ones.
type topics struct {
	conn   sarama.Client
	admin  sarama.ClusterAdmin
	make   bool
	detail sarama.TopicDetail

	mu    sync.Mutex
	known map[string]struct{}
}

// maxKnown bounds the remembered topics: their names may come from messages.
const maxKnown = 10_000

func newTopics(conn sarama.Client, admin sarama.ClusterAdmin, p brokers.Params) *topics {
	t := &topics{
		conn: conn, admin: admin, make: p.Bool("auto-create"), known: map[string]struct{}{},
		detail: sarama.TopicDetail{NumPartitions: -1, ReplicationFactor: -1}, // the server's defaults
	}
	if n := p.Int("partitions"); n > 0 {
		t.detail.NumPartitions = int32(n) //nolint:gosec // G115: bounded by the parameter
	}
	return t
}

// ensure returns when topic exists and each of its partitions has a leader.
func (t *topics) ensure(ctx context.Context, topic string) error {
	t.mu.Lock()
	_, known := t.known[topic]
	t.mu.Unlock()
	if known {
		return nil
	}
	err := error(sarama.ErrUnknownTopicOrPartition)
	if !t.make || !t.missing(topic) {
		err = t.conn.RefreshMetadata(topic)
	}
	if err != nil {
		if !errors.Is(err, sarama.ErrUnknownTopicOrPartition) {
			return fmt.Errorf("topic %s: %w", topic, notReady(err))
		}
		if !t.make {
			return fmt.Errorf("topic %s does not exist, and auto-create=false: %w", topic, brokers.ErrUnroutable)
		}
		err := t.admin.CreateTopic(topic, &t.detail, false)
		if err != nil && !errors.Is(err, sarama.ErrTopicAlreadyExists) {
			return fmt.Errorf("create topic %s: %w", topic, notReady(err))
		}
		if err := t.ready(ctx, topic); err != nil {
			return fmt.Errorf("topic %s was created but cannot be used yet: %w", topic, err)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.known) >= maxKnown {
		clear(t.known)
	}
	t.known[topic] = struct{}{}
	return nil
}

// notReady marks the errors of a cluster that starts, elects a leader, or whose nodes are all fenced.
func notReady(err error) error {
	_, passes := errors.AsType[net.Error](err)
	for _, answer := range []error{
		sarama.ErrOutOfBrokers, sarama.ErrNotConnected, sarama.ErrBrokerNotAvailable, sarama.ErrControllerNotAvailable,
		sarama.ErrNotController, sarama.ErrLeaderNotAvailable, sarama.ErrRequestTimedOut, sarama.ErrInvalidReplicationFactor,
		io.EOF, io.ErrUnexpectedEOF,
	} {
		passes = passes || errors.Is(err, answer)
	}
	if passes {
		return fmt.Errorf("%w: %w", driver.ErrTemporary, err)
	}
	return err
}

// missing reports whether topic does not exist according to a broker. RefreshMetadata asks four times, within 750 ms,
// before it does; no wait is needed before creating the topic.
func (t *topics) missing(topic string) bool {
	found, err := t.admin.DescribeTopics([]string{topic})
	return err == nil && len(found) == 1 && errors.Is(found[0].Err, sarama.ErrUnknownTopicOrPartition)
}

// forget makes ensure check again.
func (t *topics) forget(topic string) {
	t.mu.Lock()
	delete(t.known, topic)
	t.mu.Unlock()
}

// checking paces checks of a topic that was just created.
var checking = wait.Backoff{First: 20 * time.Millisecond, Longest: time.Second}

// ready waits until every partition has a leader.
func (t *topics) ready(ctx context.Context, topic string) error {
	for n := 1; ; n++ {
		err := t.hasLeaders(topic)
		if err == nil {
			return nil
		}
		if ended := wait.For(ctx, checking.After(n)); ended != nil {
			return errors.Join(err, ended)
		}
	}
}

func (t *topics) hasLeaders(topic string) error {
	if err := t.conn.RefreshMetadata(topic); err != nil {
		return err
	}
	partitions, err := t.conn.Partitions(topic)
	if err != nil {
		return err
	}
	for _, partition := range partitions {
		if _, err := t.conn.Leader(topic, partition); err != nil {
			return err
		}
	}
	return nil
}
