package kafka

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

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
			partitions := int32(len(topic.Partitions)) //nolint:gosec // G115: Kafka counts them in 32 bits
			found[*topic.Topic] = described{topic.TopicID, partitions, kerr.ErrorForCode(topic.ErrorCode)}
		}
	}
	return found, nil
}
