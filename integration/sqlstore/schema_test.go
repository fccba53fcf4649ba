package sqlstore_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqtest"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/sqlstore"
)

// A store in a schema, and one with partitions, behaves like every other store, even with as many concurrent stores in
// the database as the suite has tests.
func TestSchema_Conformance(t *testing.T) {
	t.Parallel()
	database := servers["PostgreSQL"](t)
	var stores atomic.Int64
	dlqtest.Run(t, func(t *testing.T) dlqtest.Database {
		t.Helper()
		url := with(database, fmt.Sprintf("readers=2&writers=2&schema=payroll_%d&%s", stores.Add(1), byMonth))
		return func(t *testing.T) dlqtest.Store {
			t.Helper()
			return openStore(t, url)
		}
	})
}

// Stores in one database can be created concurrently, and have independent entries, archives, partitions and indexes,
// also for statements on their views.
func TestSchema_StoresInOneDatabase(t *testing.T) {
	t.Parallel()
	database := servers["PostgreSQL"](t)
	db := openDB(t, database)
	params := []string{
		"readers=1", "schema=payroll", "schema=billing&archive=billing_old",
		"schema=sales&" + byMonth, "schema=hr",
	}
	stores := make([]*sqlstore.Store, len(params))
	faults := make([]error, len(params))
	var opening sync.WaitGroup
	for i, p := range params {
		opening.Go(func() { stores[i], faults[i] = sqlstore.Open(t.Context(), with(database, p)) })
	}
	opening.Wait()
	for i := range stores {
		require.NoError(t, faults[i], params[i])
		defer stores[i].Close()
	}
	for i, s := range stores {
		for n := range i + 1 {
			receipts, err := s.Put(t.Context(), letter(n, time.Now()))
			require.NoError(t, err)
			require.Equal(t, driver.Stored, receipts[0].Result)
		}
	}
	for i, names := range [][2]string{
		{"public", "archive"},
		{"payroll", "payroll_archive"},
		{"billing", "billing_old"},
		{"sales", "sales_archive"},
		{"hr", "hr_archive"},
	} {
		run(t, db, fmt.Sprintf("UPDATE %s.dlq_events SET status = 'RESOLVED' WHERE id = (SELECT max(id) FROM "+
			"%[1]s.dlq_events)", names[0]))
		require.EqualValues(t, 1, run(t, db, fmt.Sprintf(
			"INSERT INTO %[2]s.dlq_events_archive SELECT * FROM %[1]s.dlq_events"+
				" WHERE status = 'RESOLVED'", names[0], names[1])))
		require.EqualValues(t, 1, run(t, db, fmt.Sprintf("DELETE FROM %s.dlq_events WHERE status = 'RESOLVED'", names[0])))
		require.Len(t, rowsOf(t, db, fmt.Sprintf("SELECT 1 FROM %s.dlq_events_archive", names[1])), 1)
		stats, err := stores[i].Stats(t.Context(), dlq.StatsQuery{})
		require.NoError(t, err)
		require.Equal(t, driver.Counts{Pending: int64(i)}, stats.Counts)
		requireCounted(t, stores[i])
	}

	// A purge of one store archives only in that store.
	n, err := stores[3].Purge(t.Context(), dlq.Purge{Actor: "ana", ClosedBefore: time.Now(), At: time.Now()})
	require.NoError(t, err)
	require.Zero(t, n)
	for params, want := range map[string]string{
		"schema=Payroll":                    "lower-case",
		"schema=":                           "lower-case",
		"schema=payroll&search_path=public": "exclude each other",
		"schema=none&migrate=false":         "does not exist",
		"schema=pg_mine":                    "pg_",
	} {
		_, err := sqlstore.Open(t.Context(), with(database, params))
		require.ErrorContains(t, err, want, params)
	}
}

// An application's own pool must use the schema that the URL names.
func TestSchema_OwnPool(t *testing.T) {
	t.Parallel()
	database := servers["PostgreSQL"](t)
	cfg := sqlstore.Config{Dialect: sqlstore.PostgreSQL, Schema: "payroll"}
	_, err := sqlstore.New(t.Context(), openDB(t, database), cfg)
	require.ErrorContains(t, err, "search_path=payroll")
	s, err := sqlstore.New(t.Context(), openDB(t, with(database, "search_path=payroll")), cfg)
	require.NoError(t, err)
	defer s.Close()
	_, err = s.Put(t.Context(), letter(1, time.Now()))
	require.NoError(t, err)
	require.Len(t, rowsOf(t, openDB(t, database), "SELECT 1 FROM payroll.dlq_events"), 1)
	cfg.Dialect = sqlstore.MySQL
	require.ErrorContains(t, cfg.Validate(), "database to itself")
}

// On MySQL and MariaDB a schema is a database: stores on one server are independent.
func TestSchema_DatabasesOfOneServer(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"MariaDB", "MySQL"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			one, other := openStore(t, servers[name](t)), openStore(t, servers[name](t))
			defer one.Close()
			defer other.Close()
			_, err := one.Put(t.Context(), letter(1, time.Now()))
			require.NoError(t, err)
			n, err := other.Count(t.Context(), dlq.Filter{}, 0)
			require.NoError(t, err)
			require.Zero(t, n)
		})
	}
}
