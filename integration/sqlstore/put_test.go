package sqlstore_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/sqlstore"
	"github.com/redrive-go/redrive/envelope"
)

// One new letter or many are stored in one round trip. A call that the server refused would be repeated in another way,
// and would only be slow.
func TestPostgres_PutIsOneStatement(t *testing.T) { // not parallel: one test at a time receives the plans
	url := servers["PostgreSQL"](t)
	s := openStore(t, with(url, explained))
	defer s.Close()
	for name, n := range map[string]int{"dlq_put_letter(": 1, "dlq_put_letters(": 20} {
		for round := range 8 { // the first executions have custom plans, later ones a generic plan
			letters := make([]*dlq.Entry, n)
			for i := range letters {
				letters[i] = letter(1000*n+100*round+i, time.Now())
			}
			made := plans.of(func() {
				_, err := s.Put(t.Context(), letters...)
				require.NoError(t, err)
			})
			require.Len(t, made, 1)
			require.Contains(t, made[0], "SELECT "+name)
		}
	}
}

// counted are the statistics, which a recount must not change.
func counted(t *testing.T, s *sqlstore.Store) (driver.Stats, []driver.Group) {
	t.Helper()
	stats, err := s.Stats(t.Context(), dlq.StatsQuery{})
	require.NoError(t, err)
	groups, err := s.Groups(t.Context(), dlq.GroupQuery{Limit: driver.MaxPage})
	require.NoError(t, err)
	return stats, groups
}

// If a call has some letters that already exist, in any mixture of causes, topics and hours, the new ones are stored
// and counted, the others are counted as seen again, and a recount finds no difference.
func TestPut_KnownAndNew(t *testing.T) {
	t.Parallel()
	onEach(t, putKnownAndNew)
}

func putKnownAndNew(t *testing.T, url string) {
	t.Helper()
	s := openStore(t, url)
	defer s.Close()
	now := time.Now().UTC().Truncate(time.Hour)
	const total = 60
	// The letters of a cause die in the order of their numbers; the later half of each cause is stored first.
	made := func(n int) *dlq.Entry {
		return letter(n, now.Add(time.Duration(n-total)*10*time.Minute), func(d *envelope.DeadLetter) {
			d.Message.Payload = fmt.Appendf(nil, `{"n":%d}`, n)
			if n%5 == 0 {
				d.Err.Message, d.Err.Code, d.Rule = "a separate one "+strings.Repeat("x", n), "E5", "fifth"
			}
		})
	}
	known := map[int]int64{}
	for n := range total {
		if n%3 == 0 || n > 50 {
			receipts, err := s.Put(t.Context(), made(n))
			require.NoError(t, err)
			known[n] = receipts[0].ID
		}
	}
	letters := make([]*dlq.Entry, total)
	for n := range letters {
		letters[n] = made(n)
	}
	receipts, err := s.Put(t.Context(), letters...)
	require.NoError(t, err)
	for n, r := range receipts {
		if id := known[n]; id != 0 {
			require.Equal(t, driver.Receipt{ID: id, Result: driver.Seen}, r)
			continue
		}
		require.Equal(t, driver.Stored, r.Result)
		e, err := s.Get(t.Context(), r.ID)
		require.NoError(t, err)
		want := *letters[n]
		want.ID = r.ID
		require.Equal(t, &want, e)
	}
	stats, groups := counted(t, s)
	require.Equal(t, int64(total), stats.Counts.Pending)
	last := map[string]int64{}
	for n, r := range receipts {
		f := letters[n].Fingerprint
		last[f] = max(last[f], r.ID)
	}
	require.Len(t, groups, len(last))
	for _, g := range groups {
		if strings.HasPrefix(url, "postgres") { // of letters stored together, the one with the highest id
			require.Equal(t, last[g.Fingerprint], g.LastEntry)
		}
		require.NotZero(t, g.LastEntry)
	}
	require.NoError(t, s.Recount(t.Context()))
	again, recounted := counted(t, s)
	require.Equal(t, stats, again)
	require.Equal(t, groups, recounted)
}

// Two processes concurrently make large calls, which are stored in chunks, with the same letters: each letter is one
// entry, only one call stored it, and each receipt belongs to its letter.
func TestPut_LargeCallsAtOnce(t *testing.T) {
	t.Parallel()
	onEach(t, putLargeCallsAtOnce)
}

func putLargeCallsAtOnce(t *testing.T, url string) {
	t.Helper()
	const total, callers = 450, 4
	stores := []*sqlstore.Store{openStore(t, url), openStore(t, url)}
	now := time.Now()
	receipts, errs := make([][]driver.Receipt, callers), make([]error, callers)
	var group sync.WaitGroup
	for c := range callers {
		group.Go(func() {
			letters := make([]*dlq.Entry, total)
			for i := range letters {
				// different orders; the steps 3 and 5 repeat a part of the numbers
				letters[i] = letter((i*(2*c+1))%total, now)
			}
			receipts[c], errs[c] = stores[c%2].Put(t.Context(), letters...)
		})
	}
	group.Wait()
	stored := map[int64]int{}
	for c := range callers {
		require.NoError(t, errs[c])
		require.Len(t, receipts[c], total)
		for _, r := range receipts[c] {
			require.NotZero(t, r.ID)
			if r.Result == driver.Stored {
				stored[r.ID]++
			} else {
				require.Equal(t, driver.Seen, r.Result)
			}
		}
	}
	require.Len(t, stored, total)
	for id, times := range stored {
		require.Equal(t, 1, times, "entry %d", id)
	}
	for i := range total {
		e, err := stores[0].Get(t.Context(), receipts[0][i].ID)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("event-%d", i), e.EventID)
	}
	stats, groups := counted(t, stores[0])
	require.Equal(t, int64(total), stats.Counts.Pending)
	require.NoError(t, stores[0].Recount(t.Context()))
	again, recounted := counted(t, stores[0])
	for _, list := range [][]driver.Group{groups, recounted, stats.TopCauses, again.TopCauses} {
		for i := range list {
			list[i].LastEntry = 0 // all died at once, so it may be any of them
		}
	}
	require.Equal(t, stats, again)
	require.Equal(t, groups, recounted)
	for _, s := range stores {
		require.NoError(t, s.Close())
	}
}

// If a call has a delivery twice, the first one is stored, however many letters there are.
func TestPut_LargeCallWithRepeats(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, s *sqlstore.Store) {
		t.Helper()
		now := time.Now()
		const half = 150
		for round := range 6 {
			letters := make([]*dlq.Entry, 2*half)
			for i := range letters {
				letters[i] = letter(round*half+i%half, now)
			}
			receipts, err := s.Put(t.Context(), letters...)
			require.NoError(t, err)
			for i := range half {
				require.Equal(t, driver.Stored, receipts[i].Result)
				require.Equal(t, driver.Receipt{ID: receipts[i].ID, Result: driver.Seen}, receipts[half+i])
			}
		}
	})
}

// An entry with fields that dlq.NewEntry does not set is stored unchanged.
func TestPut_KeepsUnusualFields(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, s *sqlstore.Store) {
		t.Helper()
		now := time.Now().UTC().Truncate(time.Microsecond)
		later := now.Add(time.Hour)
		edits := map[string]func(e *dlq.Entry){
			"nothing":         func(*dlq.Entry) {},
			"version":         func(e *dlq.Entry) { e.Version = 7 },
			"redrive count":   func(e *dlq.Entry) { e.RedriveCount = 2 },
			"redrive budget":  func(e *dlq.Entry) { e.RedriveBudget = 9 },
			"death's redrive": func(e *dlq.Entry) { e.DeathRedrive = 1 },
			"seen":            func(e *dlq.Entry) { e.SeenCount = 4 },
			"run":             func(e *dlq.Entry) { e.Run = "run" },
			"lease":           func(e *dlq.Entry) { e.LeaseUntil = later },
			"died":            func(e *dlq.Entry) { e.DiedAt = later },
			"last seen":       func(e *dlq.Entry) { e.LastSeenAt = later },
			"changed":         func(e *dlq.Entry) { e.ChangedAt = later },
			"last redrive":    func(e *dlq.Entry) { e.LastRedriveAt = later },
			"succeeded":       func(e *dlq.Entry) { e.SucceededAt = later },
			"resolved":        func(e *dlq.Entry) { e.ResolvedAt, e.ResolvedBy, e.Status = later, "ana", dlq.Resolved },
			"first failure":   func(e *dlq.Entry) { e.FirstFailureAt = now.Add(-time.Hour) },
			"size":            func(e *dlq.Entry) { e.Size++ },
			"revision":        func(e *dlq.Entry) { e.Revision, e.Body.Revision = 3, 3 },
			"nothing optional": func(e *dlq.Entry) {
				e.Origin.Partition, e.Origin.Offset, e.SourceID, e.CorrelationID = nil, nil, "", ""
			},
		}
		n := 0
		for name, edit := range edits {
			n++
			e := letter(n, now)
			edit(e)
			for _, together := range []int{1, 3} { // alone, and among others
				letters := make([]*dlq.Entry, together)
				for i := range letters {
					n++
					letters[i] = letter(n, now)
				}
				one := *e
				one.Key = letters[0].Key
				letters[0] = &one
				receipts, err := s.Put(t.Context(), letters...)
				require.NoError(t, err, name)
				require.Equal(t, driver.Stored, receipts[0].Result, name)
				got, err := s.Get(t.Context(), receipts[0].ID)
				require.NoError(t, err, name)
				one.ID = got.ID
				require.Equal(t, &one, got, name)
			}
		}
	})
}

// If only a later one of several records of one change differs, each record still belongs to its entry.
func TestChange_RecordsOfUnlikeEntries(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, s *sqlstore.Store) {
		t.Helper()
		now := time.Now()
		receipts, err := s.Put(t.Context(), letter(1, now), letter(2, now), letter(3, now), letter(4, now))
		require.NoError(t, err)
		ids := make([]int64, len(receipts))
		for i := range receipts {
			ids[i] = receipts[i].ID
		}
		change := func(action driver.Action, ids ...int64) {
			results, err := s.Change(t.Context(), driver.Change{Action: action, IDs: ids, Actor: "ana", At: now})
			require.NoError(t, err)
			for _, r := range results {
				require.NoError(t, r.Err)
			}
		}
		change(driver.ActionDiscard, ids[3])
		change(driver.ActionRestore, ids[3])
		change(driver.ActionDiscard, ids...)
		for i, want := range []int64{2, 2, 2, 4} {
			records, _, err := s.Audit(t.Context(), dlq.AuditFilter{EntryID: ids[i], Action: driver.ActionDiscard}, dlq.Page{})
			require.NoError(t, err)
			require.Equal(t, want, records[0].Version)
		}
	})
}
