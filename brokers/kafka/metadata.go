package kafka

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// topicID distinguishes topics of the same name, where one was created after the other was deleted. Clusters older than
// Kafka 2.8 have none.
type topicID [16]byte

// tag is an abbreviation of the id, "" for none.
func (id topicID) tag() string {
	if id == (topicID{}) {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(id[:9])
}

// incarnation distinguishes the topic from others of its name, including on other clusters; "" if unknown.
func (id topicID) incarnation(cluster string) string {
	if id == (topicID{}) {
		return ""
	}
	sum := sha256.Sum256(append(id[:], cluster...))
	return base64.RawURLEncoding.EncodeToString(sum[:9])
}

// differs reports whether both ids are known and differ.
func (id topicID) differs(from topicID) bool {
	return id != topicID{} && from != topicID{} && id != from
}

// leadership is the broker that leads a partition, since which election, and the id of the topic.
type leadership struct {
	id, epoch int32
	topic     topicID
}

// Maximum ages of a client's knowledge of a partition: for requests that fail if it is wrong, for reading, where it
// reveals a recreated topic, and after an error.
const (
	anyAge    = time.Minute
	recentAge = 5 * time.Second
	freshAge  = metadataPause
)

// leader returns the leader of a partition, from the cluster's answer of at most that age.
func (t *topics) leader(ctx context.Context, at topicPartition, age time.Duration) (leadership, error) {
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

// Special values for the time in bound and offsets.
const (
	offsetOldest = -2
	offsetNewest = -1
)

// bound returns the offset at which a partition begins or ends.
func (t *topics) bound(ctx context.Context, at topicPartition, which int64) (int64, error) {
	found, err := t.offsets(ctx, map[topicPartition]int64{at: which})
	offset, ok := found[at]
	if err == nil && !ok {
		err = kerr.UnknownTopicOrPartition
	}
	return offset, err
}

// offsets returns for each partition its first offset at or after a time (Unix ms), or the one meant by offsetOldest
// and offsetNewest. It leaves out partitions without such a record, and those of topics that were just deleted.
func (t *topics) offsets(ctx context.Context, wanted map[topicPartition]int64) (map[topicPartition]int64, error) {
	found := map[topicPartition]int64{}
	if len(wanted) == 0 {
		return found, nil
	}
	req := kmsg.NewPtrListOffsetsRequest()
	byTopic := map[string][]kmsg.ListOffsetsRequestTopicPartition{}
	for at, when := range wanted {
		p := kmsg.NewListOffsetsRequestTopicPartition()
		p.Partition, p.Timestamp = at.partition, when
		byTopic[at.topic] = append(byTopic[at.topic], p)
	}
	for name, partitions := range byTopic {
		topic := kmsg.NewListOffsetsRequestTopic()
		topic.Topic, topic.Partitions = name, partitions
		req.Topics = append(req.Topics, topic)
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
				found[topicPartition{topic.Topic, p.Partition}] = p.Offset
			}
		}
	}
	return found, nil
}

// tierPattern matches names that differ only in a delay, and extracts the delay, or one name exactly, with none.
type tierPattern struct{ before, after, exact string }

// newTierPattern analyses the names that a template generates.
func newTierPattern(name func(time.Duration) string) (tierPattern, error) {
	const mark = 918273645 * time.Millisecond
	before, after, found := strings.Cut(name(mark), strconv.FormatInt(mark.Milliseconds(), 10))
	if !found {
		return tierPattern{}, errors.New("the naming templates retry and delayed need {delay}: " +
			"Kafka keeps one topic per delay")
	}
	return tierPattern{before: before, after: after}, nil
}

func (n tierPattern) delay(topic string) (time.Duration, bool) {
	if n.exact != "" {
		return 0, topic == n.exact
	}
	text, begins := strings.CutPrefix(topic, n.before)
	text, ends := strings.CutSuffix(text, n.after)
	if !begins || !ends {
		return 0, false
	}
	ms, err := strconv.ParseUint(text, 10, 40)
	return time.Duration(ms) * time.Millisecond, err == nil && ms > 0
}

// tier is a retry topic.
type tier struct {
	wait       time.Duration
	id         topicID // zero if not known yet
	partitions int32   // likewise
}

// list finds the existing topics whose names match a pattern. It includes those of an older configuration or of another
// program, because we have to read their records as well.
func (t *topics) list(ctx context.Context, age time.Duration, patterns ...tierPattern) (map[string]tier, error) {
	all, err := t.all(ctx, age)
	if err != nil {
		return nil, err
	}
	found := map[string]tier{}
	for name, topic := range all {
		for _, p := range patterns {
			if d, ok := p.delay(name); ok {
				found[name] = tier{d, topic.id, topic.partitions}
			}
		}
	}
	return found, nil
}

// all returns all topics, from a list of at most that age. Concurrent subscriptions share one, because a cluster may
// have thousands. It is not cached by any client: the request bypasses the client's cache.
func (t *topics) all(ctx context.Context, age time.Duration) (map[string]topicInfo, error) {
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
		found := map[string]topicInfo{}
		for _, topic := range answer.(*kmsg.MetadataResponse).Topics {
			if topic.Topic != nil && !topic.IsInternal {
				found[strings.Clone(*topic.Topic)] = describe(&topic)
			}
		}
		t.listed.topics, t.listed.at = found, asked
		return found, nil
	}
	return nil, errors.Join(append(faults, context.Cause(ctx))...)
}

// topicInfo is the cluster's description of a topic.
type topicInfo struct {
	id         topicID
	partitions int32
	err        error
}

func describe(topic *kmsg.MetadataResponseTopic) topicInfo {
	partitions := int32(len(topic.Partitions)) //nolint:gosec // G115: Kafka counts them in 32 bits
	return topicInfo{topic.TopicID, partitions, kerr.ErrorForCode(topic.ErrorCode)}
}

// describe asks the cluster about topics by name.
func (t *topics) describe(ctx context.Context, names []string) (map[string]topicInfo, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{} // none, rather than all
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
	found := map[string]topicInfo{}
	for _, topic := range answer.Topics {
		if topic.Topic != nil {
			found[*topic.Topic] = describe(&topic)
		}
	}
	return found, nil
}
