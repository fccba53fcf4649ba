package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// point is a partition of the main topic, of a retry topic or of the parking topic, with its settled records.
type point struct {
	topicPartition
	*tracker
	id topicID
}

// position is what the coordinator stores for a partition.
type position struct {
	offset int64  // of the first record that is not settled; negative if there is none yet
	epoch  int32  // of the leader that stored the last record read; negative if unknown
	note   string // records settled after it
	fresh  bool   // not stored yet
	topic  string // tag of the topic to which the offset belongs, as stored
}

// tagMark separates the note from the topic's tag. It occurs in neither, and without it the metadata is not ours.
const tagMark = "@"

// stored parses the stored position of a partition.
func stored(offset int64, epoch int32, note *string) position {
	at := position{offset: offset, epoch: epoch}
	if note != nil && strings.Contains(*note, tagMark) {
		at.note, at.topic, _ = strings.Cut(*note, tagMark)
	}
	return at
}

// in returns the position within a topic: none, if it was stored for another topic of that name. Metadata that another
// client has stored with it means nothing.
func (at position) in(id topicID) position {
	waiting, _ := unpackNote(at)
	switch tag := id.tag(); {
	case tag == "", at.topic == tag:
	case len(at.topic) == len(tag) && (at.note == "" || waiting != nil):
		return position{offset: -1}
	default:
		at.note = ""
	}
	at.topic = ""
	return at
}

// metadata is what is stored with a position. The caller holds mu.
func (c *committer) metadata(at position, id topicID) *string {
	note := at.note
	if c.brief {
		note = ""
	}
	note += tagMark + id.tag()
	return &note
}

// errFenced means that the group has given our partitions to another member. Records settled since the last commit are
// redelivered there.
var errFenced = errors.New("the group has dropped this member")

// committer stores positions for a group, with notes, which a client's own commits do not support. It is safe for
// concurrent use.
//
// Only one request is in flight at a time, with current positions: an older request that arrived after the last commit
// of a partition would set its next owner back.
type committer struct {
	topics *topics
	group  string
	mu     sync.Mutex
	stored map[topicPartition]sentPosition // since the last call of toClean
	brief  bool                            // notes are too large for the cluster
}

// toClean returns the positions stored since its last call.
func (c *committer) toClean() map[topicPartition]sentPosition {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.stored
	c.stored = nil
	return all
}

// member identifies the committing member to the coordinator, in a generation of its group.
type member func() (id string, generation int32)

// commit stores the positions of points, read again for each attempt, and retries until ctx ends. With all it also
// stores positions that have not moved. The positions of retry topics are stored although no member subscribes to them:
// the owner of a partition of the main topic owns the same partition of its retry topics. If only topics that are gone
// are left, it fails at once.
func (c *committer) commit(ctx context.Context, as member, points func() []point, all bool) error {
	for n := 1; ; n++ {
		err := c.once(ctx, as, points, all)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, kerr.UnknownMemberID), errors.Is(err, kerr.FencedInstanceID),
			errors.Is(err, kerr.IllegalGeneration) && n >= goneAfter: // the member has not learned of another generation
			return fmt.Errorf("%w: %w", errFenced, err)
		case isGone(err):
			return fmt.Errorf("commit of group %s: %w", c.group, err)
		}
		// For example a cooperative rebalance, after which the member has the next generation.
		if !sleep(ctx, asking.After(n)) {
			return fmt.Errorf("commit of group %s: %w", c.group, err)
		}
	}
}

// goneAfter is how often the coordinator has to report that a topic is gone, over most of a second: brokers learn of a
// topic at different times.
const goneAfter = 6

// last is commit for points without further settlements. It does not wait for deleted topics.
func (c *committer) last(ctx context.Context, as member, points []point) error {
	for n := 1; ; n++ {
		err := c.commit(ctx, as, func() []point { return points }, false)
		switch {
		case !isGone(err):
			return err
		case n >= goneAfter && c.areGone(ctx, points):
			return nil
		case !sleep(ctx, asking.After(n)):
			return err
		}
	}
}

// areGone reports whether none of the topics with unstored positions exists any more.
func (c *committer) areGone(ctx context.Context, points []point) bool {
	var names []string
	for _, p := range points {
		if _, moved := p.position(); moved {
			names = append(names, p.topic)
		}
	}
	found, err := c.topics.describe(ctx, names)
	return err == nil && !slices.ContainsFunc(names, func(name string) bool { return !isGone(found[name].err) })
}

// sentPosition is the position of a tracker that a request is to store.
type sentPosition struct {
	*tracker
	position
	id topicID
}

func (c *committer) once(ctx context.Context, as member, current func() []point, all bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	points := current() // under the lock: those of a partition end with its last commit
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group = c.group
	req.MemberID, req.Generation = as()
	sent, byTopic := map[topicPartition]sentPosition{}, map[string][]kmsg.OffsetCommitRequestTopicPartition{}
	for _, p := range points {
		at, moved := p.position()
		if !moved && !all || at.offset < 0 {
			continue
		}
		sent[p.topicPartition] = sentPosition{p.tracker, at, p.id}
		one := kmsg.NewOffsetCommitRequestTopicPartition()
		one.Partition, one.Offset, one.LeaderEpoch, one.Metadata = p.partition, at.offset, at.epoch, c.metadata(at, p.id)
		byTopic[p.topic] = append(byTopic[p.topic], one)
	}
	for name, partitions := range byTopic {
		topic := kmsg.NewOffsetCommitRequestTopic()
		topic.Topic, topic.Partitions = name, partitions
		req.Topics = append(req.Topics, topic)
	}
	if len(sent) == 0 {
		return nil
	}
	answer, err := req.RequestWith(ctx, c.topics.client)
	if err != nil {
		return err
	}
	for _, topic := range answer.Topics {
		for _, p := range topic.Partitions {
			at := topicPartition{topic.Topic, p.Partition}
			commit, ok := sent[at]
			switch fault := kerr.ErrorForCode(p.ErrorCode); {
			case !ok:
			case fault == nil:
				commit.committedAt(commit.position)
				if c.stored == nil {
					c.stored = map[topicPartition]sentPosition{}
				}
				c.stored[at] = commit
			case err == nil || !isGone(fault):
				err = fault
			}
			c.brief = c.brief || p.ErrorCode == kerr.OffsetMetadataTooLarge.Code
			delete(sent, at)
		}
	}
	if len(sent) > 0 {
		return errors.New("the coordinator's answer is incomplete")
	}
	return err
}

// committed returns the group's positions on partitions of topics; a negative offset means none yet.
func (t *topics) committed(ctx context.Context, group string, wanted []topicPartition) (
	found map[topicPartition]position, err error,
) {
	if len(wanted) == 0 {
		return nil, nil
	}
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Group = group
	byTopic := map[string][]int32{}
	for _, at := range wanted {
		byTopic[at.topic] = append(byTopic[at.topic], at.partition)
	}
	for name, partitions := range byTopic {
		topic := kmsg.NewOffsetFetchRequestTopic()
		topic.Topic, topic.Partitions = name, partitions
		req.Topics = append(req.Topics, topic)
	}
	if err = patiently(ctx, temporary, func(ctx context.Context) error {
		answer, err := req.RequestWith(ctx, t.client)
		if err == nil {
			err = kerr.ErrorForCode(answer.ErrorCode)
		}
		if err != nil {
			return err
		}
		found = map[topicPartition]position{}
		for _, topic := range answer.Topics {
			for _, p := range topic.Partitions {
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
					return fmt.Errorf("topic %s, partition %d: %w", topic.Topic, p.Partition, err)
				}
				found[topicPartition{topic.Topic, p.Partition}] = stored(p.Offset, p.LeaderEpoch, p.Metadata)
			}
		}
		if len(found) < len(wanted) {
			return errors.New("the coordinator's answer is incomplete")
		}
		return nil
	}); err != nil {
		return nil, fmt.Errorf("committed offsets of group %s: %w", group, err)
	}
	return found, nil
}

const (
	// cleanEvery is how often finished records are removed from retry topics, and cleanTimeout bounds it.
	cleanEvery   = time.Minute
	cleanTimeout = 5 * time.Second
)

// clean removes the records of retry and parking topics that the group has finished. Kafka forgets the positions of a
// group that is inactive for long (offsets.retention.minutes); without positions, any records left in the topics would
// be handled again. Topics that others may read too are left alone, such as those for first deliveries.
func (s *subscription) clean(ctx context.Context) {
	committed := s.commits.toClean()
	if len(committed) == 0 || s.mayNotClean.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, cleanTimeout)
	defer cancel()
	switch err := s.deleteRecords(ctx, committed); {
	case errors.Is(err, kerr.TopicAuthorizationFailed), errors.Is(err, kerr.PolicyViolation):
		s.mayNotClean.Store(true)
		s.log.Info("this user may not delete records, so finished retries stay until their retention ends", "err", err)
	case err != nil:
		s.log.Debug("finished retries were not removed; trying again", "err", err)
	}
}

// deleteRecords deletes the records before positions, in topics that are for our retries only. In a recreated topic
// other records are there: its reader may hold one of the old topic, and not know yet.
func (s *subscription) deleteRecords(ctx context.Context, committed map[topicPartition]sentPosition) error {
	all, err := s.b.topics.all(ctx, lookEvery)
	if err != nil {
		return err
	}
	ours := map[string]bool{} // by topic
	for at := range committed {
		if _, known := ours[at.topic]; !known {
			ours[at.topic] = s.isOurs(ctx, at.topic, all)
		}
	}
	now, err := s.b.topics.describe(ctx, slices.Collect(maps.Keys(ours)))
	if err != nil {
		return err
	}
	finished := kadm.Offsets{}
	for at, done := range committed {
		if topic := now[at.topic]; ours[at.topic] && done.offset > 0 && topic.err == nil && !topic.id.differs(done.id) {
			finished.AddOffset(at.topic, at.partition, done.offset, -1)
		}
	}
	if len(finished) == 0 {
		return nil
	}
	answer, err := s.b.topics.admin.DeleteRecords(ctx, finished)
	return cmp.Or(err, answer.Error())
}
