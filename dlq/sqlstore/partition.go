package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-go/redrive/internal/sqldb"
)

// On PostgreSQL, a store that outgrows one table can be partitioned by month (?partition=month). Ids then begin with
// the month in which the letter was stored: 2026110000000017 is number 17, stored in November 2026. The partitions are
// ranges of ids: an entry and its bodies are in partitions of the same month, the primary key keeps ids unique, an id
// determines its partition, and no statement of this package changes. dlq_keys is not partitioned, because a delivery
// must be one entry across all months; it is a quarter of the store, and has no payloads.
//
// The tables of an existing store become the first partition as they are: nothing is copied.

// partitioned are the tables, and their columns with the entry's id.
var partitioned = []struct{ table, id string }{{"dlq_entries", "id"}, {"dlq_bodies", "entry_id"}}

const (
	idsPerMonth = 10_000_000_000 // more than a store gets in its life, and ids stay below 2^53, as JSON needs
	beforeMonth = "before"       // entries from before the partitioning
	otherMonth  = "other"        // entries kept from a dropped month, or restored from the archive
	monthsAhead = 3
)

const partitionedID = "to_char(now() AT TIME ZONE 'UTC', 'YYYYMM')::bigint * 10000000000 + " +
	"nextval('dlq_entries_id_seq') % 10000000000"

// monthOf is the month of a time as the prefix of ids.
func monthOf(at time.Time) int {
	at = at.UTC()
	return at.Year()*100 + int(at.Month())
}

// bounds are the first id of a month, and the first of the next.
func bounds(month int) (from, to int64) {
	next := month + 1
	if month%100 == 12 {
		next = month + 89
	}
	return int64(month) * idsPerMonth, int64(next) * idsPerMonth
}

func isPartitioned(ctx context.Context, db *sql.DB) (yes bool, err error) {
	err = db.QueryRowContext(ctx, "SELECT relkind = 'p' FROM pg_class WHERE oid = 'dlq_entries'::regclass").Scan(&yes)
	return yes, err
}

// partition partitions the store, unless it is already. One process does it while the others wait.
func (d postgres) partition(ctx context.Context, db *sql.DB) error {
	return sqldb.PostgreSQL.WithLock(ctx, db, "dlq partition", func() error {
		yes, err := isPartitioned(ctx, db)
		if err != nil || yes {
			return err
		}
		now := time.Now()
		if err := checkBounds(ctx, db, now); err != nil {
			return err
		}
		return durably(ctx, d.name(), db, func(tx *sql.Tx) error { return partitionTx(ctx, tx, now) })
	})
}

// checkBounds makes the database check that all ids are from before this month. Other transactions continue meanwhile;
// attaching the tables, which blocks them, then needs no check.
func checkBounds(ctx context.Context, db *sql.DB, now time.Time) error {
	to, _ := bounds(monthOf(now))
	for _, t := range partitioned {
		name := t.table + "_" + beforeMonth
		err := execAll(ctx, db, []string{
			"ALTER TABLE " + t.table + " DROP CONSTRAINT IF EXISTS " + name,
			fmt.Sprintf("ALTER TABLE %s ADD CONSTRAINT %s CHECK (%s < %d) NOT VALID", t.table, name, t.id, to),
			"ALTER TABLE " + t.table + " VALIDATE CONSTRAINT " + name,
		})
		if err != nil {
			return fmt.Errorf("partition: %w", err)
		}
	}
	return nil
}

func partitionTx(ctx context.Context, tx *sql.Tx, now time.Time) error {
	if _, err := tx.ExecContext(ctx, "LOCK TABLE dlq_keys IN ACCESS EXCLUSIVE MODE"); err != nil {
		return err
	}
	var view string
	var empty bool
	err := tx.QueryRowContext(ctx, "SELECT pg_get_viewdef('dlq_events'::regclass), NOT EXISTS (SELECT 1 FROM "+
		"dlq_entries)").Scan(&view, &empty)
	if err != nil {
		return err
	}
	var statements []string
	for _, t := range partitioned {
		made, err := partitionTable(ctx, tx, t.table, t.id)
		if err != nil {
			return err
		}
		statements = append(statements, made...)
	}
	statements = append(statements,
		"ALTER SEQUENCE dlq_entries_id_seq OWNED BY dlq_entries.id",
		"ALTER TABLE dlq_entries ALTER id SET DEFAULT "+partitionedID,
		"ALTER TABLE dlq_keys ALTER entry_id SET DEFAULT "+partitionedID,
		"CREATE OR REPLACE VIEW dlq_events AS "+view,
	)
	to, _ := bounds(monthOf(now))
	for _, t := range partitioned {
		before := t.table + "_" + beforeMonth
		if empty {
			statements = append(statements, "DROP TABLE "+before)
		} else {
			statements = append(statements,
				fmt.Sprintf("ALTER TABLE %s ATTACH PARTITION %s FOR VALUES FROM (MINVALUE) TO (%d)", t.table, before, to),
				"ALTER TABLE "+before+" DROP CONSTRAINT "+before)
		}
	}
	if err := execAll(ctx, tx, statements); err != nil {
		return fmt.Errorf("partition: %w", err)
	}
	for n := range monthsAhead {
		if err := makeMonth(ctx, tx, monthOf(firstOf(now).AddDate(0, n, 0))); err != nil {
			return err
		}
	}
	return nil
}

// partitionTable renames a table, creates a partitioned one in its place, and returns the statements for the rest.
func partitionTable(ctx context.Context, tx *sql.Tx, table, id string) ([]string, error) {
	before := table + "_" + beforeMonth
	statements := []string{
		"ALTER TABLE " + table + " RENAME TO " + before,
		"CREATE TABLE " + table + " (LIKE " + before +
			" INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING STORAGE) PARTITION BY RANGE (" + id + ")",
		"ALTER TABLE " + table + " DROP CONSTRAINT " + before,
	}
	query := "SELECT c.relname, pg_get_indexdef(i.indexrelid), coalesce(pg_get_constraintdef(k.oid), '') FROM pg_index i" +
		" JOIN pg_class c ON c.oid = i.indexrelid LEFT JOIN pg_constraint k ON k.conindid = i.indexrelid AND k.contype = " +
		"'p' WHERE i.indrelid = '" + table + "'::regclass ORDER BY 1"
	err := sqldb.Each(tx.QueryContext(ctx, query))(func(row sqldb.Row) error {
		var name, definition, primary string
		if err := row.Scan(&name, &definition, &primary); err != nil {
			return err
		}
		statements = append(statements, fmt.Sprintf("ALTER INDEX %q RENAME TO %q", name, name+"_"+beforeMonth))
		if primary != "" {
			definition = fmt.Sprintf("ALTER TABLE %s ADD CONSTRAINT %q %s", table, name, primary)
		}
		statements = append(statements, definition)
		return nil
	})
	return append(statements, "CREATE TABLE "+table+"_"+otherMonth+" PARTITION OF "+table+" DEFAULT"), err
}

func execAll(ctx context.Context, db sqldb.Execer, statements []string) error {
	for _, statement := range statements {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("%.60s: %w", statement, err)
		}
	}
	return nil
}

func firstOf(at time.Time) time.Time {
	at = at.UTC()
	return time.Date(at.Year(), at.Month(), 1, 0, 0, 0, 0, time.UTC)
}

// makeMonths creates the partitions of this month and the next ones. It is called whenever a store is opened or purged;
// entries of a month without a partition are stored in the default partition.
func (d postgres) makeMonths(ctx context.Context, db *sql.DB, now time.Time) error {
	for n := range monthsAhead {
		month := monthOf(firstOf(now).AddDate(0, n, 0))
		var there bool
		err := db.QueryRowContext(ctx, "SELECT to_regclass('dlq_bodies_"+strconv.Itoa(month)+"') IS NOT NULL").Scan(&there)
		if err == nil && !there {
			err = durably(ctx, d.name(), db, func(tx *sql.Tx) error { return makeMonth(ctx, tx, month) })
		}
		// 23514: the default partition already has letters of that month. 55P03: a long query holds the tables; the next
		// call tries again.
		if err != nil && !sqldb.IsCode(err, "23514", "55P03") {
			return fmt.Errorf("partition of %d: %w", month, err)
		}
	}
	return nil
}

// makeMonth attaches tables, which other transactions do not block; CREATE TABLE ... PARTITION OF would wait for all of
// them.
func makeMonth(ctx context.Context, tx *sql.Tx, month int) error {
	from, to := bounds(month)
	statements := []string{
		"SET LOCAL lock_timeout = '5s'",
		"SELECT pg_advisory_xact_lock(hashtext('dlq months'))",
	}
	if err := execAll(ctx, tx, statements); err != nil {
		return err
	}
	for _, t := range partitioned {
		name := t.table + "_" + strconv.Itoa(month)
		var there bool
		if err := tx.QueryRowContext(ctx, "SELECT to_regclass('"+name+"') IS NOT NULL").Scan(&there); err != nil {
			return err
		}
		if there {
			continue
		}
		err := execAll(ctx, tx, []string{
			"CREATE TABLE " + name + " (LIKE " + t.table + " INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING STORAGE)",
			fmt.Sprintf("ALTER TABLE %s ATTACH PARTITION %s FOR VALUES FROM (%d) TO (%d)", t.table, name, from, to),
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// months are the partitions that a purge may drop, the oldest first: those before this month.
func months(ctx context.Context, db *sql.DB, now time.Time) ([]string, error) {
	partitions, err := sqldb.Column[string](db.QueryContext(ctx, "SELECT c.relname FROM pg_inherits i"+
		" JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = 'dlq_entries'::regclass ORDER BY c.relname"))
	if err != nil {
		return nil, err
	}
	var found []string
	for _, table := range partitions {
		name := strings.TrimPrefix(table, "dlq_entries_")
		if month, err := strconv.Atoi(name); err == nil && month < monthOf(now) {
			found = append(found, name)
		} else if name == beforeMonth {
			found = append([]string{name}, found...)
		}
	}
	return found, nil
}
