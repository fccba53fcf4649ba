package sqlstore

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
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

// Entries that change in the same way share a statement while there are few ways, in any order. With more ways, what is
// compared stays bounded: the statements are more than necessary, and each entry is in one of them.
func TestChanges_Updates(t *testing.T) {
	t.Parallel()
	s := &Store{dialect: sqlite{}}
	for ways, statements := range map[int]int{1: 1, maxUnlike: maxUnlike, maxUnlike + 1: 100} {
		c := changes{store: s}
		for i := range 100 {
			before := &dlq.Entry{ID: int64(i), Version: 1}
			after := *before
			after.Version, after.ErrorMessage = 2, strconv.Itoa(i%ways)
			c.change(before, &after)
		}
		var ids []int64
		updates := c.updates()
		for _, u := range updates {
			ids = append(ids, u.ids...)
			require.Contains(t, u.args, strconv.Itoa(int(u.ids[0])%ways))
		}
		require.Len(t, updates, statements, "%d ways", ways)
		slices.Sort(ids)
		require.Len(t, slices.Compact(ids), 100)
	}
}

// The comparison that is faster excludes nothing that the exact one finds.
func TestSQLite_OutlineOfAText(t *testing.T) {
	t.Parallel()
	s, err := Open(t.Context(), "sqlite::memory:")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	var several strings.Builder
	several.WriteString("sS ß")
	for plain, accented := range accents {
		several.WriteString(string(plain) + accented + strings.ToUpper(string(plain)+accented))
	}
	letters := several.String()
	column := "before " + letters + ` ЖжΣσςİıſKµ 100% _under !bang *[?]* 中文 "quoted" ` + letters + " after"
	for _, text := range []string{
		column, "BEFORE", "100% _UNDER !B", "*[?]*", "中文", "жЖ", "µ", "ſ", "", "e\u0301", letters, strings.ToUpper(letters),
		strings.ToLower(column),
	} {
		var exact, outlined bool
		require.NoError(t, s.read.QueryRowContext(t.Context(), "SELECT ? GLOB ?, ? LIKE ? ESCAPE '!'", column,
			globPattern(text), column, outline(text)).Scan(&exact, &outlined))
		require.True(t, outlined || !exact, text)
	}
	var found bool
	require.NoError(t, s.read.QueryRowContext(t.Context(), "SELECT 'a_b' LIKE ? ESCAPE '!'", outline("xpx")).Scan(&found))
	require.False(t, found, "it excludes something")
}

// What reads every payload that a filter selects reads them in the order in which they are stored.
func TestSQLite_CountReadsBodiesInOrder(t *testing.T) {
	t.Parallel()
	s, err := Open(t.Context(), "sqlite::memory:")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	b := s.selectFrom("dlq_entries", "topic", "count(*)")
	s.whereJoined(b, &dlq.Filter{PayloadText: "x"})
	query, args := b.Build()
	var id, parent, unused int
	var detail string
	require.NoError(t, s.read.QueryRowContext(t.Context(), "EXPLAIN QUERY PLAN "+query, args...).
		Scan(&id, &parent, &unused, &detail))
	require.Equal(t, "SCAN b", detail)
}
