package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"

	"github.com/redrive-go/redrive/dlq"
)

// Store is a [dlq.Store] in a SQL database. It is safe for concurrent use, in any number of processes on one database.
type Store struct {
	dialect  dialect
	write    *sql.DB
	read     *sql.DB // the same as write where one pool does both
	spoolDir string

	statements statements
	writer     *writer

	closeOnce sync.Once
	closeErr  error
	closed    chan struct{}
}

var _ dlq.Store = (*Store)(nil)

// Open opens the store that the URL names, as dlq.Open does without a sink and a spool. The one who opened it closes it.
func Open(ctx context.Context, rawURL string) (*Store, error) {
	var mux dlq.Mux
	for scheme, open := range drivers {
		mux.Register(scheme, open)
	}
	store, err := mux.OpenStore(ctx, rawURL)
	if err != nil {
		return nil, err
	}
	return store.(*Store), nil //nolint:forcetypeassert // our drivers give one
}

// start checks the connection, brings the schema up to date and starts the writer. On an error it closes what was opened.
func (s *Store) start(ctx context.Context) error {
	s.closed = make(chan struct{})
	s.statements.rebind = s.dialect.rebind
	err := s.write.PingContext(ctx)
	if err == nil {
		err = s.dialect.migrate(ctx, s.write)
	}
	if err == nil {
		err = s.dialect.ready(ctx, s.write)
	}
	if err != nil {
		return errors.Join(err, s.closeDB())
	}
	s.writer = startWriter(s, s.writers())
	return nil
}

// writers is how many goroutines write: on a server a second one fills the time in which the first waits for it, or it for the first; a
// database in a file has one writer at a time.
func (s *Store) writers() int {
	if s.write.Stats().MaxOpenConnections == 1 {
		return 1
	}
	return 2
}

// SpoolDir is where a spool beside this store belongs; empty when the store has no place on this machine.
func (s *Store) SpoolDir() string { return s.spoolDir }

// Ping reports whether the store can take a dead letter now: it begins a transaction that can write, and ends it.
func (s *Store) Ping(ctx context.Context) error {
	return s.inTx(ctx, "ping", func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE dlq_counts SET pending = pending WHERE event_type IS NULL")
		return err
	})
}

// Close finishes the writes under way and closes the connections. Closing twice is fine.
func (s *Store) Close() error {
	s.closeOnce.Do(func() {
		close(s.closed)
		s.writer.stop()
		s.closeErr = s.closeDB()
	})
	return s.closeErr
}

func (s *Store) closeDB() error {
	err := s.statements.close()
	if s.read != s.write {
		err = errors.Join(err, s.read.Close())
	}
	return errors.Join(err, s.write.Close())
}

// inTx runs fn in a durable transaction, and says what was tried in the error.
func (s *Store) inTx(ctx context.Context, what string, fn func(*sql.Tx) error) error {
	if err := s.open(what); err != nil {
		return err
	}
	if err := s.dialect.inTx(ctx, s.write, fn); err != nil {
		return fmt.Errorf("sqlstore: %s: %w", what, err)
	}
	return nil
}

func (s *Store) open(what string) error {
	select {
	case <-s.closed:
		return fmt.Errorf("sqlstore: %s: %w", what, dlq.ErrClosed)
	default:
		return nil
	}
}
