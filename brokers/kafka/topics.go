package kafka

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
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
	auto   bool // create what is missing

	mu    sync.Mutex
	known map[string]int32 // partitions
	name  string           // of the cluster, "" before it is known

	listing chan struct{} // a token while all topics are listed
	listed  struct {
		topics map[string]topicID
		at     time.Time // when the list was asked for
	}
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
		return fmt.Errorf("%q is not a name for a Kafka topic: use 1 to 249 of the characters a-z, A-Z, 0-9, . _ and -", name)
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
		// More partitions were added to the source topic. Where it is not allowed, retries share the partitions there
		// are.
		if grown, err := t.admin.UpdatePartitions(ctx, int(s.partitions), s.name); err == nil && grown.Error() == nil {
			have = s.partitions
		}
	}
	t.remember(s.name, have)
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
	have, err = t.count(ctx, s.name)
	if err != nil {
		return 0, fmt.Errorf("topic %s: %w", s.name, t.missing(s, err))
	}
	t.remember(s.name, have)
	return have, nil
}

// including is existing for a topic that is known to have a partition: it may have been given more since it was
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

// forget lets the next use of a topic look whether it is there, and make it if not.
func (t *topics) forget(name string) {
	t.mu.Lock()
	delete(t.known, name)
	t.mu.Unlock()
	t.client.PurgeTopicsFromProducing(name) // which holds on to the topic that was deleted
}

// check asks for the topics that have been used, and forgets those that are gone.
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
	for name, value := range s.config {
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
			return false, nil // made by an operator
		}
		return false, fmt.Errorf("create topic %s (%s): %w: let an operator create it, or allow this user to", s.name, s.purpose, err)
	default:
		return false, fmt.Errorf("create topic %s (%s): %w", s.name, s.purpose, errors.Join(err, context.Cause(ctx)))
	}
}

// described is what the cluster says about a topic.
type described struct {
	id         topicID
	partitions int32
	err        error
}

// describe asks the cluster about topics by their names.
func (t *topics) describe(ctx context.Context, names []string) (map[string]described, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{} // none, and not all
	for _, name := range names {
		topic := kmsg.NewMetadataRequestTopic()
		topic.Topic = &name
		req.Topics = append(req.Topics, topic)
	}
	answer, err := req.RequestWith(ctx, t.client)
	if err != nil {
		return nil, err
	}
	if answer.ClusterID != nil {
		t.mu.Lock()
		t.name = *answer.ClusterID
		t.mu.Unlock()
	}
	found := map[string]described{}
	for _, topic := range answer.Topics {
		if topic.Topic != nil {
			found[*topic.Topic] = described{topic.TopicID, int32(len(topic.Partitions)), kerr.ErrorForCode(topic.ErrorCode)} //nolint:gosec // G115: Kafka counts partitions in 32 bits
		}
	}
	return found, nil
}

// settings returns the settings that were made for topics, and not left to the brokers' defaults.
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

// count asks for the number of partitions of a topic.
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

// appearTimeout bounds how long a broker may take to hear of a topic that exists.
const appearTimeout = 30 * time.Second

// appears is count for a topic that exists. The controller answers as soon as it has made a topic, and the other
// brokers, even the broker in the same process, hear of it later, on a busy cluster by a second or more; and then its
// partitions may have no leaders yet.
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
	return fmt.Errorf("%w: %s is missing: create it, or open the broker with auto-create=true: %w", brokers.ErrUnroutable, s.purpose, err)
}

// topicID tells topics of one name from each other, of which one was made when the other had been deleted. Clusters
// older than Kafka 2.8 have none.
type topicID [16]byte

// tag is short for the id, "" for none.
func (id topicID) tag() string {
	if id == (topicID{}) {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(id[:9])
}

// incarnation tells the topic from others of its name, on other clusters too; "" when that is not known.
func (id topicID) incarnation(cluster string) string {
	if id == (topicID{}) {
		return ""
	}
	sum := sha256.Sum256(append(id[:], cluster...))
	return base64.RawURLEncoding.EncodeToString(sum[:9])
}

// another reports whether both are known and differ.
func (id topicID) another(than topicID) bool {
	return id != topicID{} && than != topicID{} && id != than
}

// leadership is which broker leads a partition, since which election, and of which topic.
type leadership struct {
	id, epoch int32
	topic     topicID
}

// How old what a client knows of a partition may be: for requests that tell when it is wrong, for reading, where it
// shows that a topic was made again, and after an error.
const (
	anyAge    = time.Minute
	recentAge = 5 * time.Second
	freshAge  = metadataPause
)

// leader returns who leads a partition, from an answer of the cluster that is at most so old.
func (t *topics) leader(ctx context.Context, at place, age time.Duration) (leadership, error) {
	req := kmsg.NewPtrMetadataRequest()
	topic := kmsg.NewMetadataRequestTopic()
	topic.Topic = &at.topic
	req.Topics = append(req.Topics, topic)
	answer, err := t.client.RequestCachedMetadata(ctx, req, age)
	if err != nil {
		return leadership{}, err
	}
	for _, topic := range answer.Topics {
		if err := kerr.ErrorForCode(topic.ErrorCode); err != nil && len(topic.Partitions) == 0 {
			return leadership{}, err
		}
		for _, p := range topic.Partitions {
			if p.Partition != at.partition {
				continue
			}
			if p.Leader < 0 {
				return leadership{}, errors.Join(kerr.LeaderNotAvailable, kerr.ErrorForCode(p.ErrorCode))
			}
			return leadership{p.Leader, p.LeaderEpoch, topic.TopicID}, nil
		}
	}
	return leadership{}, kerr.UnknownTopicOrPartition
}

// What bound and offsets may ask for in place of a time.
const (
	offsetOldest = -2
	offsetNewest = -1
)

// bound returns the offset at which a partition begins or ends.
func (t *topics) bound(ctx context.Context, at place, which int64) (int64, error) {
	found, err := t.offsets(ctx, map[place]int64{at: which})
	if err != nil {
		return 0, err
	}
	offset, ok := found[at]
	if !ok {
		return 0, kerr.UnknownTopicOrPartition
	}
	return offset, nil
}

// offsets returns for each partition its first offset at or behind a time (Unix ms), or what offsetOldest and
// offsetNewest stand for. It leaves out partitions that have no such record, and those of topics that were just
// deleted.
func (t *topics) offsets(ctx context.Context, wanted map[place]int64) (map[place]int64, error) {
	found := map[place]int64{}
	if len(wanted) == 0 {
		return found, nil
	}
	req := kmsg.NewPtrListOffsetsRequest()
	byTopic := map[string]int{}
	for at, when := range wanted {
		i, ok := byTopic[at.topic]
		if !ok {
			i = len(req.Topics)
			byTopic[at.topic] = i
			topic := kmsg.NewListOffsetsRequestTopic()
			topic.Topic = at.topic
			req.Topics = append(req.Topics, topic)
		}
		p := kmsg.NewListOffsetsRequestTopicPartition()
		p.Partition, p.Timestamp = at.partition, when
		req.Topics[i].Partitions = append(req.Topics[i].Partitions, p)
	}
	answer, err := req.RequestWith(ctx, t.client)
	if err != nil {
		return nil, err
	}
	for _, topic := range answer.Topics {
		for _, p := range topic.Partitions {
			switch err := kerr.ErrorForCode(p.ErrorCode); {
			case err != nil && !isGone(err):
				return nil, fmt.Errorf("topic %s, partition %d: %w", topic.Topic, p.Partition, err)
			case err == nil && p.Offset >= 0:
				found[place{topic.Topic, p.Partition}] = p.Offset
			}
		}
	}
	return found, nil
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

// tier is a retry topic.
type tier struct {
	wait time.Duration
	id   topicID // zero when it is not known yet
}

// list finds the topics of a kind that exist. Those of an older configuration, or of another program, are among them:
// their records wait for us as well.
func (t *topics) list(ctx context.Context, age time.Duration, kinds ...named) (map[string]tier, error) {
	all, err := t.all(ctx, age)
	if err != nil {
		return nil, err
	}
	found := map[string]tier{}
	for name, id := range all {
		for _, kind := range kinds {
			if d, ok := kind.delay(name); ok {
				found[name] = tier{d, id}
			}
		}
	}
	return found, nil
}

// all returns all topics, from a list that is at most so old. Subscriptions that ask at the same time share one,
// because a cluster may have thousands. No client keeps it: the request does not go through the client's own cache.
func (t *topics) all(ctx context.Context, age time.Duration) (map[string]topicID, error) {
	oldest := time.Now().Add(-age)
	select {
	case t.listing <- struct{}{}:
		defer func() { <-t.listing }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if t.listed.at.After(oldest) {
		return t.listed.topics, nil
	}
	asked := time.Now()
	var faults []error
	for _, broker := range append(t.client.DiscoveredBrokers(), t.client.SeedBrokers()...) {
		answer, err := broker.Request(ctx, kmsg.NewPtrMetadataRequest())
		if err != nil {
			faults = append(faults, err)
			continue
		}
		found := map[string]topicID{}
		for _, topic := range answer.(*kmsg.MetadataResponse).Topics {
			if topic.Topic != nil && !topic.IsInternal {
				found[strings.Clone(*topic.Topic)] = topic.TopicID
			}
		}
		t.listed.topics, t.listed.at = found, asked
		return found, nil
	}
	return nil, errors.Join(append(faults, context.Cause(ctx))...)
}

func sortedTopics(byName map[string]tier) []string {
	return slices.Sorted(maps.Keys(byName))
}
