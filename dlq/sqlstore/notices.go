package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	fit "github.com/redrive-go/redrive/dlq/internal/text"
	"github.com/redrive-go/redrive/internal/sqldb"
)

var _ driver.NoticeStore = (*Store)(nil)

// noticesKept is how long to remember what a receiver was notified of: long after it could be notified of it again.
const noticesKept = 30 * 24 * time.Hour

// HoldNotices makes a process the notifying one.
func (s *Store) HoldNotices(ctx context.Context, process string, at, until time.Time) (bool, error) {
	var holder string
	err := s.inTx(ctx, "hold notices", func(tx *sql.Tx) error {
		_, err := s.exec(ctx, tx,
			"UPDATE dlq_notices SET holder = ?, at = ? WHERE receiver = '' AND id = '' AND (holder = ? OR at <= ?)",
			process, s.dialect.time(until), process, s.dialect.time(at))
		if err != nil {
			return err
		}
		// MySQL counts changed rows, and the UPDATE of the current holder may change nothing.
		return s.queryRow(ctx, tx, "SELECT holder FROM dlq_notices WHERE receiver = '' AND id = ''").Scan(&holder)
	})
	return holder == process, err
}

// Notices returns what receivers were notified of.
func (s *Store) Notices(ctx context.Context, since time.Time) ([]driver.Notice, error) {
	return reading(s, "notices", func() ([]driver.Notice, error) {
		return sqldb.All[driver.Notice](s.rows(ctx, "SELECT receiver, id, at FROM dlq_notices"+
			" WHERE receiver <> '' AND (id = '' OR at >= ?) ORDER BY at, receiver, id", s.dialect.time(since)))(
			func(row sqldb.Row, n *driver.Notice) error { return row.Scan(&n.Receiver, &n.ID, timeValue{&n.At}) })
	})
}

// PutNotice records what a receiver was notified of.
func (s *Store) PutNotice(ctx context.Context, n driver.Notice) error {
	if n.Receiver == "" || n.At.IsZero() {
		return fmt.Errorf("sqlstore: put notice: %w: no receiver or no time", dlq.ErrInvalid)
	}
	return s.inTx(ctx, "put notice", func(tx *sql.Tx) error {
		isNew, err := s.dialect.name().InsertNew(ctx, tx,
			insertInto("dlq_notices", []string{"receiver", "id", "at", "holder"}, 1), n.Receiver, n.ID, s.dialect.time(n.At), "")
		if err != nil || !isNew {
			return err
		}
		_, err = s.exec(ctx, tx, "DELETE FROM dlq_notices WHERE receiver <> '' AND id <> '' AND at < ?",
			s.dialect.time(n.At.Add(-noticesKept)))
		return err
	})
}

// Mute excludes a cause from notifications.
func (s *Store) Mute(ctx context.Context, m driver.Mute) error {
	if err := driver.CheckMute(&m); err != nil {
		return fmt.Errorf("sqlstore: mute: %w", err)
	}
	detail := map[string]string{driver.DetailFingerprint: m.Fingerprint}
	if !m.Until.IsZero() {
		detail["until"] = m.Until.UTC().Format(time.RFC3339)
	}
	mutes := upsertion{
		table: "dlq_mutes", columns: []string{"fingerprint", "muted_at", "until", "muted_by", "note"},
		key: []string{"fingerprint"}, set: []string{"muted_at", "until", "muted_by", "note"},
	}
	return s.audited(ctx, "mute", driver.AuditRecord{
		At: m.At, Actor: m.By, Action: driver.ActionMute, Note: m.Note, Detail: detail,
	}, func(tx *sql.Tx) error {
		_, err := s.exec(ctx, tx, mutes.sql(s.dialect.name(), 1), m.Fingerprint, s.dialect.time(m.At),
			s.dialect.time(m.Until), fit.Clean(m.By, fit.MaxName), fit.Clean(m.Note, fit.MaxName))
		return err
	})
}

// Unmute includes a cause in notifications again.
func (s *Store) Unmute(ctx context.Context, fingerprint string, by driver.By, at time.Time) error {
	if by.Actor == "" || at.IsZero() {
		return fmt.Errorf("sqlstore: unmute: %w: no actor or no time", dlq.ErrInvalid)
	}
	return s.audited(ctx, "unmute", driver.AuditRecord{
		At: at, Actor: by.Actor, Action: driver.ActionUnmute, Note: by.Note,
		Detail: map[string]string{driver.DetailFingerprint: fingerprint},
	}, func(tx *sql.Tx) error {
		n, err := sqldb.Changed(s.exec(ctx, tx, "DELETE FROM dlq_mutes WHERE fingerprint = ?", fingerprint))
		if err == nil && n == 0 {
			err = fmt.Errorf("cause %.64q is not muted: %w", fingerprint, dlq.ErrNotFound)
		}
		return err
	})
}

// Mutes returns the mutes that have not ended.
func (s *Store) Mutes(ctx context.Context, at time.Time) ([]driver.Mute, error) {
	return reading(s, "mutes", func() ([]driver.Mute, error) {
		return sqldb.All[driver.Mute](s.rows(ctx, "SELECT fingerprint, muted_at, until, muted_by, note FROM dlq_mutes"+
			" WHERE until IS NULL OR until > ? ORDER BY muted_at DESC, fingerprint", s.dialect.time(at)))(
			func(row sqldb.Row, m *driver.Mute) error {
				return row.Scan(&m.Fingerprint, timeValue{&m.At}, timeValue{&m.Until}, &m.By, &m.Note)
			})
	})
}
