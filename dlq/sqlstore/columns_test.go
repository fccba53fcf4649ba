package sqlstore

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The table of columns matches the migrations: a column in only one of them would be lost in the archive, or never
// read.
func TestColumns_AreThoseOfTheSchema(t *testing.T) {
	t.Parallel()
	s, err := Open(t.Context(), "sqlite::memory:")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	of := func(table string) (names []string) {
		rows, err := s.read.QueryContext(t.Context(), "SELECT name FROM pragma_table_info('"+table+"')")
		require.NoError(t, err)
		defer rows.Close()
		for rows.Next() {
			var name string
			require.NoError(t, rows.Scan(&name))
			names = append(names, name)
		}
		require.NoError(t, rows.Err())
		return names
	}
	archived := strings.Split(archiveColumns, ", ")
	require.ElementsMatch(t, append([]string{"id"}, entryColumns...), of("dlq_entries"))
	require.ElementsMatch(t, bodyColumns, of("dlq_bodies"))
	require.ElementsMatch(t, bodyColumns, of("dlq_bodies_archive"))
	require.ElementsMatch(t, archived, of("dlq_events"))
	require.ElementsMatch(t, append(slices.Clone(archived), "archived_at"), of("dlq_events_archive"))
}
