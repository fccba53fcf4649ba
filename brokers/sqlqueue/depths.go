package sqlqueue

import (
	"context"
	"fmt"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/internal/sqldb"
)

const (
	// maxDepth bounds the rows that one count reads, in all queues together: some tenths of a second.
	maxDepth = 100_000
	// maxDepthQueues bounds the queues that are counted.
	maxDepthQueues = 1000
)

// depths counts waiting rows, up to limit.
func (s *store) depths(ctx context.Context, limit int64) ([]brokers.Depth, error) {
	queues, err := s.queues(ctx, fmt.Sprintf(" ORDER BY id LIMIT %d", maxDepthQueues)) // the oldest
	if err != nil {
		return nil, err
	}
	var found []brokers.Depth
	for _, q := range queues {
		if limit <= 0 {
			break
		}
		waiting, retries, err := s.depth(ctx, q.id, limit)
		if err != nil {
			return nil, err
		}
		limit -= waiting
		ready, err := s.ready(ctx, q.id, max(limit, 0))
		if err != nil {
			return nil, err
		}
		limit -= ready
		found = append(found,
			brokers.Depth{Topic: q.topic, Group: q.group, Kind: brokers.DepthDelayed, Messages: waiting - retries},
			brokers.Depth{Topic: q.topic, Group: q.group, Kind: brokers.DepthRetry, Messages: retries},
			brokers.Depth{Topic: q.topic, Group: q.group, Kind: brokers.DepthReady, Messages: ready})
	}
	return found, nil
}

// depth counts the waiting rows of a queue. A lease ends in the future too, but is not a wait. Rows that have only been
// published have no lease, not even 0.
func (s *store) depth(ctx context.Context, queue, limit int64) (waiting, retries int64, err error) {
	err = s.db.QueryRowContext(ctx, s.name.Bind(fmt.Sprintf(`SELECT COUNT(*), COUNT(lease) FROM (
		SELECT lease FROM redrive_queue_messages
		WHERE queue_id = ? AND visible_at > %s AND (lease IS NULL OR lease = 0) LIMIT %d) AS waiting`, s.name.Now(),
		limit)), queue).
		Scan(&waiting, &retries)
	return waiting, retries, err
}

// ready counts the rows of a queue that are due and not leased.
func (s *store) ready(ctx context.Context, queue, limit int64) (ready int64, err error) {
	err = s.db.QueryRowContext(ctx, fmt.Sprintf("SELECT COUNT(*) FROM (SELECT id FROM redrive_queue_messages"+
		" WHERE queue_id = %d AND visible_at <= %s AND %s LIMIT %d) AS ready", queue, s.name.Now(), s.free(queue),
		limit)).Scan(&ready)
	return ready, err
}

// consumerQueue is the queue of a group; with an empty group it belongs to no consumer yet.
type consumerQueue struct {
	id           int64
	topic, group string
}

// queues lists the queues that which selects.
func (s *store) queues(ctx context.Context, which string, args ...any) ([]consumerQueue, error) {
	query := "SELECT id, topic, consumer_group FROM redrive_queues" + which
	return sqldb.All[consumerQueue](s.db.QueryContext(ctx, query, args...))(func(row sqldb.Row, q *consumerQueue) error {
		var topic, group []byte
		err := row.Scan(&q.id, &topic, &group)
		q.topic, q.group = string(topic), string(group)
		return err
	})
}
