package sqlstore

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/internal/sqldb"
	"github.com/redrive-go/redrive/middleware/idempotency"
)

//go:embed migrations
var migrations embed.FS

// Store is an [idempotency.Store] in the table redrive_processed. It is safe for concurrent use, by several processes
// too.
type Store struct {
	db *sql.DB
	d  Dialect
}

var _ idempotency.Store = (*Store)(nil)

// New creates the table if it does not exist, and returns a store on db, which the caller opens and closes. Any number
// of processes may do so at once. In a failover, db keeps its connections to a server that is now read-only unless the
// DSN has target_session_attrs=read-write (pgx) or rejectReadOnly=true (MySQL).
func New(ctx context.Context, db *sql.DB, name Dialect) (*Store, error) {
	err := name.CheckSession(ctx, db)
	if err == nil {
		err = sqldb.Schema{Dialect: name, Files: migrations, Table: "redrive_processed_schema"}.Up(ctx, db)
	}
	if err != nil {
		return nil, fmt.Errorf("idempotency/sqlstore: open: %w", name.Advise(err))
	}
	return &Store{db: db, d: name}, nil
}

// where is the condition for a key, whose values are keyArgs.
const where = " WHERE consumer = ? AND message_id = ?"

func keyArgs(key idempotency.Key) []any { return []any{bounded(key.Consumer), bounded(key.MessageID)} }

// bounded returns a text, or a hash of one that does not fit into MySQL's columns.
func bounded(text string) []byte {
	if len(text) > 255 {
		text = fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(text)))
	}
	return []byte(text)
}

// Claim implements idempotency.Store. A new message takes one statement.
func (s *Store) Claim(ctx context.Context, key idempotency.Key, owner int64, lease time.Duration) (idempotency.Record,
	error,
) {
	claimed := idempotency.Record{State: idempotency.Claimed}
	for range 3 {
		isNew, err := s.d.InsertNew(ctx, s.db,
			"INSERT INTO redrive_processed (consumer, message_id, done, owner, until) VALUES (?, ?, 0, ?, "+
				s.d.Clock()+" + ?)", append(keyArgs(key), owner, lease.Microseconds())...)
		if err != nil {
			return idempotency.Record{}, fault("claim", err)
		}
		if isNew {
			return claimed, nil
		}
		record, known, err := s.read(ctx, key)
		if err != nil {
			return idempotency.Record{}, fault("claim", err)
		}
		if !known || record.Remaining <= 0 {
			// The owner has released it in the meantime or is gone, or the retention is over. Of several that try, one
			// changes the row.
			n, err := s.exec(ctx, s.db, "UPDATE redrive_processed SET done = 0, outcome = NULL, owner = ?, until = "+s.d.Clock()+
				" + ?"+where+
				" AND until <= "+s.d.Clock(), append([]any{owner, lease.Microseconds()}, keyArgs(key)...)...)
			if err != nil {
				return idempotency.Record{}, fault("claim", err)
			}
			if n > 0 {
				return claimed, nil
			}
			continue
		}
		return record, nil
	}
	// Others were faster three times.
	return idempotency.Record{State: idempotency.Busy, Remaining: lease}, nil
}

// read returns the record of a key, and whether there is one.
func (s *Store) read(ctx context.Context, key idempotency.Key) (record idempotency.Record, known bool, err error) {
	var (
		done  bool
		until int64
	)
	query := "SELECT done = 1, outcome, until - " + s.d.Clock() + " FROM redrive_processed" + where + s.d.Latest()
	err = s.db.QueryRowContext(ctx, s.d.Bind(query), keyArgs(key)...).Scan(&done, &record.Outcome, &until)
	if errors.Is(err, sql.ErrNoRows) {
		return record, false, nil
	}
	record.State, record.Remaining = idempotency.Busy, time.Duration(until)*time.Microsecond
	if done {
		record.State = idempotency.Done
	}
	return record, true, err
}

// Renew implements idempotency.Store.
func (s *Store) Renew(ctx context.Context, key idempotency.Key, owner int64, lease time.Duration) error {
	n, err := s.exec(ctx, s.db, "UPDATE redrive_processed SET until = "+s.d.Clock()+" + ?"+where+
		" AND owner = ? AND done = 0",
		append([]any{lease.Microseconds()}, append(keyArgs(key), owner)...)...)
	return owned("renew", n, err)
}

// Complete implements idempotency.Store.
func (s *Store) Complete(ctx context.Context, key idempotency.Key, owner int64, outcome []byte,
	retention time.Duration,
) error {
	n, err := s.complete(ctx, s.db, &idempotency.Claim{Key: key, Owner: owner, Retention: retention}, outcome)
	return owned("complete", n, err)
}

func (s *Store) complete(ctx context.Context, db sqldb.Execer, claim *idempotency.Claim, outcome []byte) (int64,
	error,
) {
	return s.exec(ctx, db, "UPDATE redrive_processed SET done = 1, outcome = ?, until = "+s.d.Clock()+" + ?"+where+
		" AND owner = ?",
		append([]any{outcome, claim.Retention.Microseconds()}, append(keyArgs(claim.Key), claim.Owner)...)...)
}

// Release implements idempotency.Store.
func (s *Store) Release(ctx context.Context, key idempotency.Key, owner int64) error {
	if _, err := s.exec(ctx, s.db, "DELETE FROM redrive_processed"+where+" AND owner = ? AND done = 0",
		append(keyArgs(key), owner)...); err != nil {
		return fault("release", err)
	}
	return nil
}

// CompleteTx marks the message of ctx as done in the handler's transaction: the mark and the effect are committed
// together or not at all. produced are the messages that the handler is going to return; they are kept, so that a
// duplicate returns them again.
//
// It returns idempotency.ErrLost if another worker has taken the message over, and an error outside a guard; in both
// cases the transaction must be rolled back. After a failing Commit the handler must return an error; if the commit was
// stored without an answer, the guard finds the mark and reports success.
//
// End the transaction before the handler returns: while it is open after a failure, the message is deferred, and no
// attempt is consumed. Use READ COMMITTED, as InTx does. A transaction with a snapshot (REPEATABLE READ on PostgreSQL
// and MariaDB) fails if the claim is renewed meanwhile, so it must end within a third of the Guard's Lease.
func (s *Store) CompleteTx(ctx context.Context, tx *sql.Tx, produced ...*message.Message) error {
	claim, ok := idempotency.ClaimFrom(ctx)
	if !ok {
		return errors.New("idempotency/sqlstore: the context is not that of a message under a guard")
	}
	outcome, err := claim.Outcome(produced...)
	if err != nil {
		return err
	}
	n, err := s.complete(ctx, tx, claim, outcome)
	if err := owned("complete", n, err); err != nil {
		return err
	}
	claim.MarkCompleted(len(produced))
	return nil
}

// InTx runs fn in a transaction that also marks the message of ctx as done; see CompleteTx. If it returns an error,
// nothing has changed, unless Commit failed without an answer.
func (s *Store) InTx(ctx context.Context, fn func(tx *sql.Tx) error) error {
	return sqldb.InTx(ctx, sqldb.Patient{DB: s.db}, s.d.ReadCommitted(), func(tx *sql.Tx) error {
		if err := fn(tx); err != nil {
			return err
		}
		return s.CompleteTx(ctx, tx)
	})
}

// Purge deletes up to 1,000 messages whose retention, or whose dead owner's lease, is over, and returns how many. Call
// it from time to time until it returns 0: nothing else shrinks the table.
func (s *Store) Purge(ctx context.Context) (int, error) {
	n, err := s.exec(ctx, s.db, purgeQuery(s.d))
	if err != nil {
		return 0, fault("purge", err)
	}
	return int(n), nil
}

// exec changes rows. It waits for other writers of a SQLite file, except in a transaction, whose snapshot may stay too
// old.
func (s *Store) exec(ctx context.Context, db sqldb.Execer, query string, args ...any) (n int64, err error) {
	change := func() error {
		n, err = sqldb.Changed(db.ExecContext(ctx, s.d.Bind(query), args...))
		return err
	}
	if db == s.db {
		err = sqldb.Patiently(ctx, change)
	} else {
		err = change()
	}
	return n, err
}

func owned(what string, n int64, err error) error {
	if err != nil {
		return fault(what, err)
	}
	if n == 0 {
		return fmt.Errorf("idempotency/sqlstore: %s: %w", what, idempotency.ErrLost)
	}
	return nil
}

func fault(what string, err error) error {
	return fmt.Errorf("idempotency/sqlstore: %s: %w", what, err)
}

// Dialect names the kind of database behind a *sql.DB.
type Dialect = sqldb.Dialect

// The databases that [New] supports.
const (
	PostgreSQL = sqldb.PostgreSQL // 12 and later
	MySQL      = sqldb.MySQL      // MySQL 8.0, MariaDB 10.6 and later
	SQLite     = sqldb.SQLite     // 3.42 and later
)

// purgeQuery removes the oldest expired rows. MySQL supports no subquery on the table that it deletes from, the others
// no LIMIT. PostgreSQL checks a row that it had to wait for again, but only against the outer condition.
func purgeQuery(d Dialect) string {
	expired, oldest := "FROM redrive_processed WHERE until < "+d.Now(), " ORDER BY until LIMIT 1000"
	if d != MySQL {
		oldest = " AND (consumer, message_id) IN (SELECT consumer, message_id " + expired + oldest + ")"
	}
	return "DELETE " + expired + oldest
}
