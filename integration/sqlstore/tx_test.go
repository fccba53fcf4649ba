package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/sqlstore"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/await"
)

func death(n int) *envelope.DeadLetter {
	m := message.NewMessage("uuid", []byte(`{"cpf":"1"}`))
	m.Metadata[envelope.KeyMessageID] = "event-" + string(rune('a'+n))
	return &envelope.DeadLetter{
		Message: m, Reason: envelope.ReasonPermanent, Err: envelope.Error{Message: "CPF inválido"}, Handler: "validate",
		At:     time.Now(),
		Origin: envelope.Origin{Broker: "kafka", Topic: "employee-create", Consumer: "esocial"},
	}
}

// The state change and the dead letter are in one transaction; a transaction that the failing handler has aborted is
// not used, and no letter is lost.
func TestContextWithTx(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, url string) {
		t.Helper()
		db := openDB(t, url)
		_, err := db.ExecContext(t.Context(), "CREATE TABLE employees (id INT PRIMARY KEY)")
		require.NoError(t, err)
		letters, err := dlq.Open(t.Context(), url, dlq.WithSpool(t.TempDir()), dlq.WithStoreTimeout(await.Patience))
		require.NoError(t, err)
		defer func() { require.NoError(t, letters.Close()) }()
		count := func() int64 {
			n, err := letters.Store().Count(t.Context(), dlq.Filter{}, 0)
			require.NoError(t, err)
			stats, err := letters.Store().Stats(t.Context(), dlq.StatsQuery{})
			require.NoError(t, err)
			require.Equal(t, n, stats.Counts.Pending, "entries that were not counted in a transaction are counted")
			return n
		}

		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		_, err = tx.ExecContext(t.Context(), "INSERT INTO employees VALUES (1)")
		require.NoError(t, err)
		require.NoError(t, letters.DeadLetter(dlq.ContextWithTx(t.Context(), tx), death(0)))
		require.Zero(t, count(), "not committed yet")
		// The open transaction blocks nothing, although its letter belongs to the same group.
		require.NoError(t, letters.DeadLetter(t.Context(), death(1)))
		require.Equal(t, int64(1), count())
		require.NoError(t, tx.Commit())
		require.Equal(t, int64(2), count())

		tx, err = db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		require.NoError(t, letters.DeadLetter(dlq.ContextWithTx(t.Context(), tx), death(2)))
		require.NoError(t, tx.Rollback())
		require.Equal(t, int64(2), count())

		// On PostgreSQL a failed statement aborts the transaction: the letter gets a separate one. On MySQL it does not.
		tx, err = db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		_, err = tx.ExecContext(t.Context(), "INSERT INTO employees VALUES (1)")
		require.Error(t, err)
		require.NoError(t, letters.DeadLetter(dlq.ContextWithTx(t.Context(), tx), death(3)))
		_ = tx.Commit() // PostgreSQL rolls back instead, and reports that
		require.Equal(t, int64(3), count())
		require.Zero(t, letters.Stats().Appended, "the spool was not needed")
	})
}

// Entries that were not counted in transactions are counted once, however many readers the statistics have.
func TestPutTx_CountedOnce(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, url string) {
		t.Helper()
		db := openDB(t, url)
		stores := []*sqlstore.Store{openStore(t, url), openStore(t, url)}
		const rounds, viewers = 6, 8
		for round := range rounds {
			tx, err := db.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			for i := range 20 {
				_, err = stores[0].PutTx(t.Context(), tx, letter(round*20+i, time.Now()))
				require.NoError(t, err)
			}
			require.NoError(t, tx.Commit())
			begin := make(chan struct{})
			counts, faults := make([]int64, viewers), make([]error, viewers)
			var looking sync.WaitGroup
			for v := range viewers {
				looking.Go(func() {
					<-begin
					counts[v], faults[v] = stores[v%2].Count(t.Context(), dlq.Filter{}, 0)
				})
			}
			close(begin)
			looking.Wait()
			require.NoError(t, errors.Join(faults...))
			for _, n := range counts {
				require.Equal(t, int64(20*(round+1)), n)
			}
		}
		for _, s := range stores {
			require.NoError(t, s.Close())
		}
	})
}

// A transaction of the application that stays open delays no reader of the statistics.
func TestPutTx_AnOpenOneDelaysNoStatistics(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, url string) {
		t.Helper()
		db, s := openDB(t, url), openStore(t, url)
		defer s.Close()
		begin := func(n int) *sql.Tx {
			tx, err := db.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			_, err = s.PutTx(t.Context(), tx, letter(n, time.Now()))
			require.NoError(t, err)
			return tx
		}
		stored := int64(0)
		count := func() {
			n, err := s.Count(t.Context(), dlq.Filter{}, 0)
			require.NoError(t, err)
			require.Equal(t, stored, n)
		}
		for _, committed := range []int{1, 300} { // InnoDB may scan a small table instead of looking up many rows
			first := begin(1000 * committed)
			for n := range committed {
				require.NoError(t, begin(1000*committed+n+1).Commit())
				stored++
			}
			last := begin(1000*committed + committed + 1)
			count()
			require.NoError(t, first.Commit())
			require.NoError(t, last.Rollback())
			stored++
			count()
		}
	})
}

// A letter that PutTx cannot store does not change the caller's transaction.
func TestPutTx_FailureLeavesTheTransaction(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, url string) {
		t.Helper()
		db := openDB(t, url)
		s := openStore(t, url)
		defer s.Close()
		for _, statement := range []string{
			"CREATE TABLE employees (id INT PRIMARY KEY)",
			"ALTER TABLE dlq_bodies RENAME TO gone",
		} {
			_, err := db.ExecContext(t.Context(), statement)
			require.NoError(t, err)
		}
		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		_, err = tx.ExecContext(t.Context(), "INSERT INTO employees VALUES (1)")
		require.NoError(t, err)
		_, err = s.PutTx(t.Context(), tx, letter(1, time.Now()))
		require.ErrorContains(t, err, "dlq_bodies")
		_, err = s.PutTx(t.Context(), nil, letter(1, time.Now()))
		require.ErrorIs(t, err, dlq.ErrInvalid)
		require.NoError(t, tx.Commit())
		require.Len(t, rowsOf(t, db, "SELECT id FROM employees"), 1)
		require.Empty(t, rowsOf(t, db, "SELECT id FROM dlq_entries"))
	})
}

// A deadlock in PutTx ends the whole transaction on MySQL, whose session then commits each statement: the caller's
// commit must fail, because what it did before is gone. PostgreSQL continues at the savepoint.
func TestPutTx_DeadlockEndsTheTransaction(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"MariaDB", "MySQL"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			deadlockEndsTheTransaction(t, servers[name](t))
		})
	}
}

func deadlockEndsTheTransaction(t *testing.T, url string) {
	t.Helper()
	db := openDB(t, url)
	s := openStore(t, url)
	defer s.Close()
	_, err := db.ExecContext(t.Context(), "CREATE TABLE employees (id INT PRIMARY KEY)")
	require.NoError(t, err)
	heavy, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	for i := range 200 { // of two transactions in a deadlock, the one with fewer changes is rolled back
		_, err = heavy.ExecContext(t.Context(), "INSERT INTO employees VALUES (?)", i)
		require.NoError(t, err)
	}
	_, err = s.PutTx(t.Context(), heavy, letter(1, time.Now()))
	require.NoError(t, err)
	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	_, err = tx.ExecContext(t.Context(), "INSERT INTO employees VALUES (1000)")
	require.NoError(t, err)
	waiting := make(chan error, 1)
	go func() {
		_, err := heavy.ExecContext(context.WithoutCancel(t.Context()), "INSERT INTO employees VALUES (1000)")
		waiting <- err
	}()
	_, err = s.PutTx(t.Context(), tx, letter(1, time.Now()))
	require.ErrorContains(t, err, "eadlock")
	require.NoError(t, <-waiting)
	require.ErrorIs(t, tx.Commit(), sql.ErrTxDone)
	require.NoError(t, heavy.Commit())
	require.Len(t, rowsOf(t, db, "SELECT id FROM dlq_entries"), 1)
}

// Our transactions are durable even if the database's default is not.
func TestPostgres_SynchronousCommit(t *testing.T) {
	t.Parallel()
	url := servers["PostgreSQL"](t)
	db := openDB(t, url)
	_, err := db.ExecContext(t.Context(), "DO $$ BEGIN EXECUTE 'ALTER DATABASE ' || current_database() || ' SET "+
		"synchronous_commit = off'; END $$")
	require.NoError(t, err)
	s, err := sqlstore.Open(context.Background(), url)
	require.NoError(t, err)
	defer s.Close()
	fresh := openDB(t, url)
	require.Equal(t, [][]any{{"off"}}, rowsOf(t, fresh, "SHOW synchronous_commit"))
	// The trigger records the setting of the transaction that stores.
	for _, statement := range []string{
		"CREATE TABLE seen (setting TEXT)",
		`CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO seen VALUES (current_setting('synchronous_commit')); RETURN NEW; END $$`,
		"CREATE TRIGGER note AFTER INSERT OR UPDATE ON dlq_entries FOR EACH ROW EXECUTE FUNCTION note()",
	} {
		_, err = fresh.ExecContext(t.Context(), statement)
		require.NoError(t, err)
	}
	receipts, err := s.Put(t.Context(), letter(1, time.Now()))
	require.NoError(t, err)
	_, err = s.Change(t.Context(), driver.Change{
		Action: driver.ActionResolve, IDs: []int64{receipts[0].ID}, Actor: "ana",
		At: time.Now(),
	})
	require.NoError(t, err)
	tx, err := fresh.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	_, err = s.PutTx(t.Context(), tx, letter(2, time.Now()))
	require.NoError(t, err)
	require.NoError(t, tx.Commit())
	_, err = s.Put(t.Context(), letter(3, time.Now()), letter(4, time.Now()))
	require.NoError(t, err)
	require.Equal(t, [][]any{{"on"}, {"on"}, {"on"}, {"on"}, {"on"}}, rowsOf(t, fresh, "SELECT setting FROM seen"))
}
