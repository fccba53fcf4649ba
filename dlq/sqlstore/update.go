package sqlstore

import (
	"context"
	"database/sql"
	"slices"
	"strings"
	"time"

	"github.com/redrive-go/redrive/dlq"
)

// changed is an entry that the transaction has locked, before and after the change.
type changed struct{ before, after *dlq.Entry }

// update is a statement that changes some entries in the same way.
type update struct {
	set  []string
	args []any
	ids  []int64
}

// updateEntries writes entries that have changed: only the columns that differ, and one statement for all entries with
// the same difference, such as those of a bulk action.
func (s *Store) updateEntries(ctx context.Context, tx *sql.Tx, entries []changed) error {
	var updates []*update
	for _, e := range entries {
		u := s.difference(e)
		if len(u.set) == 0 {
			continue
		}
		// Equal differences follow each other, or are among a few others.
		i := slices.IndexFunc(updates[max(0, len(updates)-maxUnlike):], u.alike)
		if i >= 0 {
			u = updates[max(0, len(updates)-maxUnlike)+i]
		} else {
			updates = append(updates, u)
		}
		u.ids = append(u.ids, e.after.ID)
	}
	for _, u := range updates {
		query := "UPDATE dlq_entries SET " + strings.Join(u.set, ", ") + " WHERE "
		for in, ids := range s.dialect.idIn("id", u.ids) {
			if _, err := s.exec(ctx, tx, query+in, append(slices.Clip(u.args), ids...)...); err != nil {
				return err
			}
		}
	}
	return nil
}

// maxUnlike is in how many of the last updates an equal one is searched.
const maxUnlike = 8

func (u *update) alike(v *update) bool {
	return slices.Equal(u.set, v.set) && slices.EqualFunc(u.args, v.args, equalValues)
}

// difference is the update from before to after.
func (s *Store) difference(e changed) *update {
	u := &update{}
	for i := range stateColumns {
		column := &stateColumns[i]
		if column.same(e.before, e.after) {
			continue
		}
		is := column.value(s.dialect, e.after)
		if column.counted {
			u.set = append(u.set, column.name+" = "+column.name+" + ?")
			u.args = append(u.args, asInt(is)-asInt(column.value(s.dialect, e.before)))
		} else {
			u.set, u.args = append(u.set, column.name+" = ?"), append(u.args, is)
		}
	}
	return u
}

func equalValues(a, b any) bool {
	at, isTime := a.(time.Time)
	bt, both := b.(time.Time)
	if isTime && both {
		return at.Equal(bt)
	}
	return a == b
}

func asInt(value any) int64 {
	switch n := value.(type) {
	case int:
		return int64(n)
	case int32:
		return int64(n)
	case int64:
		return n
	default:
		return 0
	}
}

// updateEntry writes one entry, whatever changed in it.
func (s *Store) updateEntry(ctx context.Context, tx *sql.Tx, e *dlq.Entry) error {
	_, err := s.exec(ctx, tx, updateState, stateValues(s.dialect, e)...)
	return err
}
