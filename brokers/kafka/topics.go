package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/internal/wait"
)

// topics creates topics, and knows which exist, who leads their partitions, and where those begin and end. It is safe
// for concurrent use.
type topics struct {
	client *kgo.Client
	admin  *kadm.Client
	auto   bool // create missing topics

	mu    sync.Mutex
	known map[string]int32 // partitions at the last use, 0 if they have to be counted again
	name  string           // of the cluster, "" before it is known

	listing chan struct{} // a token while all topics are listed
	listed  struct {
		topics map[string]topicInfo
		at     time.Time // when the list was requested
	}
}

// spec describes the required properties of a topic.
type spec struct {
	name        string
	partitions  int32                    // -1: the broker's default
	replication int16                    // -1: the broker's default
	config      func() map[string]string // called when the topic is created, not for each record
	purpose     string                   // for error messages
}

var legalTopic = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,249}$`)

func checkTopic(name string) error {
	if !legalTopic.MatchString(name) || name == "." || name == ".." {
		return fmt.Errorf("%q is not a name for a Kafka topic: use 1 to 249 of the characters a-z, A-Z, 0-9, . _ and -", name)
	}
	return nil
}

// lookup returns the number of partitions that a topic had at its last use. An error means that there is no point in
// asking the cluster about a topic that has not been used.
func (t *topics) lookup(ctx context.Context, name string) (partitions int32, used bool, err error) {
	t.mu.Lock()
	partitions = t.known[name]
	t.mu.Unlock()
	if partitions > 0 {
		return partitions, true, nil
	}
	if err := ctx.Err(); err != nil {
		return 0, false, err
	}
	return 0, false, checkTopic(name)
}

// ensure returns the number of partitions of a topic after creating it and adding partitions, as far as needed and
// allowed. It reports whether the topic is new.
func (t *topics) ensure(ctx context.Context, s spec) (partitions int32, created bool, err error) {
	have, ok, err := t.lookup(ctx, s.name)
	if err != nil || ok && have >= s.partitions {
		return have, false, err
	}
	again := temporary
	if t.auto {
		if created, err = t.create(ctx, s); err != nil {
			return 0, false, err
		}
		again = appearing
	}
	if have, err = t.find(ctx, s, again); err != nil {
		return 0, false, err
	}
	if have < s.partitions && t.auto {
		// Partitions were added to the source topic. If adding them here is not allowed, retries share the existing ones.
		if patiently(ctx, temporary, func(ctx context.Context) error {
			grown, err := t.admin.UpdatePartitions(ctx, int(s.partitions), s.name)
			return cmp.Or(err, grown.Error())
		}) == nil {
			have = s.partitions
			t.remember(s.name, have)
		}
	}
	return have, created, nil
}

// existing is ensure for a topic that must not be created, such as the source of a returning message.
func (t *topics) existing(ctx context.Context, s spec) (partitions int32, err error) {
	have, ok, err := t.lookup(ctx, s.name)
	if err != nil || ok {
		return have, err
	}
	return t.find(ctx, s, temporary)
}

// find counts the partitions of a topic for later uses, as long as again holds for the cluster's errors.
func (t *topics) find(ctx context.Context, s spec, again func(error) bool) (partitions int32, err error) {
	if partitions, err = t.count(ctx, s.name, again); isGone(err) {
		err = fmt.Errorf("%w: %s is missing: create it, as services with auto-create=true do: %w", brokers.ErrUnroutable,
			s.purpose, err)
	}
	if err != nil {
		return 0, fmt.Errorf("topic %s: %w", s.name, err)
	}
	t.remember(s.name, partitions)
	return partitions, nil
}

// including is existing for a topic that is known to have a partition: partitions may have been added since they were
// counted.
func (t *topics) including(ctx context.Context, s spec, partition int32) (partitions int32, err error) {
	t.mu.Lock()
	if have, ok := t.known[s.name]; ok && have <= partition {
		t.known[s.name] = 0
	}
	t.mu.Unlock()
	return t.existing(ctx, s)
}

func (t *topics) remember(name string, partitions int32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.known[name] = partitions
}

// forget makes the next use of a topic check whether it exists, and create it otherwise. If that is not allowed, check
// keeps naming it as long as it is missing.
func (t *topics) forget(name string) {
	t.mu.Lock()
	if _, used := t.known[name]; used && !t.auto {
		t.known[name] = 0
	} else {
		delete(t.known, name)
	}
	t.mu.Unlock()
	t.client.PurgeTopicsFromProducing(name) // it still refers to the deleted topic
}

// check looks up the topics that have been used, and forgets those that are gone.
func (t *topics) check(ctx context.Context) error {
	t.mu.Lock()
	names := slices.Sorted(maps.Keys(t.known))
	t.mu.Unlock()
	found, err := t.describe(ctx, names)
	if err != nil {
		return err
	}
	var gone []error
	for _, name := range names {
		if topic, ok := found[name]; !ok || isGone(topic.err) {
			t.forget(name)
			gone = append(gone, fmt.Errorf("topic %s was deleted: %w", name, kerr.UnknownTopicOrPartition))
		}
	}
	return errors.Join(gone...)
}

func (t *topics) cluster() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.name
}

func isGone(err error) bool {
	return errors.Is(err, kerr.UnknownTopicOrPartition) || errors.Is(err, kerr.UnknownTopicID)
}

// temporary reports whether the cluster will give another answer soon: it starts, elects, or has fenced nodes that were
// starved. As long as all nodes are fenced, it has too few for any number of replicas.
func temporary(err error) bool {
	if isGone(err) || errors.Is(err, errTooFewNodes) {
		return false
	}
	return kerr.IsRetriable(err) || errors.Is(err, kerr.InvalidReplicationFactor)
}

// notReady marks an error that is no answer: the connection was lost, or no node listens because the only one restarts.
func notReady(err error) error {
	if _, network := errors.AsType[net.Error](err); network || kgo.IsRetryableBrokerErr(err) || errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: %w", driver.ErrTemporary, err)
	}
	return err
}

// errTooFewNodes means that no topic can be created with the configured number of replicas.
var errTooFewNodes = errors.New("lower replication, or add nodes")

// patience bounds how long an operation waits for a cluster that is not ready, or a broker that does not know a new
// topic yet.
const patience = 30 * time.Second

var looking = wait.Backoff{First: 25 * time.Millisecond, Longest: 200 * time.Millisecond}

// patiently repeats ask as long as again holds for its error. When ctx ends, it returns the cluster's last answer.
func patiently(ctx context.Context, again func(error) bool, ask func(context.Context) error) (last error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for n := 1; ; n++ {
		err := ask(ctx)
		if err == nil || ctx.Err() == nil && !again(err) {
			return err
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		if !sleep(ctx, looking.After(n)) {
			return last
		}
	}
}

// create creates a topic. It reports false if the topic was there.
func (t *topics) create(ctx context.Context, s spec) (created bool, err error) {
	tries := 0
	err = patiently(ctx, temporary, func(ctx context.Context) error {
		tries++
		return t.createOnce(ctx, s)
	})
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, kerr.TopicAlreadyExists):
		return tries > 1, nil // a request that timed out may have created it
	case errors.Is(err, kerr.TopicAuthorizationFailed), errors.Is(err, kerr.ClusterAuthorizationFailed):
		if _, there := t.count(ctx, s.name, temporary); there == nil {
			return false, nil // created by an operator
		}
		return false, fmt.Errorf("create topic %s (%s): %w: let an operator create it, or allow this user to", s.name,
			s.purpose, err)
	default:
		return false, fmt.Errorf("create topic %s (%s): %w", s.name, s.purpose, errors.Join(err, context.Cause(ctx)))
	}
}

func (t *topics) createOnce(ctx context.Context, s spec) error {
	config := map[string]*string{}
	for name, value := range s.config() {
		config[name] = &value
	}
	answer, err := t.admin.CreateTopic(ctx, s.partitions, s.replication, config, s.name)
	if err != nil && answer.ErrMessage != "" {
		err = fmt.Errorf("%w (%s)", err, answer.ErrMessage)
	}
	if errors.Is(err, kerr.InvalidReplicationFactor) {
		if nodes := t.nodes(ctx); nodes > 0 && nodes < int(s.replication) {
			err = fmt.Errorf("replication=%d needs as many nodes, and the cluster has %d: %w: %w", s.replication, nodes,
				errTooFewNodes, err)
		}
	}
	return err
}

// nodes returns how many nodes the cluster has, with those that are fenced if it tells; 0 if that is unknown.
func (t *topics) nodes(ctx context.Context) int {
	req := kmsg.NewPtrDescribeClusterRequest()
	req.IncludeFencedBrokers = true
	answer, err := req.RequestWith(ctx, t.client)
	if err != nil {
		return 0 // before Kafka 2.8, among others
	}
	return len(answer.Brokers)
}

// settings returns explicit settings of topics, excluding the brokers' defaults.
func (t *topics) settings(ctx context.Context, of map[string]topicInfo) (map[string]map[string]string, error) {
	var names []string
	for name, topic := range of {
		if topic.err == nil {
			names = append(names, name)
		}
	}
	answer, err := t.admin.DescribeTopicConfigs(ctx, names...)
	if err != nil || len(names) == 0 {
		return nil, err
	}
	found := map[string]map[string]string{}
	for _, topic := range answer {
		if topic.Err != nil {
			return nil, fmt.Errorf("topic %s: %w", topic.Name, topic.Err)
		}
		found[topic.Name] = map[string]string{}
		for _, setting := range topic.Configs {
			if setting.Source == kmsg.ConfigSourceDynamicTopicConfig && setting.Value != nil {
				found[topic.Name][setting.Key] = *setting.Value
			}
		}
	}
	return found, nil
}

// count looks up the number of partitions of a topic, as long as again holds for the cluster's errors.
func (t *topics) count(ctx context.Context, name string, again func(error) bool) (partitions int32, err error) {
	err = patiently(ctx, again, func(ctx context.Context) error {
		found, err := t.describe(ctx, []string{name})
		if err != nil {
			return err
		}
		topic, ok := found[name]
		if !ok {
			return kerr.UnknownTopicOrPartition
		}
		partitions = topic.partitions
		return topic.err
	})
	return partitions, err
}

// appearing is temporary for a topic that exists. The controller answers as soon as it has created a topic, but other
// brokers, even the broker in the same process, learn of it later, on a busy cluster by a second or more.
func appearing(err error) bool { return isGone(err) || temporary(err) }
