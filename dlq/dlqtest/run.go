// Package dlqtest is the conformance suite for stores of dead letters. A store of your own that passes [Run] works with
// the rest of package dlq.
package dlqtest

import (
	"context"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/redrive"
)

// Store is what the suite tests: a store of dead letters that also stores redrive runs.
type Store interface {
	dlq.Store
	redrive.Store
}

// Database is one database. Each call opens another store on it, as another process would; the suite closes them.
type Database func(t *testing.T) Store

// Run runs the suite. fresh is called for each test and returns an empty database.
func Run(t *testing.T, fresh func(t *testing.T) Database) {
	t.Helper()
	for method := range reflect.TypeFor[*world]().Methods() {
		if name, ok := strings.CutPrefix(method.Name, "Test"); ok {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, fresh(t))
				w.fresh = fresh
				method.Func.Interface().(func(*world))(w)
			})
		}
	}
}

// world is the environment of one case: a database, a store on it, and the helpers of the suite. The methods that begin
// with Test are the cases.
type world struct {
	*testing.T
	Store

	db    Database
	fresh func(t *testing.T) Database // another one
}

func newWorld(t *testing.T, db Database) *world {
	t.Helper()
	w := &world{T: t, db: db}
	w.Store = w.open()
	return w
}

// open opens another store on the database, as another process would. It is closed when the case ends.
func (w *world) open() Store {
	w.Helper()
	s := w.db(w.T)
	w.Cleanup(func() { require.NoError(w, s.Close()) })
	return s
}

// on is the world with another store.
func (w *world) on(s Store) *world { return &world{w.T, s, w.db, w.fresh} }

// Run returns a redrive run; subtests are T's.
func (w *world) Run(ctx context.Context, id string) (*redrive.Run, error) {
	return w.Store.Run(ctx, id)
}
