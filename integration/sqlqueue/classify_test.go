package sqlqueue_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/middleware"
)

// Database errors of a handler's statements are classified by the numbers and codes of each database.
func TestClassify_ErrorsOfRealDatabases(t *testing.T) {
	t.Parallel()
	onEach(t, errorsAreClassified)
}

func errorsAreClassified(t *testing.T, url string) {
	t.Helper()
	db := openDB(t, url)
	for _, statement := range []string{
		"CREATE TABLE companies (id INT PRIMARY KEY)",
		"CREATE TABLE employees (id INT PRIMARY KEY, name VARCHAR(5) NOT NULL, age INT, company INT, CHECK (age > 15), " +
			"FOREIGN KEY (company) REFERENCES companies (id))",
		"INSERT INTO employees (id, name) VALUES (1, 'ana'), (2, 'bob')",
	} {
		_, err := db.ExecContext(t.Context(), statement)
		require.NoError(t, err)
	}
	classifier, err := middleware.NewClassifier()
	require.NoError(t, err)
	ended := middleware.KindRetryable
	if strings.HasPrefix(url, "mysql:") {
		// the driver's "invalid connection" has neither a number nor a type; unknown errors are retried
		ended = middleware.KindUnknown
	}
	for name, c := range map[string]struct {
		kind middleware.Kind
		fail func(t *testing.T, db *sql.DB) error
	}{
		"duplicate":     {middleware.KindPermanent, statement("INSERT INTO employees (id, name) VALUES (1, 'eva')")},
		"missing value": {middleware.KindPermanent, statement("INSERT INTO employees (id, name) VALUES (3, NULL)")},
		"check": {
			middleware.KindPermanent,
			statement("INSERT INTO employees (id, name, age) VALUES (3, 'eva', 15)"),
		},
		"too long": {
			middleware.KindPermanent,
			statement("INSERT INTO employees (id, name) VALUES (3, 'evangelina')"),
		},
		"not a number": {
			middleware.KindPermanent,
			statement("INSERT INTO employees (id, name, age) VALUES (3, 'eva', 'old')"),
		},
		"out of range": {
			middleware.KindPermanent,
			statement("INSERT INTO employees (id, name, age) VALUES (3, 'eva', 99999999999)"),
		},
		"no such table":    {middleware.KindPermanent, statement("SELECT 1 FROM missing")},
		"no such column":   {middleware.KindPermanent, statement("SELECT nothing FROM employees")},
		"no such function": {middleware.KindPermanent, statement("SELECT nothing_of_that_name()")},
		"syntax":           {middleware.KindPermanent, statement("SELEKT 1")},
		"no company yet": {
			middleware.KindRetryable,
			statement("INSERT INTO employees (id, name, company) VALUES (3, 'eva', 7)"),
		},
		"read-only": {middleware.KindRetryable, readOnly},
		"lock not available": {middleware.KindRetryable, func(t *testing.T, db *sql.DB) error {
			t.Helper()
			locked(t, db, 1)
			return run(t, db, "SELECT 1 FROM employees WHERE id = 1 FOR UPDATE NOWAIT")
		}},
		"deadlock":         {middleware.KindRetryable, deadlock},
		"takes too long":   {middleware.KindRetryable, tooLong(url)},
		"connection ended": {ended, killed(url)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := c.fail(t, db)
			require.Error(t, err)
			require.Equal(t, c.kind, classifier.Classify(err).Kind, "%v", err)
		})
	}
}

func statement(query string) func(t *testing.T, db *sql.DB) error {
	return func(t *testing.T, db *sql.DB) error { t.Helper(); return run(t, db, query) }
}

// run runs a statement to the end of its rows.
func run(t *testing.T, db interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}, query string,
) error {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), query)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
	}
	return rows.Err()
}

// locked starts a transaction that keeps a row locked until the test ends.
func locked(t *testing.T, db *sql.DB, id int) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(context.WithoutCancel(t.Context()), nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback() }) // a deadlock may have ended it
	_, err = tx.ExecContext(t.Context(), "UPDATE employees SET age = age WHERE id = "+string(rune('0'+id)))
	require.NoError(t, err)
	return tx
}

func readOnly(t *testing.T, db *sql.DB) error {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), &sql.TxOptions{ReadOnly: true})
	require.NoError(t, err)
	defer func() { require.NoError(t, tx.Rollback()) }()
	_, err = tx.ExecContext(t.Context(), "INSERT INTO companies VALUES (1)")
	return err
}

// deadlock returns the error of the transaction that the database aborts.
func deadlock(t *testing.T, db *sql.DB) error {
	t.Helper()
	for _, query := range []string{
		"CREATE TABLE pair (id INT PRIMARY KEY, n INT)",
		"INSERT INTO pair VALUES (1, 0), (2, 0)",
	} {
		require.NoError(t, run(t, db, query))
	}
	change := func(tx *sql.Tx, id string) error {
		_, err := tx.ExecContext(t.Context(), "UPDATE pair SET n = n + 1 WHERE id = "+id)
		return err
	}
	var both [2]*sql.Tx
	for i, id := range []string{"1", "2"} {
		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		require.NoError(t, change(tx, id))
		both[i] = tx
	}
	other := make(chan error, 1)
	go func() {
		err := change(both[0], "2")
		if err != nil {
			_ = both[0].Rollback() // the database has rolled it back
		}
		other <- err
	}()
	err := change(both[1], "1")
	_ = both[1].Rollback() // the other transaction waits for it
	if err == nil {
		return <-other
	}
	require.NoError(t, <-other)
	require.NoError(t, both[0].Rollback())
	return err
}

// tooLong returns the error of a statement that the server ends after 20 ms.
func tooLong(url string) func(t *testing.T, db *sql.DB) error {
	const endless = " count(*) FROM information_schema.columns a, information_schema.columns b, " +
		"information_schema.columns c"
	return func(t *testing.T, db *sql.DB) error {
		t.Helper()
		tx, err := db.BeginTx(t.Context(), nil) // its settings must not return to the shared pool
		require.NoError(t, err)
		defer func() { require.NoError(t, tx.Rollback()) }()
		switch {
		case !strings.HasPrefix(url, "mysql:"):
			require.NoError(t, run(t, tx, "SET LOCAL statement_timeout = 20"))
		case strings.Contains(version(t, db), "MariaDB"):
			return run(t, tx, "SET STATEMENT max_statement_time = 0.02 FOR SELECT"+endless)
		}
		return run(t, tx, "SELECT /*+ MAX_EXECUTION_TIME(20) */"+endless)
	}
}

// killed returns the error of a transaction whose connection is killed.
func killed(url string) func(t *testing.T, db *sql.DB) error {
	return func(t *testing.T, db *sql.DB) error {
		t.Helper()
		whoAmI, kill := "pg_backend_pid()", "SELECT pg_terminate_backend("
		if strings.HasPrefix(url, "mysql:") {
			whoAmI, kill = "concat(connection_id())", "KILL ("
		}
		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		defer func() { _ = tx.Rollback() }() // it has no connection
		var id string
		require.NoError(t, tx.QueryRowContext(t.Context(), "SELECT "+whoAmI).Scan(&id))
		require.NoError(t, run(t, db, kill+id+")"))
		_, err = tx.ExecContext(t.Context(), "INSERT INTO companies VALUES (2)")
		return err
	}
}

func version(t *testing.T, db *sql.DB) (text string) {
	t.Helper()
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT version()").Scan(&text))
	return text
}
