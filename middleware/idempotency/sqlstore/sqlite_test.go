package sqlstore_test

import (
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/redrive-go/redrive/middleware"
	"github.com/redrive-go/redrive/middleware/idempotency"
	"github.com/redrive-go/redrive/middleware/idempotency/sqlstore"
	"github.com/redrive-go/redrive/middleware/idempotency/storetest"
)

func openFile(t *testing.T, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_txlock=immediate")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	// It switches a new file's journal to a write-ahead log. Connections that do so concurrently fail at once: SQLite
	// ignores busy_timeout there.
	require.NoError(t, db.PingContext(t.Context()))
	return db
}

func openStore(t *testing.T) (*sqlstore.Store, *sql.DB) {
	t.Helper()
	db := openFile(t, filepath.Join(t.TempDir(), "processed.db"))
	s, err := sqlstore.New(t.Context(), db, sqlstore.SQLite)
	require.NoError(t, err)
	return s, db
}

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) idempotency.Store {
		t.Helper()
		s, _ := openStore(t)
		return s
	})
}

func TestNew_TenAtOnceCreateOneTable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "processed.db")
	faults := make([]error, 10)
	var processes sync.WaitGroup
	for i := range faults {
		db := openFile(t, path)
		processes.Go(func() { _, faults[i] = sqlstore.New(t.Context(), db, sqlstore.SQLite) })
	}
	processes.Wait()
	require.NoError(t, errors.Join(faults...))
}

func TestNew_UnknownDialect(t *testing.T) {
	_, err := sqlstore.New(t.Context(), nil, "oracle")
	require.ErrorContains(t, err, "known are postgres, mysql, sqlite")
}

var errBoom = errors.New("boom")

// The effect and its record are one transaction: a failure between them undoes both, and a duplicate finds both.
func TestInTx_EffectHappensOnce(t *testing.T) {
	s, db := openStore(t)
	_, err := db.ExecContext(t.Context(), "CREATE TABLE charges (id TEXT)")
	require.NoError(t, err)
	g, err := idempotency.New(idempotency.Config{Store: s, Consumer: "billing"})
	require.NoError(t, err)
	fail := errBoom
	h := g.Middleware(func(m *message.Message) ([]*message.Message, error) {
		return nil, s.InTx(m.Context(), func(tx *sql.Tx) error {
			_, err := tx.ExecContext(m.Context(), "INSERT INTO charges VALUES (?)", m.UUID)
			return errors.Join(err, fail)
		})
	})
	charges := func() (n int) {
		require.NoError(t, db.QueryRowContext(t.Context(), "SELECT count(*) FROM charges").Scan(&n))
		return n
	}
	_, err = h(message.NewMessage("1", nil))
	require.ErrorIs(t, err, errBoom)
	require.Zero(t, charges())

	fail = nil
	for range 3 {
		_, err = h(message.NewMessage("1", nil))
		require.NoError(t, err)
	}
	require.Equal(t, 1, charges())
}

// An owner whose lease ended during its work cannot commit: another one may have.
func TestInTx_LostClaimUndoesTheEffect(t *testing.T) {
	s, db := openStore(t)
	_, err := db.ExecContext(t.Context(), "CREATE TABLE charges (id TEXT)")
	require.NoError(t, err)
	g, err := idempotency.New(idempotency.Config{Store: s, Consumer: "billing"})
	require.NoError(t, err)
	_, err = g.Middleware(func(m *message.Message) ([]*message.Message, error) {
		claim, _ := idempotency.ClaimFrom(m.Context())
		require.NoError(t, s.Release(t.Context(), claim.Key, claim.Owner))
		_, err := s.Claim(t.Context(), claim.Key, claim.Owner+1, time.Minute)
		require.NoError(t, err)
		return nil, s.InTx(m.Context(), func(tx *sql.Tx) error {
			_, err := tx.ExecContext(m.Context(), "INSERT INTO charges VALUES (?)", m.UUID)
			return err
		})
	})(message.NewMessage("1", nil))
	require.ErrorIs(t, err, idempotency.ErrLost)
	var n int
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT count(*) FROM charges").Scan(&n))
	require.Zero(t, n)
}

func TestInTx_OutsideOfAGuard(t *testing.T) {
	s, _ := openStore(t)
	require.ErrorContains(t, s.InTx(t.Context(), func(*sql.Tx) error { return nil }),
		"not that of a message under a guard")
}

func TestPurge_RemovesExpiredMessages(t *testing.T) {
	s, db := openStore(t)
	for i, retention := range []time.Duration{0, time.Hour} {
		key := idempotency.Key{Consumer: "c", MessageID: string(rune('a' + i))}
		_, err := s.Claim(t.Context(), key, 1, time.Minute)
		require.NoError(t, err)
		require.NoError(t, s.Complete(t.Context(), key, 1, nil, retention))
	}
	require.Eventually(t, func() bool {
		_, err := s.Purge(t.Context())
		require.NoError(t, err)
		var n int
		require.NoError(t, db.QueryRowContext(t.Context(), "SELECT count(*) FROM redrive_processed").Scan(&n))
		return n == 1
	}, 2*time.Minute, 5*time.Millisecond)
}

// The messages that a handler produces are kept for its duplicates, whether its transaction has named them or not.
func TestCompleteTx_KeepsProducedMessages(t *testing.T) {
	for name, named := range map[string]bool{"NamedInTheTransaction": true, "NotNamed": false} {
		t.Run(name, func(t *testing.T) {
			s, db := openStore(t)
			g, err := idempotency.New(idempotency.Config{Store: s, Consumer: "billing"})
			require.NoError(t, err)
			runs := 0
			h := g.Middleware(func(m *message.Message) ([]*message.Message, error) {
				runs++
				out := []*message.Message{message.NewMessage("invoice", []byte("of "+m.UUID))}
				tx, err := db.BeginTx(m.Context(), nil)
				require.NoError(t, err)
				if named {
					require.NoError(t, s.CompleteTx(m.Context(), tx, out...))
				} else {
					require.NoError(t, s.CompleteTx(m.Context(), tx))
				}
				return out, tx.Commit()
			})
			for range 3 {
				out, err := h(message.NewMessage("1", nil))
				require.NoError(t, err)
				require.Len(t, out, 1)
				require.Equal(t, "invoice", out[0].UUID)
				require.Equal(t, "of 1", string(out[0].Payload))
			}
			require.Equal(t, 1, runs)
		})
	}
}

// A commit whose answer is lost has marked the message all the same. The failure counted as an attempt, and the last
// one made a dead letter of a message whose effect had happened.
func TestCompleteTx_CommitWithoutAnAnswer(t *testing.T) {
	permanent := middleware.Permanent(errBoom)
	lost := middleware.Defer(fmt.Errorf("%w: %w", idempotency.ErrLost, idempotency.ErrLost), 5*time.Second)
	for name, c := range map[string]struct {
		end   func(*sql.Tx) error
		fault error    // of the handler
		want  [2]error // of the delivery, and of its duplicate
		runs  int
	}{
		"Stored":    {end: (*sql.Tx).Commit, fault: errBoom, runs: 1},
		"NotStored": {end: (*sql.Tx).Rollback, fault: errBoom, want: [2]error{errBoom, errBoom}, runs: 2},
		// the handler leaves its transaction to the end of its context
		"Open": {end: func(*sql.Tx) error { return nil }, fault: errBoom, want: [2]error{errBoom, errBoom}, runs: 2},
		// the handler wants a dead letter, although its effect has happened
		"Permanent": {end: (*sql.Tx).Commit, fault: permanent, want: [2]error{permanent, nil}, runs: 1},
		// its second transaction has found another owner
		"Lost": {end: (*sql.Tx).Rollback, fault: idempotency.ErrLost, want: [2]error{lost, lost}, runs: 2},
	} {
		t.Run(name, func(t *testing.T) {
			s, db := openStore(t)
			g, err := idempotency.New(idempotency.Config{Store: s, Consumer: "billing"})
			require.NoError(t, err)
			runs := 0
			h := g.Middleware(func(m *message.Message) ([]*message.Message, error) {
				runs++
				out := []*message.Message{message.NewMessage("invoice", nil)}
				tx, err := db.BeginTx(m.Context(), nil)
				require.NoError(t, err)
				require.NoError(t, s.CompleteTx(m.Context(), tx, out...))
				require.NoError(t, c.end(tx))
				return out, c.fault
			})
			for _, want := range c.want {
				out, err := h(message.NewMessage("1", nil))
				require.Equal(t, want, err)
				require.Len(t, out, 1)
			}
			require.Equal(t, c.runs, runs)
		})
	}
}

// An application's pool has no busy_timeout by default. While another writer took longer than the guard's three tries,
// a handled message was not marked, and a duplicate ran the handler again.
func TestComplete_WaitsForOtherWriters(t *testing.T) {
	path := filepath.Join(t.TempDir(), "processed.db")
	synctest.Test(t, func(t *testing.T) {
		_, g, writer := besideAWriter(t, path)
		runs := 0
		h := g.Middleware(func(*message.Message) ([]*message.Message, error) {
			if runs++; runs == 1 {
				_, err := writer.ExecContext(t.Context(), "BEGIN IMMEDIATE")
				require.NoError(t, err)
				time.AfterFunc(3*time.Second, func() { _, _ = writer.ExecContext(t.Context(), "ROLLBACK") })
			}
			return nil, nil
		})
		for range 2 {
			_, err := h(message.NewMessage("1", nil))
			require.NoError(t, err)
		}
		require.Equal(t, 1, runs)
	})
}

// besideAWriter opens a store, a guard, and a connection for another writer of the file.
func besideAWriter(t *testing.T, source string) (*sqlstore.Store, *idempotency.Guard, *sql.Conn) {
	t.Helper()
	db, err := sql.Open("sqlite", source)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	s, err := sqlstore.New(t.Context(), db, sqlstore.SQLite)
	require.NoError(t, err)
	g, err := idempotency.New(idempotency.Config{Store: s, Consumer: "billing"})
	require.NoError(t, err)
	writer, err := db.Conn(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, writer.Close()) })
	return s, g, writer
}

// While another process wrote for longer than busy_timeout, the attempts of a handler failed before it had done
// anything.
func TestInTx_WaitsForOtherWriters(t *testing.T) {
	path := filepath.Join(t.TempDir(), "processed.db")
	synctest.Test(t, func(t *testing.T) {
		s, g, writer := besideAWriter(t, "file:"+path+"?_txlock=immediate&_pragma=journal_mode(wal)")
		_, err := g.Middleware(func(m *message.Message) ([]*message.Message, error) {
			_, err := writer.ExecContext(t.Context(), "BEGIN IMMEDIATE")
			require.NoError(t, err)
			time.AfterFunc(30*time.Second, func() { _, _ = writer.ExecContext(t.Context(), "ROLLBACK") })
			return nil, s.InTx(m.Context(), func(*sql.Tx) error { return nil })
		})(message.NewMessage("1", nil))
		require.NoError(t, err)
		time.Sleep(time.Second) // virtual: a renewal that was waiting for the writer ends
		synctest.Wait()
	})
}
