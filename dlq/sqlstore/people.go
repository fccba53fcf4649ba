package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	fit "github.com/redrive-go/redrive/dlq/internal/text"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/internal/sqldb"
)

const selectToken = "SELECT name, role, digest, created_at, created_by, expires_at, used_at, revoked_at, revoked_by " +
	"FROM dlq_tokens"

// PutToken stores a token.
func (s *Store) PutToken(ctx context.Context, t driver.Token) error {
	if err := t.Validate(); err != nil {
		return fmt.Errorf("sqlstore: token: %w", err)
	}
	return s.audited(ctx, "put token", driver.AuditRecord{
		At: t.CreatedAt, Actor: t.CreatedBy, Action: driver.ActionCreateToken,
		Detail: map[string]string{"token": t.Name, "role": t.Role},
	}, func(tx *sql.Tx) error {
		isNew, err := s.dialect.name().InsertNew(ctx, tx, insertInto("dlq_tokens",
			[]string{"name", "role", "digest", "created_at", "created_by", "expires_at"}, 1),
			t.Name, t.Role, t.Digest, s.dialect.time(t.CreatedAt), t.CreatedBy, s.dialect.time(t.ExpiresAt))
		if err == nil && !isNew {
			err = fmt.Errorf("%w: a token %q exists; the name of a revoked one is not free again", dlq.ErrConflict, t.Name)
		}
		return err
	})
}

func scanToken(row sqldb.Row, t *driver.Token) error {
	return row.Scan(&t.Name, &t.Role, &t.Digest, timeValue{&t.CreatedAt}, &t.CreatedBy, timeValue{&t.ExpiresAt},
		timeValue{&t.UsedAt}, timeValue{&t.RevokedAt}, textValue{&t.RevokedBy})
}

// Tokens returns all tokens.
func (s *Store) Tokens(ctx context.Context) ([]driver.Token, error) {
	return reading(s, "tokens", func() ([]driver.Token, error) {
		return sqldb.All[driver.Token](s.read.QueryContext(ctx, selectToken+" ORDER BY name"))(scanToken)
	})
}

// Token returns a token.
func (s *Store) Token(ctx context.Context, digest string) (*driver.Token, error) {
	return reading(s, "token", func() (*driver.Token, error) {
		t := &driver.Token{}
		return t, scanToken(s.row(ctx, selectToken+" WHERE digest = ?", digest), t)
	})
}

// UseToken records that a token was used.
func (s *Store) UseToken(ctx context.Context, digest string, at time.Time) error {
	return s.inTx(ctx, "use token", func(tx *sql.Tx) error {
		_, err := s.exec(ctx, tx, "UPDATE dlq_tokens SET used_at = ? WHERE digest = ?", s.dialect.time(at), digest)
		return err
	})
}

// RevokeToken revokes a token.
func (s *Store) RevokeToken(ctx context.Context, name string, by driver.By, at time.Time) error {
	if by.Actor == "" || at.IsZero() {
		return fmt.Errorf("sqlstore: revoke token: %w: no actor or no time", dlq.ErrInvalid)
	}
	return s.audited(ctx, "revoke token "+name, driver.AuditRecord{
		At: at, Actor: by.Actor, Action: driver.ActionRevokeToken, Note: by.Note, Detail: map[string]string{"token": name},
	}, func(tx *sql.Tx) error {
		n, err := sqldb.Changed(s.exec(ctx, tx,
			"UPDATE dlq_tokens SET revoked_at = ?, revoked_by = ? WHERE name = ? AND revoked_at IS NULL",
			s.dialect.time(at), by.Actor, name))
		if err == nil && n == 0 {
			err = dlq.ErrNotFound
		}
		return err
	})
}

// PutSession stores a session.
func (s *Store) PutSession(ctx context.Context, n driver.Session) error {
	if err := n.Validate(); err != nil {
		return fmt.Errorf("sqlstore: session: %w", err)
	}
	return s.audited(ctx, "put session", driver.AuditRecord{
		At: n.CreatedAt, Actor: n.Name, Action: driver.ActionLogin, Detail: map[string]string{"role": n.Role},
	}, func(tx *sql.Tx) error {
		created := s.dialect.time(n.CreatedAt)
		if _, err := s.exec(ctx, tx, "DELETE FROM dlq_sessions WHERE expires_at < ?", created); err != nil {
			return err
		}
		_, err := s.exec(ctx, tx, insertInto("dlq_sessions",
			[]string{"digest", "name", "role", "created_at", "expires_at", "used_at"}, 1),
			n.Digest, n.Name, n.Role, created, s.dialect.time(n.ExpiresAt), created)
		return err
	})
}

// Session returns a session.
func (s *Store) Session(ctx context.Context, digest string, at time.Time) (*driver.Session, error) {
	return reading(s, "session", func() (*driver.Session, error) {
		n := &driver.Session{Digest: digest}
		err := s.row(ctx, "SELECT name, role, created_at, expires_at FROM dlq_sessions WHERE digest = ?", digest).
			Scan(&n.Name, &n.Role, timeValue{&n.CreatedAt}, timeValue{&n.ExpiresAt})
		if err == nil && !at.Before(n.ExpiresAt) {
			err = dlq.ErrNotFound
		}
		return n, err
	})
}

// EndSession removes a session.
func (s *Store) EndSession(ctx context.Context, digest string) error {
	return s.inTx(ctx, "end session", func(tx *sql.Tx) error {
		var name string
		err := s.queryRow(ctx, tx, "SELECT name FROM dlq_sessions WHERE digest = ?"+s.forUpdate(), digest).Scan(&name)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		if _, err := s.exec(ctx, tx, "DELETE FROM dlq_sessions WHERE digest = ?", digest); err != nil {
			return err
		}
		return s.insertAudit(ctx, tx, []driver.AuditRecord{{At: s.Now(ctx), Actor: name, Action: driver.ActionLogout}})
	})
}

var sendColumns = []string{"send_key", "person", "at", "entries", "is_open"}

// Reserve records what a person is about to send.
func (s *Store) Reserve(ctx context.Context, r driver.Reservation) (granted bool, err error) {
	if err := r.Validate(); err != nil {
		return false, fmt.Errorf("sqlstore: reserve: %w", err)
	}
	person, at, open := driver.Person(r.Actor), s.dialect.time(r.At), 0
	if r.Open {
		open = 1
	}
	err = s.inTx(ctx, "reserve", func(tx *sql.Tx) error {
		granted = false
		// The write locks the person's row until the transaction ends: otherwise two reservations counted at once would
		// both find room.
		lock := upsertion{
			table: "dlq_sends", columns: sendColumns, key: sendColumns[:1], add: []string{"entries"}, latest: []string{"at"},
		}
		if _, err := s.exec(ctx, tx, lock.sql(s.dialect.name(), 1), "person "+person, person, at, 0, 0); err != nil {
			return err
		}
		_, err := s.exec(ctx, tx, "DELETE FROM dlq_sends WHERE person = ? AND at < ? AND is_open = 0",
			person, s.dialect.time(r.At.Add(-r.Window)))
		if err != nil {
			return err
		}
		var others int64
		err = s.queryRow(ctx, tx, "SELECT coalesce(sum(entries), 0) FROM dlq_sends WHERE person = ? AND send_key <> ?",
			person, r.Key).Scan(&others)
		if err != nil || others+r.Entries > r.Limit {
			return err
		}
		if _, err := s.exec(ctx, tx, "DELETE FROM dlq_sends WHERE send_key = ?", r.Key); err != nil {
			return err
		}
		if _, err := s.exec(ctx, tx, insertInto("dlq_sends", sendColumns, 1), r.Key, person, at, r.Entries,
			open); err != nil {
			return err
		}
		granted = true
		return nil
	})
	return granted && err == nil, err
}

// Unreserve removes a reservation.
func (s *Store) Unreserve(ctx context.Context, key string) error {
	return s.inTx(ctx, "unreserve", func(tx *sql.Tx) error {
		_, err := s.exec(ctx, tx, "DELETE FROM dlq_sends WHERE send_key = ?", key)
		return err
	})
}

// settleSends closes the reservation of a run that has ended: what it sent counts from now on, the rest is free again.
func (s *Store) settleSends(ctx context.Context, tx *sql.Tx, now, r *redrive.Run) error {
	if !r.State.Ended() {
		return nil
	}
	_, err := s.exec(ctx, tx, "UPDATE dlq_sends SET at = ?, entries = ?, is_open = 0 WHERE send_key = ?",
		s.dialect.time(r.ChangedAt), now.Counts.Started(), driver.RunKey(r.ID))
	return err
}

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
