package dlqtest

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/wire"
)

// into are the actions that bring a new entry, which is PENDING, into another status.
var into = map[dlq.Status]driver.Action{
	dlq.Retrying: driver.ActionRedrive, dlq.Parked: driver.ActionPark,
	dlq.Resolved: driver.ActionResolve, dlq.Discarded: driver.ActionDiscard,
}

// Every action in every status: an allowed one changes the entry; any other changes nothing and names the person who
// was first.
func (w *world) TestTransitions() {
	legal := map[dlq.Status]map[driver.Action]dlq.Status{
		dlq.Pending: {
			driver.ActionRedrive: dlq.Retrying, driver.ActionResolve: dlq.Resolved, driver.ActionDiscard: dlq.Discarded,
			driver.ActionPark: dlq.Parked,
		},
		dlq.Parked: {
			driver.ActionRedrive: dlq.Retrying, driver.ActionResolve: dlq.Resolved, driver.ActionDiscard: dlq.Discarded,
			driver.ActionRestore: dlq.Pending,
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
	for _, from := range wire.Statuses() {
		for _, action := range actions {
			n++
			w.T.Run(fmt.Sprintf("%s %s", from, action), func(t *testing.T) {
				w := &world{t, w.Store, w.db, w.fresh}
				id := w.put(letter(n))[0].ID
				at := noon.Add(time.Hour)
				if first, ok := into[from]; ok {
					w.mustChange(driver.Change{Action: first, IDs: []int64{id}, Actor: "first", At: at})
				}
				before := w.get(id)
				require.Equal(w, from, before.Status)
				after, err := w.change(driver.Change{
					Action: action, IDs: []int64{id}, Actor: "second", Note: "why", At: at.Add(time.Second),
				})
				to, ok := legal[from][action]
				stored := w.get(id)
				if !ok {
					var refused *driver.ConflictError
					require.ErrorAs(w, err, &refused)
					require.ErrorIs(w, err, dlq.ErrConflict)
					require.Equal(w, []any{id, action, from, before.ChangedBy},
						[]any{refused.EntryID, refused.Action, dlq.Status(refused.Status), refused.By})
					require.Contains(w, err.Error(), string(from))
					require.Equal(w, before, stored, "a refused change changes nothing")
					return
				}
				require.NoError(w, err)
				require.Equal(w, to, after.Status)
				require.Equal(w, before.Version+1, after.Version)
				after.Body = stored.Body
				require.Equal(w, &after, stored, "the returned entry is the stored one")
				if to != from {
					require.Equal(w, "second", stored.ChangedBy)
				}
				require.Equal(w, to == dlq.Resolved || to == dlq.Discarded, !stored.ResolvedAt.IsZero())
			})
		}
	}
}

// Of several concurrent changes one wins, and the others learn who made it.
func (w *world) TestCompareAndSet() {
	other := w.open()
	for n := range 8 { // in a single round they might run one after the other
		compareAndSet(w, other, w.put(letter(n))[0].ID)
	}
}

func compareAndSet(w *world, other Store, id int64) {
	const operators = 16
	errs := make([]error, operators)
	atOnce(operators, func(i int) {
		action := []driver.Action{driver.ActionRedrive, driver.ActionDiscard}[i%2]
		results, err := []Store{w.Store, other}[i/2%2].Change(w.Context(), driver.Change{
			Action: action, IDs: []int64{id}, Actor: fmt.Sprintf("operator %d", i), At: noon, Lease: time.Hour,
		})
		if assert.NoError(w, err) {
			errs[i] = results[0].Err
		}
	})
	winner := w.get(id).ChangedBy
	won := 0
	for i, err := range errs {
		if err == nil {
			won++
			require.Equal(w, winner, fmt.Sprintf("operator %d", i))
			continue
		}
		var refused *driver.ConflictError
		require.ErrorAs(w, err, &refused)
		require.Equal(w, winner, refused.By)
		require.Contains(w, err.Error(), winner)
	}
	require.Equal(w, 1, won)
	w.recorded(1, dlq.AuditFilter{EntryID: id}, dlq.Page{})
}

func (w *world) TestVersionMustMatch() {
	id := w.put(letter(1))[0].ID
	fails(w.change(driver.Change{Action: driver.ActionResolve, IDs: []int64{id}, Version: 2}))(w, dlq.ErrConflict)
	w.mustChange(driver.Change{Action: driver.ActionResolve, IDs: []int64{id}, Version: 1})
	fails(w.change(driver.Change{Action: driver.ActionRestore, IDs: []int64{id}, Version: 1}))(w, dlq.ErrConflict)
	w.mustChange(driver.Change{Action: driver.ActionRestore, IDs: []int64{id}, Version: 2})
}

// One call changes many entries, and lists those that cannot be changed.
func (w *world) TestChangeManyAtOnce() {
	letters := make([]*dlq.Entry, 150)
	for n := range letters {
		letters[n] = letter(n)
	}
	list := make([]int64, 0, len(letters)+1)
	for _, r := range w.put(letters...) {
		list = append(list, r.ID)
	}
	w.mustChange(driver.Change{Action: driver.ActionDiscard, IDs: list[70:71]})
	missing := list[len(list)-1] + 1000
	list = append(list, missing)
	results := must(w.Change(w.Context(), driver.Change{
		Action: driver.ActionRedrive, IDs: list, Actor: "ana", Note: "the bank works again", At: noon.Add(time.Hour),
		Lease: time.Minute, Run: "run-1",
	}))(w)
	require.Len(w, results, len(list))
	for i, r := range results {
		require.Equal(w, list[i], r.ID)
		switch {
		case i == 70:
			require.ErrorIs(w, r.Err, dlq.ErrConflict)
		case r.ID == missing:
			require.ErrorIs(w, r.Err, dlq.ErrNotFound)
		default:
			require.NoError(w, r.Err)
			require.Equal(w, dlq.Retrying, r.Entry.Status)
			require.Equal(w, 1, r.Entry.RedriveCount)
		}
	}
	require.Len(w, w.all(dlq.Filter{Run: "run-1"}), 149)
	w.recorded(149, dlq.AuditFilter{Run: "run-1"}, dlq.Page{Limit: driver.MaxPage})
}

func (w *world) TestChangeRefusesInvalidCalls() {
	id := w.put(letter(1))[0].ID
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
		fails(w.Change(w.Context(), c))(w, dlq.ErrInvalid, name)
	}
	require.Equal(w, int64(1), w.get(id).Version)
}

// ResolvedBy is the name given in the call; the audit log also has the actor who made the call.
func (w *world) TestResolvedByAnother() {
	id := w.put(letter(1))[0].ID
	w.mustChange(driver.Change{Action: driver.ActionResolve, IDs: []int64{id}, ResolvedBy: "joana", At: noon})
	e := w.get(id)
	require.Equal(w, []string{"joana", "ana"}, []string{e.ResolvedBy, e.ChangedBy})
	records := w.recorded(1, driver.AuditFilter{EntryID: id}, driver.Page{})
	require.Equal(w, "ana", records[0].Actor)
	require.Equal(w, map[string]string{"resolved_by": "joana"}, records[0].Detail)
}

func (w *world) TestNotFound() {
	fails(w.Get(w.Context(), 4711))(w, dlq.ErrNotFound)
	fails(w.Body(w.Context(), 4711, 0))(w, dlq.ErrNotFound)
	_, err := w.change(driver.Change{Action: driver.ActionResolve, IDs: []int64{4711}})
	require.ErrorIs(w, err, dlq.ErrNotFound)
	require.NotErrorIs(w, err, dlq.ErrConflict)
}
