package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/internal/sqldb"
)

var _ driver.PeopleStore = (*Store)(nil)

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

var _ driver.LedgerStore = (*Store)(nil)

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
