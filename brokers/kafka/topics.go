package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers"
)

// topics creates topics, and knows which exist, who leads their partitions, and where those begin and end. It is safe
// for concurrent use.
type topics struct {
	client *kgo.Client
	admin  *kadm.Client
	auto   bool // create missing topics

	mu    sync.Mutex
	known map[string]int32 // partitions
	name  string           // of the cluster, "" before it is known

	listing chan struct{} // a token while all topics are listed
	listed  struct {
		topics map[string]described
		at     time.Time // when the list was requested
	}
}

// spec describes the required properties of a topic.
type spec struct {
	name        string
	partitions  int32                    // -1: the broker's default
	replication int16                    // -1: the broker's default
	config      func() map[string]string // called when the topic is created, not for each record; nil means none
	purpose     string                   // for error messages
}

func (s spec) settings() map[string]string {
	if s.config == nil {
		return nil
	}
	return s.config()
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
	partitions, used = t.known[name]
	t.mu.Unlock()
	if used {
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
	if t.auto {
		if created, err = t.create(ctx, s); err != nil {
			return 0, false, err
		}
		have, err = t.appears(ctx, s.name)
	} else {
		have, err = t.count(ctx, s.name)
	}
	if err != nil {
		return 0, false, fmt.Errorf("topic %s: %w", s.name, t.missing(s, err))
	}
	if have < s.partitions && t.auto {
		// Partitions were added to the source topic. If adding them here is not allowed, retries share the existing ones.
		if grown, err := t.admin.UpdatePartitions(ctx, int(s.partitions), s.name); err == nil && grown.Error() == nil {
			have = s.partitions
		}
	}
	t.remember(s.name, have)
	return have, created, nil
}

// existing is ensure for a topic that must not be created, such as the source of a returning message.
func (t *topics) existing(ctx context.Context, s spec) (partitions int32, err error) {
	have, ok, err := t.lookup(ctx, s.name)
	if err != nil || ok {
		return have, err
	}
	have, err = t.count(ctx, s.name)
	if err != nil {
		return 0, fmt.Errorf("topic %s: %w", s.name, t.missing(s, err))
	}
	t.remember(s.name, have)
	return have, nil
}

// including is existing for a topic that is known to have a partition: partitions may have been added since they were
// counted.
func (t *topics) including(ctx context.Context, s spec, partition int32) (partitions int32, err error) {
	t.mu.Lock()
	if have, ok := t.known[s.name]; ok && have <= partition {
		delete(t.known, s.name)
	}
	t.mu.Unlock()
	return t.existing(ctx, s)
}

func (t *topics) remember(name string, partitions int32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.known[name] = partitions
}

// forget makes the next use of a topic check whether it exists, and create it otherwise.
func (t *topics) forget(name string) {
	t.mu.Lock()
	delete(t.known, name)
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

// cluster returns the id of the cluster.
func (t *topics) cluster() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.name
}

func isGone(err error) bool {
	return errors.Is(err, kerr.UnknownTopicOrPartition) || errors.Is(err, kerr.UnknownTopicID)
}

func (t *topics) create(ctx context.Context, s spec) (created bool, err error) {
	config := map[string]*string{}
	for name, value := range s.settings() {
		config[name] = &value
	}
	answer, err := t.admin.CreateTopic(ctx, s.partitions, s.replication, config, s.name)
	if err == nil {
		err = answer.Err
	}
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, kerr.TopicAlreadyExists):
		return false, nil
	case errors.Is(err, kerr.TopicAuthorizationFailed), errors.Is(err, kerr.ClusterAuthorizationFailed):
		if _, there := t.count(ctx, s.name); there == nil {
			return false, nil // created by an operator
		}
		return false, fmt.Errorf("create topic %s (%s): %w: let an operator create it, or allow this user to", s.name,
			s.purpose, err)
	default:
		return false, fmt.Errorf("create topic %s (%s): %w", s.name, s.purpose, errors.Join(err, context.Cause(ctx)))
	}
}

// settings returns explicit settings of topics, excluding the brokers' defaults.
func (t *topics) settings(ctx context.Context, of map[string]described) (map[string]map[string]string, error) {
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

// count looks up the number of partitions of a topic.
func (t *topics) count(ctx context.Context, name string) (int32, error) {
	found, err := t.describe(ctx, []string{name})
	if err != nil {
		return 0, err
	}
	topic, ok := found[name]
	if !ok {
		return 0, kerr.UnknownTopicOrPartition
	}
	return topic.partitions, topic.err
}

// appearTimeout bounds how long a broker may take to learn of an existing topic.
const appearTimeout = 30 * time.Second

// appears is count for a topic that exists. The controller answers as soon as it has created a topic, but other
// brokers, even the broker in the same process, learn of it later, on a busy cluster by a second or more; even then its
// partitions may not have leaders yet.
func (t *topics) appears(ctx context.Context, name string) (int32, error) {
	ctx, cancel := context.WithTimeout(ctx, appearTimeout)
	defer cancel()
	for {
		partitions, err := t.count(ctx, name)
		if !isGone(err) && !errors.Is(err, kerr.LeaderNotAvailable) {
			return partitions, err
		}
		if !sleep(ctx, metadataPause) {
			return 0, err
		}
	}
}

func (t *topics) missing(s spec, err error) error {
	if !isGone(err) {
		return err
	}
	return fmt.Errorf("%w: %s is missing: create it, or open the broker with auto-create=true: %w", brokers.ErrUnroutable,
		s.purpose, err)
}
