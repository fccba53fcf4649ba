package sqlqueue

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/internal/sqldb"
)

// store runs the queue's statements. It is safe for concurrent use.
type store struct {
	dialect

	db         *sql.DB
	name       Dialect
	byID       string // the messages' table in a statement on rows by their ids, which must not read others
	deleteByID string // begins a DELETE of such rows
	locks      lockCheck
	most       int64         // bytes of a statement with several rows
	writer     chan struct{} // capacity 1; nil unless there is one writer at a time
	worker     int64         // identifies this process's leases
	lease      time.Duration // how long a row belongs to a worker that does not renew its lease
	careful    atomic.Int64  // until when statements check for locks first, in nanoseconds since 1970
}

const messages = "redrive_queue_messages"

// write runs a change. SQLite has one writer at a time; queueing for it here is fairer than its busy handler.
func write[T any](ctx context.Context, s *store, change func() (T, error)) (result T, err error) {
	if s.writer == nil {
		return change()
	}
	err = sqldb.Patiently(ctx, func() (err error) {
		select {
		case s.writer <- struct{}{}:
			defer func() { <-s.writer }()
			result, err = change()
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	return result, err
}

// take claims rows, in the order of delivery.
func (s *store) take(ctx context.Context, c claim) ([]claimed, error) {
	list, err := write(ctx, s, func() ([]claimed, error) { return s.claim(ctx, s.db, c) })
	slices.SortFunc(list, func(a, b claimed) int {
		return cmp.Or(cmp.Compare(a.dueAt, b.dueAt), cmp.Compare(a.id, b.id))
	})
	return list, err
}

// reschedule moves leased rows, and returns the ids of those that were still ours.
func (s *store) reschedule(ctx context.Context, moves []moved) ([]int64, error) {
	return write(ctx, s, func() ([]int64, error) { return s.move(ctx, s.db, s.worker, moves) })
}

// exec runs a change and returns the number of rows it changed.
func (s *store) exec(ctx context.Context, query string, args ...any) (int64, error) {
	return write(ctx, s, func() (int64, error) {
		return sqldb.Changed(s.db.ExecContext(ctx, s.name.Bind(query), args...))
	})
}

// newQueue creates a row of redrive_queues for a topic and a group, unless there is one, and reports whether it did.
func (s *store) newQueue(ctx context.Context, db DB, topic, group, first string) (bool, error) {
	return s.name.InsertNew(ctx, db, "INSERT INTO redrive_queues (topic, consumer_group, first) VALUES (?, ?, "+first+")",
		[]byte(topic), []byte(group))
}

// queue returns the id of a group's queue, and whether it exists.
func (s *store) queue(ctx context.Context, topic, group string) (id int64, found bool, err error) {
	ids, err := queryInts(ctx, s.db, s.name.Bind("SELECT id FROM redrive_queues WHERE topic = ? AND consumer_group = ?"),
		[]byte(topic), []byte(group))
	if err != nil || len(ids) == 0 {
		return 0, false, err
	}
	return ids[0], true, nil
}

// mustRead fails unless a group has a queue for topic.
func (s *store) mustRead(ctx context.Context, topic string) error {
	query := s.name.Bind("SELECT id FROM redrive_queues WHERE topic = ? AND consumer_group <> ?")
	ids, err := queryInts(ctx, s.db, query, []byte(topic), []byte{})
	if err == nil && len(ids) == 0 {
		err = fmt.Errorf("topic %s: %w", topic, brokers.ErrUnroutable)
	}
	return err
}

// ensureQueue creates a group's queue, unless there is one. The first group of a topic takes over the
// earlier messages. It needs no lock: whatever step another process has reached, the steps here continue from it.
func (s *store) ensureQueue(ctx context.Context, topic, group string) error {
	create := func(first string) (isNew bool, err error) {
		return write(ctx, s, func() (bool, error) { return s.newQueue(ctx, s.db, topic, group, first) })
	}
	for range 5 {
		if _, found, err := s.queue(ctx, topic, group); err != nil || found {
			return err
		}
		if isNew, err := create("1"); err != nil {
			return err
		} else if isNew {
			continue
		}
		// The topic has its first row: either it has no group yet and becomes ours, or we add ours to another group's.
		if n, err := s.exec(ctx, "UPDATE redrive_queues SET consumer_group = ? WHERE topic = ? AND consumer_group = ?",
			[]byte(group), []byte(topic), []byte{}); err != nil {
			// A process of the same group was faster with the step below, and the name is taken.
			if _, found, _ := s.queue(ctx, topic, group); found {
				return nil
			}
			return err
		} else if n > 0 {
			continue
		}
		if _, err := create("NULL"); err != nil {
			return err
		}
	}
	return fmt.Errorf("the queue of %q for group %q keeps disappearing", topic, group)
}

// firstDue returns the time until the first row of each queue between two ids is due. The end of a lease counts as
// well, except of one that rows share.
func (s *store) firstDue(ctx context.Context, low, high int64) (map[int64]time.Duration, error) {
	first := map[int64]time.Duration{}
	return first, sqldb.Each(s.db.QueryContext(ctx, s.firsts(), low, high))(func(row sqldb.Row) error {
		var queue int64
		var us sql.NullInt64 // NULL when the row went in between
		err := row.Scan(&queue, &us)
		if err == nil && us.Valid {
			first[queue] = time.Duration(us.Int64) * time.Microsecond
		}
		return err
	})
}

// ack removes rows that are still ours, and the shared leases that end with them. It returns those that exist but are
// another worker's.
func (s *store) ack(ctx context.Context, rows []leased, over []int64) (others map[int64]bool, err error) {
	n, err := write(ctx, s, func() (int64, error) { return s.ackWith(ctx, s.db, rows, over) })
	if err != nil || n == int64(len(rows)) {
		return nil, err
	}
	where, args := s.byIDs(idsOf(rows))
	there, err := queryInts(ctx, s.db, "SELECT id FROM "+s.byID+where, args...)
	return set(there), err
}

func (s *store) ackWith(ctx context.Context, db DB, rows []leased, over []int64) (int64, error) {
	where, args := s.held(s.worker, rows)
	with, prefix := s.over(s.worker, over)
	return sqldb.Changed(db.ExecContext(ctx, s.name.Bind(with+s.deleteByID+where), append(prefix, args...)...))
}

// update changes rows that are still ours, and returns how many.
func (s *store) update(ctx context.Context, rows []leased, set string, args ...any) (int64, error) {
	where, held := s.held(s.worker, rows)
	return s.exec(ctx, "UPDATE "+s.byID+" SET "+set+where, append(slices.Clone(args), held...)...)
}

// nack makes rows visible again after delay, as failed rows. It is an answer, so it is not a crash.
func (s *store) nack(ctx context.Context, rows []leased, delay time.Duration) error {
	_, err := s.update(ctx, rows, "crashes = 0, started = 0, deliveries = deliveries + CASE WHEN lease IS NULL THEN 1 "+
		"ELSE 0 END, "+
		"lease = 0, visible_at = "+s.name.Now()+" + ?", delay.Microseconds())
	return err
}

// release makes rows visible again at their place in the queue, as rows that no handler has seen.
func (s *store) release(ctx context.Context, rows []leased) error {
	_, err := s.update(ctx, rows, "started = 0, deliveries = deliveries - CASE WHEN lease IS NULL THEN 0 ELSE 1 END, "+
		"lease = 0, visible_at = due_at")
	return err
}

// start records that the handler of a row that has crashed workers starts. It reports whether the row is still ours.
func (s *store) start(ctx context.Context, row leased) (bool, error) {
	n, err := s.update(ctx, []leased{row}, "started = started + 1") // MySQL does not count rows that stay the same
	return n > 0, err
}

// renew extends leases and returns those that another worker has taken over. Rows that share a lease get one each: they
// are the slow ones of their batch. No worker can take a row over between the two statements: its lease has just been
// extended.
func (s *store) renew(ctx context.Context, rows []leased) (lost map[int64]bool, err error) {
	n, err := s.update(ctx, rows, "deliveries = deliveries + CASE WHEN lease IS NULL THEN 1 ELSE 0 END, lease = ?, "+
		"visible_at = "+s.name.Now()+" + ?",
		s.worker, s.lease.Microseconds())
	if err != nil || n == int64(len(rows)) {
		return nil, err
	}
	lost = map[int64]bool{}
	own := make([]leased, len(rows)) // without their shared leases
	for i, r := range rows {
		own[i].id, lost[r.id] = r.id, true
	}
	where, args := s.held(s.worker, own)
	ours, err := queryInts(ctx, s.db, s.name.Bind("SELECT id FROM redrive_queue_messages"+where), args...)
	if err != nil {
		return nil, err
	}
	for _, id := range ours {
		delete(lost, id)
	}
	return lost, nil
}

// ping checks that the database answers and the tables exist.
func (s *store) ping(ctx context.Context) error {
	_, err := queryInts(ctx, s.db, "SELECT id FROM redrive_queues LIMIT 1")
	return err
}

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
