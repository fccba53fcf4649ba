package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

// point is a partition of the main topic or of a retry topic, with what is settled of it.
type point struct {
	topic     string
	partition int32
	account
}

// account knows what is settled of a partition.
type account interface {
	position() (at position, moved bool)
	committedAt(at position)
}

// position is what the coordinator stores for a partition.
type position struct {
	offset int64  // of the first record that is not settled; negative when there is none yet
	note   string // what is settled behind it
}

// errFenced says that the group has given our partitions to somebody else. What was settled since the last commit
// comes again there.
var errFenced = errors.New("the group has given this member up")

// committer stores positions for a group. It is safe for concurrent use.
//
// Its client must not be the group's: a broker answers the requests of a connection one after the other, and a commit
// would wait behind the fetch that waits for records, 250 ms on an idle topic. A crash repeats what was handled meanwhile.
//
// Requests go out one at a time, each with the positions of its moment: a request that was made before, and arrives
// after, the last commit of a partition would put its next owner back.
type committer struct {
	client sarama.Client
	group  string
	mu     sync.Mutex
}

// commit stores the positions of points, as the member that sess is, and tries again until ctx ends. With all it stores
// those that have not moved as well. The retry topics' positions are stored although no member is subscribed to them:
// whoever owns a partition of the main topic owns the same partition of its retry topics.
func (c *committer) commit(ctx context.Context, sess sarama.ConsumerGroupSession, points []point, all bool) error {
	for attempt := 0; ; attempt++ {
		err := c.once(sess, points, all)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, sarama.ErrUnknownMemberId), errors.Is(err, sarama.ErrFencedInstancedId):
			return fmt.Errorf("%w: %w", errFenced, err)
		case errors.Is(err, sarama.ErrRebalanceInProgress), errors.Is(err, sarama.ErrIllegalGeneration):
			// A cooperative rebalance is under way; sess gets the new generation when it has joined.
		default:
			_ = c.client.RefreshCoordinator(c.group)
		}
		if !sleep(ctx, min(minPause/2<<min(attempt, 5), time.Second)) {
			return fmt.Errorf("commit of group %s: %w", c.group, err)
		}
	}
}

func (c *committer) once(sess sarama.ConsumerGroupSession, points []point, all bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	req := sarama.NewOffsetCommitRequest(c.client.Config(), c.group)
	req.ConsumerID = sess.MemberID()
	req.ConsumerGroupGeneration = sess.GenerationID()
	sent := map[account]position{}
	for _, p := range points {
		if at, moved := p.position(); moved || all && at.offset >= 0 {
			req.AddBlock(p.topic, p.partition, at.offset, 0, at.note)
			sent[p.account] = at
		}
	}
	if len(sent) == 0 {
		return nil
	}
	answer, err := offsetCommit(c.client, c.group, req)
	if err != nil {
		return err
	}
	for _, p := range points {
		at, ok := sent[p.account]
		if !ok {
			continue
		}
		switch code, ok := answer.Errors[p.topic][p.partition]; {
		case !ok:
			err = sarama.ErrIncompleteResponse
		case code == sarama.ErrNoError:
			p.committedAt(at)
		default:
			err = code
		}
	}
	return err
}

func offsetCommit(client sarama.Client, group string, req *sarama.OffsetCommitRequest) (*sarama.OffsetCommitResponse, error) {
	coordinator, err := client.Coordinator(group)
	if err != nil {
		return nil, err
	}
	answer, err := coordinator.CommitOffset(req)
	if err != nil {
		_ = coordinator.Close() // the connection is broken; the next call opens it again
	}
	return answer, err
}

// committed asks where the group stands on a partition of several topics; negative means nowhere yet.
func committed(ctx context.Context, client sarama.Client, group string, topics []string, partition int32) (map[string]position, error) {
	positions := make(map[string]position, len(topics))
	if len(topics) == 0 {
		return positions, nil
	}
	wanted := map[string][]int32{}
	for _, topic := range topics {
		wanted[topic] = []int32{partition}
	}
	for attempt := 0; ; attempt++ {
		err := func() error {
			coordinator, err := client.Coordinator(group)
			if err != nil {
				return err
			}
			answer, err := coordinator.FetchOffset(sarama.NewOffsetFetchRequest(client.Config().Version, group, wanted))
			if err != nil {
				_ = coordinator.Close()
				return err
			}
			if code := answer.GroupError(); code != sarama.ErrNoError {
				return code
			}
			for _, topic := range topics {
				block := answer.GetBlock(topic, partition)
				switch {
				case block == nil:
					return sarama.ErrIncompleteResponse
				case block.Err != sarama.ErrNoError:
					return block.Err
				}
				positions[topic] = position{offset: block.Offset, note: block.Metadata}
			}
			return nil
		}()
		if err == nil {
			return positions, nil
		}
		if !sleep(ctx, min(minPause/2<<min(attempt, 5), time.Second)) {
			return nil, fmt.Errorf("committed offsets of group %s: %w", group, err)
		}
		_ = client.RefreshCoordinator(group)
	}
}

// standing returns the position that the group's client begins to read a partition of the topic at, with its note.
func (s *subscription) standing(ctx context.Context, claim sarama.ConsumerGroupClaim) (position, error) {
	positions, err := committed(ctx, s.b.own, s.cfg.Group, []string{claim.Topic()}, claim.Partition())
	if err != nil {
		return position{}, err
	}
	at := positions[claim.Topic()]
	if at.offset != claim.InitialOffset() {
		at = position{offset: claim.InitialOffset()} // the committed one is gone from the topic, or there is none
	}
	return at, nil
}
