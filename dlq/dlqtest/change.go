package dlqtest

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
)

// paths are the changes that bring a new entry into each status.
var paths = map[dlq.Status][]driver.Action{
	dlq.Pending:   nil,
	dlq.Retrying:  {driver.ActionRedrive},
	dlq.Parked:    {driver.ActionPark},
	dlq.Resolved:  {driver.ActionResolve},
	dlq.Discarded: {driver.ActionDiscard},
}

// Every action in every status: an allowed one changes the entry; any other changes nothing and names the person who
// was first.
func testTransitions(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	legal := map[dlq.Status]map[driver.Action]dlq.Status{
		dlq.Pending: {
			driver.ActionRedrive: dlq.Retrying, driver.ActionResolve: dlq.Resolved, driver.ActionDiscard: dlq.Discarded,
			driver.ActionSucceed: dlq.Resolved, // the late success of a redrive whose claim was released
			driver.ActionPark:    dlq.Parked,
		},
		dlq.Parked: {
			driver.ActionRedrive: dlq.Retrying, driver.ActionResolve: dlq.Resolved, driver.ActionDiscard: dlq.Discarded,
			driver.ActionSucceed: dlq.Resolved, driver.ActionRestore: dlq.Pending,
		},
		dlq.Retrying: {
			driver.ActionPublished: dlq.Retrying, driver.ActionRelease: dlq.Pending, driver.ActionSucceed: dlq.Resolved,
			driver.ActionReleaseByHand: dlq.Pending,
		},
		dlq.Resolved:  {driver.ActionRestore: dlq.Pending},
		dlq.Discarded: {driver.ActionRestore: dlq.Pending},
	}
	actions := []driver.Action{
		driver.ActionRedrive, driver.ActionPublished, driver.ActionRelease, driver.ActionSucceed,
		driver.ActionResolve, driver.ActionDiscard, driver.ActionRestore, driver.ActionPark, driver.ActionReleaseByHand,
	}
	n := 0
	for _, from := range driver.Statuses() {
		for _, action := range actions {
			n++
			t.Run(fmt.Sprintf("%s %s", from, action), func(t *testing.T) {
				id := put(t, s, letter(n))[0].ID
				at := noon.Add(time.Hour)
				for _, step := range paths[from] {
					mustChange(t, s, driver.Change{Action: step, IDs: []int64{id}, Actor: "first", At: at})
				}
				before := get(t, s, id)
				require.Equal(t, from, before.Status)
				after, err := change(t, s, driver.Change{
					Action: action, IDs: []int64{id}, Actor: "second", Note: "why", At: at.Add(time.Second),
				})
				to, ok := legal[from][action]
				stored := get(t, s, id)
				if !ok {
					var refused *driver.ConflictError
					require.ErrorAs(t, err, &refused)
					require.ErrorIs(t, err, dlq.ErrConflict)
					require.Equal(t, []any{id, action, from, before.ChangedBy},
						[]any{refused.EntryID, refused.Action, dlq.Status(refused.Status), refused.By})
					require.Contains(t, err.Error(), string(from))
					require.Equal(t, before, stored, "a refused change changes nothing")
					return
				}
				require.NoError(t, err)
				require.Equal(t, to, after.Status)
				require.Equal(t, before.Version+1, after.Version)
				after.Body = stored.Body
				require.Equal(t, &after, stored, "the returned entry is the stored one")
				if to != from {
					require.Equal(t, "second", stored.ChangedBy)
				}
				require.Equal(t, to == dlq.Resolved || to == dlq.Discarded, !stored.ResolvedAt.IsZero())
			})
		}
	}
}

// Of several concurrent changes one wins, and the others learn who made it.
func testCompareAndSet(t *testing.T, db Database) {
	t.Helper()
	stores := []dlq.Store{db.open(t), db.open(t)}
	for n := range 8 { // in a single round they might run one after the other
		compareAndSet(t, stores, put(t, stores[0], letter(n))[0].ID)
	}
}

func compareAndSet(t *testing.T, stores []dlq.Store, id int64) {
	t.Helper()
	const operators = 16
	errs := make([]error, operators)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range operators {
		wg.Go(func() {
			action := []driver.Action{driver.ActionRedrive, driver.ActionDiscard}[i%2]
			<-start
			results, err := stores[i/2%2].Change(t.Context(), driver.Change{
				Action: action, IDs: []int64{id}, Actor: fmt.Sprintf("operator %d", i), At: noon, Lease: time.Hour,
			})
			if assert.NoError(t, err) {
				errs[i] = results[0].Err
			}
		})
	}
	close(start)
	wg.Wait()
	winner := get(t, stores[0], id).ChangedBy
	won := 0
	for i, err := range errs {
		if err == nil {
			won++
			require.Equal(t, winner, fmt.Sprintf("operator %d", i))
			continue
		}
		var refused *driver.ConflictError
		require.ErrorAs(t, err, &refused)
		require.Equal(t, winner, refused.By)
		require.Contains(t, err.Error(), winner)
	}
	require.Equal(t, 1, won)
	records, _, err := stores[0].Audit(t.Context(), dlq.AuditFilter{EntryID: id}, dlq.Page{})
	require.NoError(t, err)
	require.Len(t, records, 1)
}

func testVersion(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	id := put(t, s, letter(1))[0].ID
	_, err := change(t, s, driver.Change{Action: driver.ActionResolve, IDs: []int64{id}, Version: 2})
	require.ErrorIs(t, err, dlq.ErrConflict)
	mustChange(t, s, driver.Change{Action: driver.ActionResolve, IDs: []int64{id}, Version: 1})
	_, err = change(t, s, driver.Change{Action: driver.ActionRestore, IDs: []int64{id}, Version: 1})
	require.ErrorIs(t, err, dlq.ErrConflict)
	mustChange(t, s, driver.Change{Action: driver.ActionRestore, IDs: []int64{id}, Version: 2})
}

// One call changes many entries, and lists those that cannot be changed.
func testChangeMany(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	letters := make([]*dlq.Entry, 150)
	for n := range letters {
		letters[n] = letter(n)
	}
	list := make([]int64, 0, len(letters)+1)
	for _, r := range put(t, s, letters...) {
		list = append(list, r.ID)
	}
	mustChange(t, s, driver.Change{Action: driver.ActionDiscard, IDs: list[70:71]})
	missing := list[len(list)-1] + 1000
	list = append(list, missing)
	results := must(s.Change(t.Context(), driver.Change{
		Action: driver.ActionRedrive, IDs: list, Actor: "ana", Note: "the bank works again", At: noon.Add(time.Hour),
		Lease: time.Minute, Run: "run-1",
	}))(t)
	require.Len(t, results, len(list))
	for i, r := range results {
		require.Equal(t, list[i], r.ID)
		switch {
		case i == 70:
			require.ErrorIs(t, r.Err, dlq.ErrConflict)
		case r.ID == missing:
			require.ErrorIs(t, r.Err, dlq.ErrNotFound)
		default:
			require.NoError(t, r.Err)
			require.Equal(t, dlq.Retrying, r.Entry.Status)
			require.Equal(t, 1, r.Entry.RedriveCount)
		}
	}
	require.Len(t, all(t, s, dlq.Filter{Run: "run-1"}), 149)
	require.Len(t, recorded(t, s, dlq.AuditFilter{Run: "run-1"}, dlq.Page{Limit: driver.MaxPage}), 149)
}

func testChangeRefuses(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	id := put(t, s, letter(1))[0].ID
	good := driver.Change{Action: driver.ActionRedrive, IDs: []int64{id}, Actor: "ana", At: noon, Lease: time.Minute}
	for name, edit := range map[string]func(*driver.Change){
		"no ids":         func(c *driver.Change) { c.IDs = nil },
		"no actor":       func(c *driver.Change) { c.Actor = "" },
		"no time":        func(c *driver.Change) { c.At = time.Time{} },
		"no lease":       func(c *driver.Change) { c.Lease = 0 },
		"unknown action": func(c *driver.Change) { c.Action = "explode" },
		"die":            func(c *driver.Change) { c.Action = driver.ActionDie },
		"edit":           func(c *driver.Change) { c.Action = driver.ActionEdit },
		"import":         func(c *driver.Change) { c.Action = driver.ActionImport },
		"purge":          func(c *driver.Change) { c.Action = driver.ActionPurge },
	} {
		c := good
		edit(&c)
		_, err := s.Change(t.Context(), c)
		require.ErrorIs(t, err, dlq.ErrInvalid, name)
	}
	require.Equal(t, int64(1), get(t, s, id).Version)
}

// ResolvedBy is the name given in the call; the audit log also has the actor who made the call.
func testResolvedBy(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	id := put(t, s, letter(1))[0].ID
	mustChange(t, s, driver.Change{
		Action: driver.ActionResolve, IDs: []int64{id}, Actor: "ana", ResolvedBy: "joana", At: noon,
	})
	e := get(t, s, id)
	require.Equal(t, []string{"joana", "ana"}, []string{e.ResolvedBy, e.ChangedBy})
	records := recorded(t, s, driver.AuditFilter{EntryID: id}, driver.Page{})
	require.Equal(t, "ana", records[0].Actor)
	require.Equal(t, map[string]string{"resolved_by": "joana"}, records[0].Detail)
}

func testNotFound(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	_, err := s.Get(t.Context(), 4711)
	require.ErrorIs(t, err, dlq.ErrNotFound)
	_, err = s.Body(t.Context(), 4711, 0)
	require.ErrorIs(t, err, dlq.ErrNotFound)
	_, err = change(t, s, driver.Change{Action: driver.ActionResolve, IDs: []int64{4711}})
	require.ErrorIs(t, err, dlq.ErrNotFound)
	require.NotErrorIs(t, err, dlq.ErrConflict)
}
