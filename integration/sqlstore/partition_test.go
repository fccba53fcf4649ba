package sqlstore_test

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/sqlstore"
)

const byMonth = "partition=month"

// oldLetters stores n old letters, and resolves all except every twentieth. It returns the ids of both kinds.
func oldLetters(t *testing.T, s *sqlstore.Store, n int) (closed, waiting []int64) {
	t.Helper()
	at := time.Now().AddDate(0, 0, -200)
	for i := range n {
		receipts, err := s.Put(t.Context(), letter(i, at.Add(time.Duration(i)*(time.Minute+1537*time.Microsecond))))
		require.NoError(t, err)
		if i%20 == 7 {
			waiting = append(waiting, receipts[0].ID)
		} else {
			closed = append(closed, receipts[0].ID)
		}
	}
	_, err := s.Change(t.Context(), driver.Change{
		Action: driver.ActionResolve, IDs: closed, Actor: "ana",
		At: at.AddDate(0, 0, 3),
	})
	require.NoError(t, err)
	return closed, waiting
}

// The tables of an existing store become the first partition, even if processes start concurrently while others store
// letters; nothing is lost, and an earlier delivery is still the same entry.
func TestPartition_ExistingStore(t *testing.T) {
	t.Parallel()
	url := servers["PostgreSQL"](t)
	s, db := openStore(t, url), openDB(t, url)
	defer s.Close()
	closed, waiting := oldLetters(t, s, 100)
	kept := rowsOf(t, db, "SELECT * FROM dlq_events ORDER BY id")
	columns := rowsOf(t, db, "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = "+
		"'dlq_events' ORDER BY ordinal_position")

	faults := make([]error, 6)
	var processes sync.WaitGroup
	for i := range faults {
		processes.Go(func() {
			if i%2 == 0 { // a store that is already open is still in use
				_, faults[i] = s.Put(t.Context(), letter(1000+i, time.Now()))
				return
			}
			other, err := sqlstore.Open(t.Context(), with(url, "writers=2&readers=1&"+byMonth))
			if err == nil {
				_, err = other.Put(t.Context(), letter(1000+i, time.Now()))
				err = errors.Join(err, other.Close())
			}
			faults[i] = err
		})
	}
	processes.Wait()
	require.NoError(t, errors.Join(faults...))

	require.Equal(t, kept, rowsOf(t, db, "SELECT * FROM dlq_events WHERE event_id NOT LIKE 'event-1___' ORDER BY id"))
	require.Equal(t, columns, rowsOf(t, db,
		"SELECT column_name, data_type FROM information_schema.columns WHERE table_name = 'dlq_events' ORDER BY "+
			"ordinal_position"))
	require.Equal(t, [][]any{{int64(106)}}, rowsOf(t, db, "SELECT count(*) FROM dlq_events"))
	for _, table := range []string{"dlq_entries", "dlq_bodies"} {
		require.Equal(t, [][]any{{int64(100)}}, rowsOf(t, db, "SELECT least(100, count(*)) FROM "+table+"_before"), table)
		require.Equal(t, [][]any{{int64(0)}}, rowsOf(t, db, "SELECT count(*) FROM "+table+"_other"), table)
	}
	for _, name := range []string{
		"idx_dlq_status", "idx_dlq_created_at", "idx_dlq_event_type", "dlq_entries_pkey",
		"dlq_bodies_pkey",
	} {
		require.Equal(t, [][]any{{"I"}}, rowsOf(t, db, "SELECT relkind::text FROM pg_class WHERE relname = $1", name), name)
	}

	receipts, err := s.Put(t.Context(), letter(7, time.Now()), letter(2000, time.Now()))
	require.NoError(t, err)
	require.Equal(t, driver.Receipt{ID: waiting[0], Result: driver.Seen}, receipts[0],
		"one row per delivery, in any month")
	require.Equal(t, time.Now().UTC().Format("200601"), driver.FormatID(receipts[1].ID)[:6], "an id starts with its month")
	e, err := s.Get(t.Context(), closed[3])
	require.NoError(t, err)
	require.NotEmpty(t, e.Body.Payload)
	requireCounted(t, s)
}

// requireCounted compares the stored statistics with a count.
func requireCounted(t *testing.T, s *sqlstore.Store) {
	t.Helper()
	query := dlq.StatsQuery{Since: time.Now().AddDate(-1, 0, 0), Now: time.Now()}
	before, err := s.Stats(t.Context(), query)
	require.NoError(t, err)
	groups, err := s.Groups(t.Context(), dlq.GroupQuery{})
	require.NoError(t, err)
	require.NoError(t, s.Recount(t.Context()))
	after, err := s.Stats(t.Context(), query)
	require.NoError(t, err)
	counted, err := s.Groups(t.Context(), dlq.GroupQuery{})
	require.NoError(t, err)
	require.Equal(t, after, before)
	for i := range groups {
		require.Equal(t, counted[i].Counts, groups[i].Counts)
	}
}

// Retention drops a month in which nearly all entries are closed and old: they are archived first, open entries are
// kept, and the deliveries' keys are free again.
func TestPartition_Retention(t *testing.T) {
	t.Parallel()
	url := servers["PostgreSQL"](t)
	old := openStore(t, url)
	closed, waiting := oldLetters(t, old, 400)
	require.NoError(t, old.Close())
	s, db := openStore(t, with(url, byMonth)), openDB(t, url)
	defer s.Close()
	payloads := rowsOf(t, db, "SELECT id, payload, headers FROM dlq_events WHERE status = 'RESOLVED' ORDER BY id")
	seen := rowsOf(t, db, "SELECT fingerprint, first_seen, last_seen FROM dlq_groups ORDER BY 1")

	manager, err := dlq.NewManager(dlq.ManagerConfig{Store: s})
	require.NoError(t, err)
	n, err := manager.Retain(t.Context(), dlq.Retention{Resolved: 365 * 24 * time.Hour})
	require.NoError(t, err)
	require.Zero(t, n, "not that old")
	n, err = manager.Retain(t.Context(), dlq.Retention{Resolved: 90 * 24 * time.Hour})
	require.NoError(t, err)
	require.Equal(t, len(closed), n)
	require.Equal(t, [][]any{{nil}}, rowsOf(t, db, "SELECT to_regclass('dlq_entries_before')::text"),
		"the partition was dropped")

	require.Equal(t, payloads, rowsOf(t, db, "SELECT id, payload, headers FROM archive.dlq_events_archive ORDER BY id"),
		"C35")
	listing, err := s.List(t.Context(), dlq.Filter{}, dlq.Page{Limit: 100, Order: driver.OldestFirst})
	require.NoError(t, err)
	var left []int64
	for _, e := range listing.Entries {
		left = append(left, e.ID)
		full, err := s.Get(t.Context(), e.ID)
		require.NoError(t, err)
		require.NotEmpty(t, full.Body.Payload)
	}
	require.Equal(t, waiting, left, "open entries are never purged")
	require.Equal(t, [][]any{{int64(0)}}, rowsOf(t, db, "SELECT sum(resolution_ms)::bigint FROM dlq_counts"),
		"exact to the millisecond of each entry")
	requireCounted(t, s)
	require.Equal(t, seen, rowsOf(t, db, "SELECT fingerprint, first_seen, last_seen FROM dlq_groups ORDER BY 1"))
	require.Len(t, rowsOf(t, db, "SELECT 1 FROM dlq_keys"), len(waiting))
	records, _, err := s.Audit(t.Context(), dlq.AuditFilter{Action: driver.ActionPurge}, dlq.Page{})
	require.NoError(t, err)
	require.Len(t, records, 1)
	require.Equal(t, map[string]string{"month": "before", "entries": "380", "kept": "20"}, records[0].Detail)

	receipts, err := s.Put(t.Context(), letter(0, time.Now()), letter(7, time.Now()))
	require.NoError(t, err)
	require.Equal(t, driver.Stored, receipts[0].Result)
	require.Equal(t, driver.Receipt{ID: waiting[0], Result: driver.Seen}, receipts[1])
	back, err := manager.Unarchive(t.Context(), dlq.By{Actor: "ana"}, closed[5:8]...)
	require.NoError(t, err)
	require.Equal(t, closed[5:8], back)
	e, err := s.Get(t.Context(), closed[5])
	require.NoError(t, err)
	require.NotEmpty(t, e.Body.Payload)
	requireCounted(t, s)
}

// A month is dropped if at most one entry is kept for ten that are removed, whether because it is open or was closed
// recently. The statistics of ANALYZE make no difference.
func TestPartition_WorthDropping(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		waiting, recent int
		analyze, drop   bool
	}{
		"the most that are allowed":   {waiting: 10, drop: true},
		"the most are open, analyzed": {waiting: 10, analyze: true, drop: true},
		"the most, closed recently":   {recent: 10, analyze: true, drop: true},
		"one more":                    {waiting: 11},
		"one more, analyzed":          {waiting: 11, analyze: true},
		"one more, closed recently":   {recent: 11},
		"half open, analyzed":         {waiting: 55, analyze: true},
		"half closed, analyzed":       {recent: 55, analyze: true},
		"all are closed and old":      {analyze: true, drop: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := servers["PostgreSQL"](t)
			s := openStore(t, url)
			old := putClosed(t, s, c.waiting, c.recent)
			require.NoError(t, s.Close())
			s, db := openStore(t, with(url, byMonth)), openDB(t, url)
			defer s.Close()
			if c.analyze {
				_, err := db.ExecContext(t.Context(), "ANALYZE")
				require.NoError(t, err)
			}
			seen := rowsOf(t, db, "SELECT fingerprint, first_seen, last_seen FROM dlq_groups ORDER BY 1")
			n, err := s.PurgeMonths(t.Context(), dlq.Purge{
				ClosedBefore: time.Now().AddDate(0, 0, -90), At: time.Now(),
				Actor: "ana",
			})
			require.NoError(t, err)
			gone := rowsOf(t, db, "SELECT to_regclass('dlq_entries_before') IS NULL")[0][0]
			require.Equal(t, c.drop, gone)
			if c.drop {
				require.Equal(t, old, n)
			} else {
				require.Zero(t, n)
			}
			require.Len(t, rowsOf(t, db, "SELECT 1 FROM dlq_events"), 110-n)
			requireCounted(t, s)
			require.Equal(t, seen, rowsOf(t, db, "SELECT fingerprint, first_seen, last_seen FROM dlq_groups ORDER BY 1"))
		})
	}
}

// putClosed puts 110 letters of long ago. It leaves some PENDING and closes some now. The rest, whose number it
// returns, was closed long ago.
func putClosed(t *testing.T, s *sqlstore.Store, waiting, recent int) (old int) {
	t.Helper()
	at := time.Now().AddDate(0, 0, -200)
	letters := make([]*dlq.Entry, 110)
	for i := range letters {
		letters[i] = letter(i, at)
	}
	receipts, err := s.Put(t.Context(), letters...)
	require.NoError(t, err)
	ids := make([]int64, len(receipts))
	for i := range receipts {
		ids[i] = receipts[i].ID
	}
	for _, closed := range []struct {
		ids []int64
		at  time.Time
	}{{ids[waiting+recent:], at.AddDate(0, 0, 1)}, {ids[waiting : waiting+recent], time.Now()}} {
		if len(closed.ids) == 0 {
			continue
		}
		_, err = s.Change(t.Context(), driver.Change{
			Action: driver.ActionResolve, IDs: closed.ids, Actor: "ana", At: closed.at,
		})
		require.NoError(t, err)
	}
	return len(ids) - waiting - recent
}

// A past month is dropped from its first id to its last: all of its letters are in the archive or still in the table.
func TestPartition_RetentionOfAMonth(t *testing.T) {
	t.Parallel()
	url := servers["PostgreSQL"](t)
	s, db := openStore(t, with(url, byMonth)), openDB(t, url)
	defer s.Close()
	// the second one is the last of its month
	_, err := db.ExecContext(t.Context(), "SELECT setval('dlq_entries_id_seq', $1)", int64(9_999_999_997))
	require.NoError(t, err)
	const letters, waiting = 60, 2
	var closed []int64
	at := time.Now()
	for n := range letters {
		receipts, err := s.Put(t.Context(), letter(n, at))
		require.NoError(t, err)
		if n != 5 && n != 17 {
			closed = append(closed, receipts[0].ID)
		}
	}
	month := driver.FormatID(closed[0])[:6]
	var first, last int64
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT min(id), max(id) FROM dlq_entries_"+month).Scan(&first,
		&last))
	require.Equal(t, []string{month + "0000000000", month + "9999999999"},
		[]string{driver.FormatID(first), driver.FormatID(last)})
	require.Equal(t, [][]any{{int64(letters)}}, rowsOf(t, db, "SELECT count(*) FROM dlq_entries_"+month))
	_, err = s.Change(t.Context(), driver.Change{Action: driver.ActionResolve, IDs: closed, Actor: "ana", At: at})
	require.NoError(t, err)
	payloads := rowsOf(t, db, "SELECT id, payload, headers FROM dlq_events WHERE status = 'RESOLVED' ORDER BY id")

	purge := dlq.Purge{ClosedBefore: at.Add(time.Minute), At: at, Actor: "cron"}
	n, err := s.PurgeMonths(t.Context(), purge)
	require.NoError(t, err)
	require.Zero(t, n, "the month has not ended")
	purge.At = firstOf(at).AddDate(0, 1, 0)
	n, err = s.PurgeMonths(t.Context(), purge)
	require.NoError(t, err)
	require.Equal(t, len(closed), n)
	require.Equal(t, [][]any{{nil}}, rowsOf(t, db, "SELECT to_regclass('dlq_entries_"+month+"')::text"),
		"the partition was dropped")
	require.Equal(t, payloads, rowsOf(t, db, "SELECT id, payload, headers FROM archive.dlq_events_archive ORDER BY id"))
	require.Len(t, rowsOf(t, db, "SELECT 1 FROM dlq_events WHERE status = 'PENDING' AND payload IS NOT NULL"), waiting)
	requireCounted(t, s)

	// an open one, and one of a month whose partition was dropped
	receipts, err := s.Put(t.Context(), letter(5, at), letter(letters, at))
	require.NoError(t, err)
	require.Equal(t, []driver.PutResult{driver.Seen, driver.Stored},
		[]driver.PutResult{receipts[0].Result, receipts[1].Result})
	back, err := s.Unarchive(t.Context(), dlq.By{Actor: "ana"}, at, closed...)
	require.NoError(t, err)
	require.ElementsMatch(t, closed, back)
	require.Len(t, rowsOf(t, db, "SELECT 1 FROM dlq_events WHERE payload IS NOT NULL"), letters+1)
	requireCounted(t, s)
}

func firstOf(at time.Time) time.Time {
	at = at.UTC()
	return time.Date(at.Year(), at.Month(), 1, 0, 0, 0, 0, time.UTC)
}

// Retention can decide not to drop a month without reading it.
func TestPartition_KeptMonthIsNotRead(t *testing.T) { // not parallel: one test at a time receives the plans
	url := servers["PostgreSQL"](t)
	s := openStore(t, url)
	_, waiting := oldLetters(t, s, 200)
	_, err := s.Change(t.Context(), driver.Change{
		Action: driver.ActionDiscard, IDs: waiting, Actor: "ana",
		At: time.Now(),
	})
	require.NoError(t, err)
	require.NoError(t, s.Close())
	s, db := openStore(t, with(url, byMonth+"&"+explained)), openDB(t, url)
	defer s.Close()
	_, err = db.ExecContext(t.Context(), "ANALYZE")
	require.NoError(t, err)
	purge := dlq.Purge{ClosedBefore: time.Now().AddDate(0, 0, -300), At: time.Now(), Actor: "ana"}
	made := plans.of(func() {
		n, err := s.PurgeMonths(t.Context(), purge)
		require.NoError(t, err)
		require.Zero(t, n)
	})
	require.NotContains(t, strings.Join(made, "\n"), "date_part", "the statement that counts a month")
	purge.ClosedBefore = time.Now().AddDate(0, 0, -100)
	made = plans.of(func() {
		n, err := s.PurgeMonths(t.Context(), purge)
		require.NoError(t, err)
		require.Equal(t, 190, n)
	})
	require.Contains(t, strings.Join(made, "\n"), "date_part")
}

// A month is dropped although an older partition stays. Its keys go with it, and those that an earlier drop left
// behind: its entries can be restored, or imported if they are not in the archive, and only existing entries have keys.
func TestPartition_DroppedBehindAKeptOne(t *testing.T) {
	t.Parallel()
	url := servers["PostgreSQL"](t)
	old := openStore(t, url)
	oldLetters(t, old, 20)
	for n := 100; n < 110; n++ {
		_, err := old.Put(t.Context(), letter(n, time.Now().AddDate(0, 0, -200)))
		require.NoError(t, err)
	}
	require.NoError(t, old.Close())
	s, db := openStore(t, with(url, byMonth)), openDB(t, url)
	defer s.Close()
	_, err := db.ExecContext(t.Context(), "INSERT INTO dlq_keys (entry_id, dedup_key, event_id) "+
		"VALUES (-1, 'left behind', '')")
	require.NoError(t, err)
	at := time.Now()
	var closed []int64
	for n := range 20 {
		receipts, err := s.Put(t.Context(), letter(1000+n, at))
		require.NoError(t, err)
		closed = append(closed, receipts[0].ID)
	}
	_, err = s.Change(t.Context(), driver.Change{Action: driver.ActionResolve, IDs: closed, Actor: "ana", At: at})
	require.NoError(t, err)
	exported, err := s.Get(t.Context(), closed[0])
	require.NoError(t, err)
	purge := dlq.Purge{ClosedBefore: at.Add(time.Minute), At: firstOf(at).AddDate(0, 1, 0), Actor: "cron"}
	n, err := s.PurgeMonths(t.Context(), purge)
	require.NoError(t, err)
	require.Equal(t, len(closed), n)
	require.Len(t, rowsOf(t, db, "SELECT 1 FROM dlq_entries_before"), 30)
	require.Len(t, rowsOf(t, db, "SELECT 1 FROM dlq_keys"), 30)
	back, err := s.Unarchive(t.Context(), dlq.By{Actor: "ana"}, at, closed[1:]...)
	require.NoError(t, err)
	require.Equal(t, closed[1:], back)
	run(t, db, "DELETE FROM archive.dlq_events_archive")
	receipts, err := s.Import(t.Context(), dlq.By{Actor: "ana"}, at, driver.Exported{
		Entry: *exported, Bodies: []driver.Body{*exported.Body},
	})
	require.NoError(t, err)
	require.Equal(t, driver.Stored, receipts[0].Result)
	requireCounted(t, s)
}

// A key whose entry was dropped with its month does not block a new letter before it is removed, alone and among
// others.
func TestPartition_KeyWithoutEntry(t *testing.T) {
	t.Parallel()
	url := with(servers["PostgreSQL"](t), byMonth)
	s, db := openStore(t, url), openDB(t, url[:len(url)-len(byMonth)-1])
	defer s.Close()
	first, err := s.Put(t.Context(), letter(1, time.Now()), letter(2, time.Now()))
	require.NoError(t, err)
	for _, table := range []string{"dlq_entries WHERE id", "dlq_bodies WHERE entry_id"} {
		_, err := db.ExecContext(t.Context(), "DELETE FROM "+table+" = $1", first[0].ID)
		require.NoError(t, err)
	}
	again, err := s.Put(t.Context(), letter(3, time.Now()), letter(1, time.Now()), letter(2, time.Now()),
		letter(1, time.Now()))
	require.NoError(t, err)
	require.Equal(t, []driver.PutResult{driver.Stored, driver.Stored, driver.Seen, driver.Seen},
		slices.Collect(func(yield func(driver.PutResult) bool) {
			for _, r := range again {
				if !yield(r.Result) {
					return
				}
			}
		}))
	require.NotEqual(t, first[0].ID, again[1].ID)
	require.Equal(t, again[1].ID, again[3].ID)
}

// An operator restores an entry of the month that retention is about to drop, after it was counted and copied: either
// the restore is refused and the entry is in the archive, or it was in time and the entry is pending. A confirmed
// restore is never dropped.
func TestPartition_RestoreWhileDropped(t *testing.T) {
	t.Parallel()
	url := servers["PostgreSQL"](t)
	old := openStore(t, url)
	closed, _ := oldLetters(t, old, 40)
	require.NoError(t, old.Close())
	s, db := openStore(t, with(url, byMonth)), openDB(t, url)
	defer s.Close()
	for _, statement := range []string{
		"CREATE FUNCTION pause() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(4711); RETURN " +
			"NULL; END $$",
		"CREATE TRIGGER pause BEFORE INSERT ON archive.dlq_events_archive FOR EACH STATEMENT EXECUTE FUNCTION pause()",
	} {
		_, err := db.ExecContext(t.Context(), statement)
		require.NoError(t, err)
	}
	gate, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	_, err = gate.ExecContext(t.Context(), "SELECT pg_advisory_xact_lock(4711)")
	require.NoError(t, err)
	waiting := func() int {
		var n int
		require.NoError(t, db.QueryRowContext(t.Context(),
			"SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"+
				" AND wait_event_type = 'Lock'").Scan(&n))
		return n
	}

	var calls sync.WaitGroup
	var purgeErr, restoreErr error
	var results []driver.Result
	calls.Go(func() {
		_, purgeErr = s.PurgeMonths(t.Context(),
			dlq.Purge{ClosedBefore: time.Now().AddDate(0, 0, -90), At: time.Now(), Actor: "cron"})
	})
	waitFor(t, "the purge to reach its copies", func() bool { return waiting() == 1 })
	restored := make(chan struct{})
	calls.Go(func() {
		results, restoreErr = s.Change(t.Context(),
			driver.Change{Action: driver.ActionRestore, IDs: closed[:1], Actor: "ana", At: time.Now()})
		close(restored)
	})
	waitFor(t, "the restore to wait or to finish", func() bool {
		select {
		case <-restored:
			return true
		default:
			return waiting() == 2
		}
	})
	require.NoError(t, gate.Rollback())
	calls.Wait()
	require.NoError(t, errors.Join(purgeErr, restoreErr))

	archived := len(rowsOf(t, db, "SELECT 1 FROM archive.dlq_events_archive WHERE id = $1", closed[0]))
	e, err := s.Get(t.Context(), closed[0])
	if results[0].Err == nil {
		require.NoError(t, err, "the restore was confirmed")
		require.Equal(t, dlq.Pending, e.Status)
		require.Zero(t, archived)
	} else {
		require.ErrorIs(t, results[0].Err, dlq.ErrNotFound)
		require.ErrorIs(t, err, dlq.ErrNotFound)
		require.Equal(t, 1, archived)
	}
	requireCounted(t, s)
}
