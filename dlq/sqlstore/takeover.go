package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"sync"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/internal/sqldb"
)

// Takeover is the result of [TakeOver].
type Takeover struct {
	// Kept is the table with the original rows. It was renamed if its name was that of our view.
	Kept string
	// Before is the number of rows by status, After that of their entries.
	Before, After map[string]int64
	// Stored is the number of new entries, Seen that of entries from an earlier call.
	Stored, Seen int64
}

// keptSuffix is appended to the name of a table or an index that had one of our names.
const keptSuffix = "_before_redrive"

// TakeOver makes a store in a PostgreSQL database with an existing dead letter table, with the columns id, event_id,
// event_type, source_table, source_id, event_payload, error_message, stack_trace, retry_count, max_retries, status,
// created_at, last_retry_at, resolved_at, resolved_by, kafka_offset, kafka_partition, kafka_topic and correlation_id,
// and copies its rows. A table outside of the store's schema (see the parameter schema of the URL) is not changed. In
// the same schema the table, its archive and indexes are renamed where their names are ours, but nothing in them is
// changed or removed; when TakeOver fails, programs can still insert into dlq_events. Times without a zone are read in
// the session's. It may be repeated: existing entries are not changed. Rows inserted into dlq_events later go to the
// original table, and another call takes them over.
func TakeOver(ctx context.Context, rawURL, table string, by dlq.By) (*Takeover, error) {
	u, err := driver.ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	t, err := parseURL(u)
	if err != nil {
		return nil, fmt.Errorf("sqlstore: %w", err)
	}
	done, err := t.takeOver(ctx, table, by)
	if err != nil {
		return nil, fmt.Errorf("sqlstore: take over table %q: %w", table, t.Hide(t.Dialect.Advise(err)))
	}
	return done, nil
}

func (t *target) takeOver(ctx context.Context, table string, by dlq.By) (*Takeover, error) {
	d, ok := t.dialect.(postgres)
	if !ok {
		return nil, fmt.Errorf("%w: only tables of PostgreSQL; export others as JSON lines for redrive dlq import",
			dlq.ErrInvalid)
	}
	if by.Actor == "" {
		return nil, fmt.Errorf("%w: no actor: name the person who does it", dlq.ErrInvalid)
	}
	t.writers = max(t.writers, 3) // one holds the lock
	bare := &Store{dialect: d}
	if err := t.pools(ctx, bare); err != nil {
		return nil, err
	}
	defer func() { _ = bare.closeDB() }()
	done := &Takeover{}
	return done, sqldb.PostgreSQL.WithLock(ctx, bare.write, "dlq takeover", func() error {
		return t.takeOverLocked(ctx, done, bare.write, table, by)
	})
}

// takeOverLocked is takeOver under the lock.
func (t *target) takeOverLocked(ctx context.Context, done *Takeover, db *sql.DB, table string, by dlq.By) error {
	d, _ := t.dialect.(postgres)
	err := d.makeSchemas(ctx, db)
	if err == nil {
		err = d.checkPath(ctx, db)
	}
	if err != nil {
		return err
	}
	if table, done.Kept, err = d.renameExisting(ctx, db, table); err != nil {
		return err
	}
	t.migrate = true
	s, err := t.open(ctx)
	if err == nil {
		defer s.Close()
		if done.Kept != table {
			err = d.divert(ctx, db, done.Kept)
		}
	}
	if err != nil {
		return errors.Join(err, d.resumeInserts(context.WithoutCancel(ctx), db, table, done.Kept))
	}
	if done.Before, err = countByStatus(ctx, db.QueryContext, done.Kept); err != nil {
		return err
	}
	if err := done.copy(ctx, db, s, by); err != nil {
		return err
	}
	// the rows with an entry, which may be in the archive by now, by the status of the row: that of the entry may have
	// changed since
	done.After, err = counted(db.QueryContext(ctx, "SELECT "+statusOf+", count(*) FROM "+quoteTable(done.Kept)+
		" t WHERE 'dlq_events/' || t.id IN (SELECT position FROM dlq_entries UNION ALL SELECT position FROM "+
		d.archive()+") GROUP BY 1"))
	if err == nil && !maps.Equal(done.Before, done.After) {
		err = fmt.Errorf("the table has %v, and of them the store has %v: repeat it when nothing writes to the table",
			done.Before, done.After)
	}
	return err
}

// renameExisting renames tables and indexes that have our names. It returns the table's previous name, with its schema
// if that is not the store's, and its new name.
func (d postgres) renameExisting(ctx context.Context, db *sql.DB, table string) (was, kept string, err error) {
	err = sqldb.InTx(ctx, db, nil, func(tx *sql.Tx) error {
		for _, name := range []string{table, table + keptSuffix, "public." + table} {
			var there bool
			err := tx.QueryRowContext(ctx, "SELECT count(*) > 0 FROM pg_class WHERE oid = to_regclass($1)"+
				" AND relkind IN ('r', 'p')", quoteTable(name)).Scan(&there)
			if err == nil && there {
				err = checkStatuses(ctx, tx, name)
			}
			if err != nil {
				return err
			}
			if there && name == table+keptSuffix { // an earlier call got this far
				was, kept = table, name
				return nil
			}
			if there {
				was, kept, err = d.rename(ctx, tx, name)
				return err
			}
			if strings.Contains(table, ".") && name != table {
				break // it includes its schema
			}
		}
		return fmt.Errorf("%w: there is no such table", dlq.ErrNotFound)
	})
	return was, kept, err
}

// checkStatuses fails if a row has a status that no entry can have.
func checkStatuses(ctx context.Context, tx *sql.Tx, table string) error {
	counts, err := countByStatus(ctx, tx.QueryContext, table)
	for text, n := range counts {
		status := dlq.Status(text)
		if !status.Valid() && text != "" || status == dlq.Retrying {
			err = fmt.Errorf("%w: %d of its rows have the status %q: give them one of %s, %s, %s and %s first",
				dlq.ErrInvalid, n, text, dlq.Pending, dlq.Parked, dlq.Resolved, dlq.Discarded)
		}
	}
	return err
}

// rename renames a table, or its indexes, only where the name is one of the store's.
func (d postgres) rename(ctx context.Context, tx *sql.Tx, table string) (was, kept string, err error) {
	var inSchema, left bool // in the store's
	err = tx.QueryRowContext(ctx, "SELECT relnamespace = current_schema()::regnamespace, to_regclass(quote_ident("+
		"current_schema()) || '.dlq_entries') IS NOT NULL FROM pg_class WHERE oid = to_regclass($1)",
		quoteTable(table)).Scan(&inSchema, &left)
	if err != nil || !inSchema {
		return table, table, err
	}
	kept = table
	if unqualified(table) == "dlq_events" {
		kept = table + keptSuffix
		if left { // its entries have the keys of these rows, but the states of that time
			return "", "", fmt.Errorf("%w: this schema has a store whose view was renamed to go back: use another schema "+
				"(--schema, or schema in the URL)", dlq.ErrInvalid)
		}
	}
	for _, foreign := range []string{table, d.archive()} {
		if err := renameForeign(ctx, tx, foreign); err != nil {
			return "", "", err
		}
	}
	return table, kept, nil
}

// resumeInserts lets inserts into the table continue after a failed call.
func (d postgres) resumeInserts(ctx context.Context, db *sql.DB, table, kept string) error {
	if table == kept {
		return nil
	}
	var view bool
	if err := db.QueryRowContext(ctx, "SELECT to_regclass($1) IS NOT NULL", quoteTable(table)).Scan(&view); err != nil {
		return err
	}
	if view {
		return d.divert(ctx, db, kept)
	}
	_, err := db.ExecContext(ctx, "ALTER TABLE "+quoteTable(kept)+" RENAME TO "+quoteName(unqualified(table)))
	return err
}

// renameForeign renames another system's table that has one of our names, and its indexes. Our tables are recognized by
// a column.
func renameForeign(ctx context.Context, tx *sql.Tx, table string) error {
	var foreign bool
	err := tx.QueryRowContext(ctx, `SELECT count(*) > 0 FROM pg_class c WHERE c.oid = to_regclass($1) AND c.relkind IN ('r', 'p')
		AND NOT EXISTS (SELECT 1 FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'payload_sha256')`,
		quoteTable(table)).Scan(&foreign)
	if err != nil || !foreign {
		return err
	}
	statements, err := sqldb.All[string](tx.QueryContext(ctx, "SELECT indexrelid::regclass::text, relname FROM pg_index i"+
		" JOIN pg_class c ON c.oid = i.indexrelid WHERE indrelid = to_regclass($1)", quoteTable(table)))(
		func(row sqldb.Row, statement *string) error {
			var index, name string
			err := row.Scan(&index, &name)
			*statement = "ALTER INDEX " + index + " RENAME TO " +
				quoteName(name[:min(len(name), 63-len(keptSuffix))]+keptSuffix)
			return err
		})
	if err != nil {
		return err
	}
	if name := unqualified(table); name == "dlq_events" || name == "dlq_events_archive" {
		statements = append(statements, "ALTER TABLE "+quoteTable(table)+" RENAME TO "+quoteName(name+keptSuffix))
	}
	return execAll(ctx, tx, statements)
}

// divert redirects inserts into dlq_events, which is now a view, to the original table. Consumers that have not
// migrated yet continue, and the next call takes over their rows.
func (d postgres) divert(ctx context.Context, db *sql.DB, kept string) error {
	const columns = "event_id, event_type, source_table, source_id, event_payload, error_message, stack_trace, " +
		"last_retry_at, resolved_at, resolved_by, kafka_offset, kafka_partition, kafka_topic, correlation_id"
	err := execAll(ctx, db, []string{
		`CREATE OR REPLACE FUNCTION dlq_events` + keptSuffix + `_insert() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		INSERT INTO ` + quoteTable(kept) + ` (` + columns + `, retry_count, max_retries, status, created_at)
		VALUES (NEW.` + strings.ReplaceAll(columns, ", ", ", NEW.") +
			`, COALESCE(NEW.retry_count, 0), COALESCE(NEW.max_retries, 3),
			COALESCE(NEW.status, 'PENDING'), COALESCE(NEW.created_at, CURRENT_TIMESTAMP))
		RETURNING id INTO NEW.id;
		RETURN NEW;
		END $$`,
		"DROP TRIGGER IF EXISTS dlq_events" + keptSuffix + "_insert ON dlq_events",
		"CREATE TRIGGER dlq_events" + keptSuffix + "_insert INSTEAD OF INSERT ON dlq_events" +
			" FOR EACH ROW EXECUTE FUNCTION dlq_events" + keptSuffix + "_insert()",
	})
	if err != nil {
		return fmt.Errorf("redirect inserts into dlq_events to %s: %w", kept, err)
	}
	if err := copyGrants(ctx, db, kept, "dlq_events"); err != nil {
		return err
	}
	return copyGrants(ctx, db, d.archive()+keptSuffix, d.archive())
}

// copyGrants grants the rights on one table to the roles that have them on another.
func copyGrants(ctx context.Context, db *sql.DB, from, to string) error {
	grants, err := sqldb.Column[string](db.QueryContext(ctx, "SELECT 'GRANT ' || a.privilege_type || ' ON "+
		quoteTable(to)+" TO ' || CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END"+
		" FROM pg_class c CROSS JOIN aclexplode(c.relacl) a"+
		" WHERE c.oid = to_regclass($1) AND a.privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE')", quoteTable(from)))
	if err != nil {
		return err
	}
	return execAll(ctx, db, grants)
}

// copy imports the rows.
func (done *Takeover) copy(ctx context.Context, db *sql.DB, s *Store, by dlq.By) error {
	manager, err := dlq.NewManager(dlq.ManagerConfig{Store: s})
	if err != nil {
		return err
	}
	reader, writer := io.Pipe()
	var reading sync.WaitGroup
	reading.Go(func() {
		_ = writer.CloseWithError(sqldb.InTx(ctx, db, nil, func(tx *sql.Tx) error {
			if err := sqldb.Unlimited(ctx, tx); err != nil { // storing may take longer than a result may wait for its reader
				return err
			}
			// The cast reads a timestamp without a zone as one in the session's zone.
			return sqldb.Each(tx.QueryContext(ctx, "SELECT (to_jsonb(t) || jsonb_build_object('created_at',"+
				" t.created_at::timestamptz, 'last_retry_at', t.last_retry_at::timestamptz, 'resolved_at',"+
				" t.resolved_at::timestamptz))::text FROM "+quoteTable(done.Kept)+" t ORDER BY t.id"))(func(row sqldb.Row) error {
				var line string
				err := row.Scan(&line)
				if err == nil {
					_, err = io.WriteString(writer, line+"\n")
				}
				return err
			})
		}))
	})
	imported, err := manager.Import(ctx, reader, by)
	_ = reader.Close()
	reading.Wait()
	done.Stored, done.Seen = imported.Stored, imported.Seen
	return err
}

// statusOf is the status of a row as an entry has it; the column may be an enum.
const statusOf = "upper(trim(coalesce(t.status::text, 'PENDING')))"

func countByStatus(ctx context.Context, query func(context.Context, string, ...any) (*sql.Rows, error), table string) (
	map[string]int64, error,
) {
	return counted(query(ctx, "SELECT "+statusOf+", count(*) FROM "+quoteTable(table)+" t GROUP BY 1"))
}

func counted(rows *sql.Rows, err error) (map[string]int64, error) {
	counts := map[string]int64{}
	return counts, sqldb.Each(rows, err)(func(row sqldb.Row) error {
		var status string
		var n int64
		err := row.Scan(&status, &n)
		counts[status] = n
		return err
	})
}

// quoteTable quotes a name that may have a schema.
func quoteTable(name string) string {
	parts := strings.Split(name, ".")
	for i := range parts {
		if !strings.HasPrefix(parts[i], `"`) {
			parts[i] = quoteName(parts[i])
		}
	}
	return strings.Join(parts, ".")
}

func quoteName(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

func unqualified(name string) string { return name[strings.LastIndex(name, ".")+1:] }
