package sqlstore

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/internal/sqldb"
)

// Split counts entries by topic.
func (s *Store) Split(ctx context.Context, f dlq.Filter) ([]redrive.TopicCount, error) {
	if err := f.Validate(); err != nil {
		return nil, fmt.Errorf("sqlstore: split: %w", err)
	}
	b := s.selectFrom("dlq_entries", "topic", "count(*)")
	s.where(b, &f)
	b.GroupBy("topic").OrderBy("count(*) DESC", "topic")
	return reading(s, "split", func() ([]redrive.TopicCount, error) { return scanTopics(s.find(ctx, b)) })
}

// SplitRun counts the entries of a run by topic and by cause.
func (s *Store) SplitRun(ctx context.Context, id string, causes int) ([]redrive.TopicCount, []redrive.CauseCount,
	error,
) {
	const items = " FROM dlq_run_items i JOIN dlq_runs r ON r.seq = i.run_seq JOIN dlq_entries e ON e.id = i.entry_id"
	topics, err := reading(s, "split run", func() ([]redrive.TopicCount, error) {
		return scanTopics(s.rows(ctx, "SELECT e.topic, count(*)"+items+
			" WHERE r.run_id = ? GROUP BY e.topic ORDER BY count(*) DESC, e.topic", id))
	})
	if err != nil {
		return nil, nil, err
	}
	split, err := reading(s, "split run", func() ([]redrive.CauseCount, error) {
		return sqldb.All[redrive.CauseCount](s.rows(ctx,
			"SELECT g.fingerprint, g.cause, g.handler, g.error_class, n.entries FROM"+
				" (SELECT e.fingerprint AS fingerprint, count(*) AS entries"+items+
				" WHERE r.run_id = ? GROUP BY e.fingerprint) n"+
				" JOIN dlq_groups g ON g.fingerprint = n.fingerprint ORDER BY n.entries DESC, g.fingerprint LIMIT ?", id, causes))(
			func(row sqldb.Row, c *redrive.CauseCount) error {
				return row.Scan(&c.Fingerprint, &c.Cause, &c.Handler, &c.ErrorClass, &c.Count)
			})
	})
	return topics, split, err
}

func scanTopics(rows *sql.Rows, err error) ([]redrive.TopicCount, error) {
	return sqldb.All[redrive.TopicCount](rows, err)(
		func(row sqldb.Row, c *redrive.TopicCount) error { return row.Scan(&c.Topic, &c.Count) })
}
