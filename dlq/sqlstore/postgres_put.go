package sqlstore

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
)

// Nearly always a store gets new PENDING letters, and PostgreSQL stores any number of them by one call of a function of
// the schema (migrations/postgres/00004_put.sql): keys, entries, bodies and statistics. It is a separate transaction,
// so there is one round trip instead of eight, and the server has planned all of its statements before.
//
// One statement with a part for each table did the same, and took the server twice as long for one letter: the parts
// had to be joined, and each set up again. Sets of many letters save that join by their order, and stream each column's
// values into the rows instead of collecting them in a table first.

// isNew reports whether a letter is, unless its key exists, just a row to insert, with the initial values in its
// columns.
func (r *letterRow) isNew() bool {
	e := r.Entry
	return e.RedriveOf == 0 && e.Status == dlq.Pending && e.Version == 1 && e.Revision == 0 && e.Body.Revision == 0 &&
		e.RedriveCount == 0 && e.DeathRedrive == 0 && e.SeenCount == 1 && e.Size == int64(len(e.Body.Payload)) &&
		e.Run == "" && e.ResolvedBy == "" && e.LeaseUntil.IsZero() && e.LastRedriveAt.IsZero() && e.SucceededAt.IsZero() &&
		e.ResolvedAt.IsZero() && e.DiedAt.Equal(e.CreatedAt) && e.LastSeenAt.Equal(e.CreatedAt) &&
		e.ChangedAt.Equal(e.CreatedAt)
}

var (
	putLetters = putStatement("dlq_put_letters", "[]", newColumns, newStatisticsNames)
	putLetter  = putStatement("dlq_put_letter", "", newColumns, []string{"v_cause", "v_hour"})
)

// putStatement calls a function with a parameter for each column, and for each of some more.
func putStatement(function, array string, columns []newColumn, more []string) string {
	var args []string
	for _, c := range columns {
		args = append(args, "v_"+c.parameter+" => $"+strconv.Itoa(len(args)+1)+"::"+postgresType(c.parameter)+array)
	}
	for _, name := range more {
		args = append(args, name+" => $"+strconv.Itoa(len(args)+1)+"::"+postgresType(name)+array)
	}
	return "SELECT " + function + "(" + strings.Join(args, ", ") + ")"
}

// putNew stores those of the letters whose key does not exist, and returns their ids. Each letter has a different key,
// and isNew.
func (d postgres) putNew(ctx context.Context, s *Store, letters []letterRow) (map[driver.Key]int64, error) {
	if len(letters) == 1 {
		return d.putOne(ctx, s, &letters[0])
	}
	// In the order of their keys, so that two processes with the same dead letters do not wait for each other.
	letters = slices.SortedFunc(slices.Values(letters),
		func(a, b letterRow) int { return bytes.Compare(a.Key[:], b.Key[:]) })
	args := make([]any, 0, len(newColumns)+len(newStatisticsNames))
	for i := range newColumns {
		args = append(args, newColumns[i].array(letters))
	}
	args = append(args, newStatistics(letters)...)
	var stored sql.NullString
	if err := s.write.QueryRowContext(ctx, putLetters, args...).Scan(&stored); err != nil {
		return nil, fmt.Errorf("new letters: %w", err)
	}
	ids := make(map[driver.Key]int64, len(letters))
	if !stored.Valid {
		return ids, nil
	}
	i := 0
	for text := range strings.SplitSeq(strings.Trim(stored.String, "{}"), ",") {
		if i == len(letters) {
			break
		}
		if text != "NULL" {
			id, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return nil, fmt.Errorf("ids of new letters: %w", err)
			}
			ids[letters[i].Key] = id
		}
		i++
	}
	return ids, nil
}

func (d postgres) putOne(ctx context.Context, s *Store, letter *letterRow) (map[driver.Key]int64, error) {
	args := make([]any, 0, len(newColumns)+2)
	for i := range newColumns {
		args = append(args, newColumns[i].single(letter))
	}
	args = append(args, letter.Cause, d.time(hourOf(letter.CreatedAt)))
	var stored sql.Null[int64]
	if err := s.write.QueryRowContext(ctx, putLetter, args...).Scan(&stored); err != nil {
		return nil, fmt.Errorf("new letter: %w", err)
	}
	if !stored.Valid {
		return nil, nil
	}
	return map[driver.Key]int64{letter.Key: stored.V}, nil
}
