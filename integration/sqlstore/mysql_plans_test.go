package sqlstore_test

import (
	"database/sql"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/integration/services"
)

// On MariaDB and MySQL too, queries for entries read only a few rows, by an index. The servers log every statement and
// how many rows it examined.
func TestMySQL_Plans(t *testing.T) {
	for name, start := range map[string]func(testing.TB, services.MySQLConfig) *services.MySQLServer{
		"MariaDB": services.MariaDB, "MySQL": services.MySQL,
	} {
		t.Run(name, func(t *testing.T) { examineFewRows(t, start(t, services.MySQLConfig{}).Database(t)) })
	}
}

func examineFewRows(t *testing.T, url string) {
	t.Helper()
	s, db := openStore(t, url), openDB(t, url)
	defer s.Close()
	const total = 3000
	end := time.Now().UTC().Truncate(time.Microsecond)
	for n := 0; n < total; n += 500 {
		letters := make([]*dlq.Entry, 500)
		for i := range letters {
			letters[i] = filled(n+i, total, end)
		}
		_, err := s.Put(t.Context(), letters...)
		require.NoError(t, err)
	}
	for _, statement := range []string{
		"ANALYZE TABLE dlq_entries",
		"SET GLOBAL log_output = 'TABLE'", "SET GLOBAL long_query_time = 0", "SET GLOBAL slow_query_log = ON",
	} {
		execute(t, db, statement)
	}
	watched := openStore(t, url) // settings apply to new connections
	defer watched.Close()
	// see the package's Limits: a third of the rows are equal
	sorted := []string{"page of a topic", "page of an event type"}
	for _, r := range reads(total, end) {
		if !strings.Contains(r.name, "page") && !strings.HasPrefix(r.name, "by ") {
			continue // of the statistics
		}
		t.Run(r.name, func(t *testing.T) {
			_, err := db.ExecContext(t.Context(), "TRUNCATE mysql.slow_log")
			require.NoError(t, err)
			n, err := r.call(t.Context(), watched)
			require.NoError(t, err)
			require.NotZero(t, n)
			most := int64(700)
			if slices.Contains(sorted, r.name) {
				most = total
			}
			var examined int64
			var text string
			waitFor(t, "the statement in the log", func() bool {
				return db.QueryRowContext(t.Context(), "SELECT rows_examined, CAST(sql_text AS CHAR) FROM mysql.slow_log"+
					" WHERE sql_text LIKE '%FROM dlq_entries%' ORDER BY rows_examined DESC LIMIT 1").Scan(&examined, &text) == nil
			})
			require.LessOrEqual(t, examined, most, "%s", text)
			t.Logf("%d rows examined for %d", examined, n)
		})
	}
}

// execute runs a statement and discards its rows; ANALYZE has some.
func execute(t *testing.T, db *sql.DB, statement string) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), statement)
	require.NoError(t, err, statement)
	defer func() { require.NoError(t, rows.Close(), statement) }()
	for rows.Next() {
	}
	require.NoError(t, rows.Err(), statement)
}
