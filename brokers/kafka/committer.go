package kafka

import (
	"context"
	"errors"
	"fmt"
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

// commit stores the positions of points for the group, as the member that sess is. The retry topics' positions are
// stored for the same group although no member is subscribed to them: whoever owns a partition of the main topic owns
// the same partition of its retry topics.
func commit(ctx context.Context, client sarama.Client, group string, sess sarama.ConsumerGroupSession, points []point, all bool) error {
	type target struct {
		point
		at position
	}
	var targets []target
	for _, p := range points {
		at, moved := p.position()
		if moved || all && at.offset >= 0 {
			targets = append(targets, target{p, at})
		}
	}
	for attempt := 0; len(targets) > 0; attempt++ {
		req := sarama.NewOffsetCommitRequest(client.Config(), group)
		req.ConsumerID = sess.MemberID()
		req.ConsumerGroupGeneration = sess.GenerationID()
		for _, t := range targets {
			req.AddBlock(t.topic, t.partition, t.at.offset, 0, t.at.note)
		}
		answer, err := offsetCommit(client, group, req)
		if err == nil {
			left := targets[:0]
			for _, t := range targets {
				code, ok := answer.Errors[t.topic][t.partition]
				switch {
				case ok && code == sarama.ErrNoError:
					t.committedAt(t.at)
				case ok:
					err = code
					left = append(left, t)
				default:
					err = sarama.ErrIncompleteResponse
					left = append(left, t)
				}
			}
			targets = left
		}
		switch {
		case len(targets) == 0:
			return nil
		case errors.Is(err, sarama.ErrUnknownMemberId), errors.Is(err, sarama.ErrFencedInstancedId):
			return fmt.Errorf("%w: %w", errFenced, err)
		case errors.Is(err, sarama.ErrRebalanceInProgress), errors.Is(err, sarama.ErrIllegalGeneration):
			// A cooperative rebalance is under way; sess gets the new generation when it has joined.
		default:
			_ = client.RefreshCoordinator(group)
		}
		pause := time.NewTimer(min(50*time.Millisecond<<min(attempt, 5), time.Second))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return fmt.Errorf("commit of group %s: %w", group, err)
		}
	}
	return nil
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
		pause := time.NewTimer(min(50*time.Millisecond<<min(attempt, 5), time.Second))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return nil, fmt.Errorf("committed offsets of group %s: %w", group, err)
		}
		_ = client.RefreshCoordinator(group)
	}
}
