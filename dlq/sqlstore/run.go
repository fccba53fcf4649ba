package sqlstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/internal/sqldb"
)

const (
	runColumns = "seq, run_id, version, document, holder, lease_until, frozen_to, freeze_to," +
		" n_waiting, n_claimed, n_out, n_succeeded, n_failed, n_lost, n_skipped"
	selectRun = "SELECT " + runColumns + " FROM dlq_runs"
)

// runRow is a run and its number, by which its items refer to it.
type runRow struct {
	redrive.Run

	seq int64
}

func scanRun(row sqldb.Row, r *runRow) error {
	var id, document, holder string
	var version, frozenTo, freezeTo int64
	var lease time.Time
	var n redrive.Counts
	err := row.Scan(&r.seq, &id, &version, &document, &holder, timeValue{&lease}, &frozenTo, &freezeTo,
		&n.Waiting, &n.Claimed, &n.Out, &n.Succeeded, &n.Failed, &n.Lost, &n.Skipped)
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(document), &r.Run); err != nil {
		return fmt.Errorf("document of run %s: %w", id, err)
	}
	r.ID, r.Version, r.Holder, r.LeaseUntil, r.FrozenTo, r.FreezeTo, r.Counts = id, version, holder, lease, frozenTo,
		freezeTo, n
	return nil
}

// encodeRun omits what has columns and changes with every step.
func encodeRun(r *redrive.Run) (string, error) {
	document := *r
	document.Counts, document.Holder, document.LeaseUntil, document.FrozenTo, document.FreezeTo = redrive.Counts{}, "",
		time.Time{}, 0, 0
	data, err := json.Marshal(&document)
	return string(data), err
}

// CreateRun stores a new run.
func (s *Store) CreateRun(ctx context.Context, r *redrive.Run, audit driver.AuditRecord) error {
	document, err := encodeRun(r)
	if err != nil {
		return fmt.Errorf("sqlstore: create run: %w", err)
	}
	return s.audited(ctx, "create run "+r.ID, audit, func(tx *sql.Tx) error {
		var newest int64
		if err := s.queryRow(ctx, tx, "SELECT coalesce(max(id), 0) FROM dlq_entries").Scan(&newest); err != nil {
			return err
		}
		isNew, err := s.dialect.name().InsertNew(ctx, tx, insertInto("dlq_runs",
			[]string{"run_id", "state", "version", "created_at", "created_by", "document", "freeze_to"}, 1),
			r.ID, string(r.State), r.Version, s.dialect.time(r.CreatedAt), r.CreatedBy, document, newest)
		if err != nil || isNew {
			return err
		}
		var there runRow
		if err := scanRun(s.queryRow(ctx, tx, selectRun+" WHERE run_id = ?", r.ID), &there); err != nil {
			return err
		}
		return &redrive.ConflictError{
			Run: r.ID, Action: redrive.ActionStart, Status: string(there.State), Version: there.Version,
			By: there.CreatedBy, At: there.CreatedAt,
		}
	})
}

// Run returns a run.
func (s *Store) Run(ctx context.Context, id string) (*redrive.Run, error) {
	return reading(s, "run "+id, func() (*redrive.Run, error) {
		r, err := s.readRun(ctx, id)
		if err != nil {
			return nil, err
		}
		return &r.Run, nil
	})
}

func (s *Store) readRun(ctx context.Context, id string) (*runRow, error) {
	r := &runRow{}
	return r, scanRun(s.row(ctx, selectRun+" WHERE run_id = ?", id), r)
}

// Runs returns a page of runs.
func (s *Store) Runs(ctx context.Context, f redrive.RunFilter, p dlq.Page) ([]redrive.Run, string, error) {
	next := ""
	runs, err := reading(s, "runs", func() ([]redrive.Run, error) {
		p, cursor, err := p.Resolve()
		if err != nil {
			return nil, err
		}
		b := s.selectFrom("dlq_runs", runColumns)
		if len(f.States) > 0 {
			whereIn(b, "state", f.States)
		}
		whereText(b, "created_by", f.CreatedBy)
		if f.Active {
			b.Where(b.Or(b.In("state", string(redrive.Preparing), string(redrive.Running)), "n_claimed + n_out > 0"))
		}
		s.page(b, [2]string{"created_at", "seq"}, p, cursor)
		rows, err := sqldb.All[runRow](s.find(ctx, b))(scanRun)
		rows, next = cutPage(rows, p, func(r *runRow) (time.Time, int64) { return r.CreatedAt, r.seq })
		return sqldb.Map(rows, func(r *runRow) redrive.Run { return r.Run }), err
	})
	return runs, next, err
}

// ChangeRun replaces a run by compare-and-set.
func (s *Store) ChangeRun(ctx context.Context, r *redrive.Run, audit driver.AuditRecord) error {
	document, err := encodeRun(r)
	if err != nil {
		return fmt.Errorf("sqlstore: change run: %w", err)
	}
	return s.audited(ctx, "change run "+r.ID, audit, func(tx *sql.Tx) error {
		now, err := s.lockRun(ctx, tx, r.ID)
		if err != nil {
			return err
		}
		if now.Version != r.Version-1 {
			return &redrive.ConflictError{
				Run: r.ID, Action: audit.Action, Status: string(now.State), Version: now.Version, By: now.ChangedBy,
				At: now.ChangedAt,
			}
		}
		_, err = s.exec(ctx, tx, "UPDATE dlq_runs SET state = ?, version = ?, document = ? WHERE seq = ?",
			string(r.State), r.Version, document, now.seq)
		if err != nil {
			return err
		}
		if r.State.Ended() {
			p := &stepping{
				changes: changes{store: s, tx: tx}, run: now, step: &redrive.Step{At: r.ChangedAt, Actor: r.ChangedBy},
			}
			if err := p.unclaimAll(ctx); err != nil {
				return err
			}
		}
		return s.settleSends(ctx, tx, &now.Run, r)
	})
}

// LeaseRun acquires, extends or releases the lease of a run.
func (s *Store) LeaseRun(ctx context.Context, id, holder string, at time.Time, lease time.Duration) (*redrive.Run,
	error,
) {
	return writing(ctx, s, "lease run "+id, func(tx *sql.Tx) (*redrive.Run, error) {
		run, err := s.lockRun(ctx, tx, id)
		if err != nil {
			return nil, err
		}
		before := run.Run
		if err := run.Lease(holder, at, lease); err != nil {
			return nil, err
		}
		if run.Abandoned != before.Abandoned || run.AbandonedAt != before.AbandonedAt {
			document, err := encodeRun(&run.Run)
			if err != nil {
				return nil, err
			}
			_, err = s.exec(ctx, tx, "UPDATE dlq_runs SET document = ? WHERE seq = ?", document, run.seq)
			if err != nil {
				return nil, err
			}
		}
		return &run.Run, s.saveRun(ctx, tx, run)
	})
}

// lockRun reads a run that is about to change.
func (s *Store) lockRun(ctx context.Context, tx *sql.Tx, id string) (*runRow, error) {
	r := &runRow{}
	err := scanRun(s.queryRow(ctx, tx, selectRun+" WHERE run_id = ?"+s.forUpdate(), id), r)
	return r, notFound(err)
}

// heldRun is lockRun for the holder of its lease.
func (s *Store) heldRun(ctx context.Context, tx *sql.Tx, id, holder string, at time.Time) (*runRow, error) {
	r, err := s.lockRun(ctx, tx, id)
	if err != nil {
		return nil, err
	}
	if r.Holder != holder || !r.LeaseUntil.After(at) {
		return nil, fmt.Errorf("run %s: %w", id, redrive.ErrLeaseLost)
	}
	return r, nil
}

// saveRun writes the columns that steps change. The row is locked.
func (s *Store) saveRun(ctx context.Context, tx *sql.Tx, r *runRow) error {
	n := &r.Counts
	_, err := s.exec(ctx, tx, "UPDATE dlq_runs SET holder = ?, lease_until = ?, frozen_to = ?, n_waiting = "+
		"?, n_claimed = ?,"+
		" n_out = ?, n_succeeded = ?, n_failed = ?, n_lost = ?, n_skipped = ? WHERE seq = ?",
		r.Holder, s.dialect.time(r.LeaseUntil), r.FrozenTo, n.Waiting, n.Claimed, n.Out, n.Succeeded, n.Failed, n.Lost,
		n.Skipped, r.seq)
	return err
}

func notFound(err error) error {
	if errors.Is(err, sql.ErrNoRows) {
		return dlq.ErrNotFound
	}
	return err
}

// Split counts entries by topic.
func (s *Store) Split(ctx context.Context, f dlq.Filter) ([]redrive.TopicCount, error) {
	if err := f.Validate(); err != nil {
		return nil, fmt.Errorf("sqlstore: split: %w", err)
	}
	b := s.selectFrom("dlq_entries", "topic", "count(*)")
	s.whereJoined(b, &f)
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
