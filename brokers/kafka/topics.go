package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"github.com/redrive-go/redrive/brokers"
)

// topics creates topics and remembers which exist. It is safe for concurrent use.
type topics struct {
	client sarama.Client
	admin  sarama.ClusterAdmin
	auto   bool // create what is missing

	mu    sync.Mutex
	known map[string]int32 // partitions
}

// spec is how a topic has to be.
type spec struct {
	name        string
	partitions  int32 // -1: the broker's default
	replication int16 // -1: the broker's default
	config      map[string]string
	purpose     string // for people
}

var legalTopic = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,249}$`)

func checkTopic(name string) error {
	if !legalTopic.MatchString(name) || name == "." || name == ".." {
		return fmt.Errorf("%q is no name for a Kafka topic: use 1 to 249 of the characters a-z, A-Z, 0-9, . _ and -", name)
	}
	return nil
}

// ensure returns the number of partitions of a topic after creating it, and adding partitions to it, as far as needed
// and allowed. It reports whether the topic is new.
func (t *topics) ensure(ctx context.Context, s spec) (partitions int32, created bool, err error) {
	t.mu.Lock()
	have, ok := t.known[s.name]
	t.mu.Unlock()
	if ok && have >= s.partitions {
		return have, false, nil
	}
	if err := ctx.Err(); err != nil {
		return 0, false, err
	}
	if err := checkTopic(s.name); err != nil {
		return 0, false, err
	}
	if t.auto {
		created, err = t.create(s)
		if err != nil {
			return 0, false, err
		}
	}
	if t.auto {
		have, err = t.appears(ctx, s.name)
	} else {
		have, err = t.count(s.name)
	}
	if err != nil {
		return 0, false, fmt.Errorf("topic %s: %w", s.name, t.missing(s, err))
	}
	if have < s.partitions && t.auto {
		// More partitions were added to the source topic. Where it is not allowed, retries share the partitions there are.
		if t.admin.CreatePartitions(s.name, s.partitions, nil, false) == nil {
			have = s.partitions
			_ = t.client.RefreshMetadata(s.name)
		}
	}
	t.mu.Lock()
	t.known[s.name] = have
	t.mu.Unlock()
	return have, created, nil
}

// existing is ensure for a topic that must not be made, such as the source of a message that comes back.
func (t *topics) existing(ctx context.Context, s spec) (partitions int32, err error) {
	t.mu.Lock()
	have, ok := t.known[s.name]
	t.mu.Unlock()
	if ok {
		return have, nil
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if err := checkTopic(s.name); err != nil {
		return 0, err
	}
	have, err = t.count(s.name)
	if err != nil {
		return 0, fmt.Errorf("topic %s: %w", s.name, t.missing(s, err))
	}
	t.mu.Lock()
	t.known[s.name] = have
	t.mu.Unlock()
	return have, nil
}

// including is existing for a topic that is known to have a partition: it may have been given more since it was counted.
func (t *topics) including(ctx context.Context, s spec, partition int32) (partitions int32, err error) {
	t.mu.Lock()
	if have, ok := t.known[s.name]; ok && have <= partition {
		delete(t.known, s.name)
	}
	t.mu.Unlock()
	return t.existing(ctx, s)
}

func (t *topics) create(s spec) (created bool, err error) {
	detail := &sarama.TopicDetail{NumPartitions: s.partitions, ReplicationFactor: s.replication, ConfigEntries: map[string]*string{}}
	for name, value := range s.config {
		detail.ConfigEntries[name] = &value
	}
	err = t.admin.CreateTopic(s.name, detail, false)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, sarama.ErrTopicAlreadyExists):
		return false, nil
	case errors.Is(err, sarama.ErrTopicAuthorizationFailed), errors.Is(err, sarama.ErrClusterAuthorizationFailed):
		if _, there := t.count(s.name); there == nil {
			return false, nil // made by somebody who may
		}
		return false, fmt.Errorf("create topic %s (%s): %w: let an operator create it, or allow this user to", s.name, s.purpose, err)
	default:
		return false, fmt.Errorf("create topic %s (%s): %w", s.name, s.purpose, err)
	}
}

// count asks for the number of partitions that have leaders.
func (t *topics) count(name string) (int32, error) {
	if err := t.client.RefreshMetadata(name); err != nil {
		return 0, err
	}
	partitions, err := t.client.Partitions(name)
	return int32(len(partitions)), err //nolint:gosec // G115: Kafka counts partitions in 32 bits
}

// appearTimeout bounds how long a broker may take to hear of a topic that exists.
const appearTimeout = 30 * time.Second

// appears is count for a topic that exists. The controller answers as soon as it has made a topic, and the other brokers,
// even the broker in the same process, hear of it later: on a busy cluster a second or more, which is more than the client's own tries.
func (t *topics) appears(ctx context.Context, name string) (int32, error) {
	ctx, cancel := context.WithTimeout(ctx, appearTimeout)
	defer cancel()
	for {
		partitions, err := t.count(name)
		if !errors.Is(err, sarama.ErrUnknownTopicOrPartition) {
			return partitions, err
		}
		if !sleep(ctx, 100*time.Millisecond) {
			return 0, err
		}
	}
}

func (t *topics) missing(s spec, err error) error {
	if !errors.Is(err, sarama.ErrUnknownTopicOrPartition) {
		return err
	}
	return fmt.Errorf("%w: %s is missing: create it, or open the broker with auto-create=true: %w", brokers.ErrUnroutable, s.purpose, err)
}

// named matches names that differ only in a delay, and reads the delay.
type named struct{ before, after string }

// newNamed takes apart the names that a template makes.
func newNamed(name func(time.Duration) string) (named, error) {
	const mark = 918273645 * time.Millisecond
	before, after, found := strings.Cut(name(mark), strconv.FormatInt(mark.Milliseconds(), 10))
	if !found {
		return named{}, errors.New("the naming templates retry and delayed need {delay}: Kafka keeps one topic per delay")
	}
	return named{before, after}, nil
}

func (n named) delay(topic string) (time.Duration, bool) {
	text, ok := strings.CutPrefix(topic, n.before)
	if !ok {
		return 0, false
	}
	if text, ok = strings.CutSuffix(text, n.after); !ok {
		return 0, false
	}
	ms, err := strconv.ParseUint(text, 10, 40)
	return time.Duration(ms) * time.Millisecond, err == nil && ms > 0
}

// list finds the topics of a kind that exist, with their delays. Those of an older configuration, or of another
// program, are among them: their records wait for us as well.
func (t *topics) list(kinds ...named) (map[string]time.Duration, error) {
	if err := t.client.RefreshMetadata(); err != nil {
		return nil, err
	}
	all, err := t.client.Topics()
	if err != nil {
		return nil, err
	}
	found := map[string]time.Duration{}
	for _, name := range all {
		for _, kind := range kinds {
			if d, ok := kind.delay(name); ok {
				found[name] = d
			}
		}
	}
	return found, nil
}

func sortedTopics(byName map[string]time.Duration) []string {
	return slices.Sorted(maps.Keys(byName))
}
