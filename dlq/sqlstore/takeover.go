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
)

// Takeover is what [TakeOver] has done.
type Takeover struct {
	// Kept is the table with the rows as they were: under another name when its own is that of our view.
	Kept string
	// Before are the rows of the table by status, After the entries that are there of them.
	Before, After map[string]int64
	// Stored are new entries, Seen were taken over by an earlier call.
	Stored, Seen int64
}

// keptSuffix is behind the name of a table, or of an index, that made room for ours.
const keptSuffix = "_before_redrive"

// TakeOver makes a store in a PostgreSQL database that has a dead letter table already, with the columns id, event_id,
// event_type, source_table, source_id, event_payload, error_message, stack_trace, retry_count, max_retries, status,
// created_at, last_retry_at, resolved_at, resolved_by, kafka_offset, kafka_partition, kafka_topic and correlation_id,
// and copies its rows. A table, an archive and indexes that have names of ours get others, and nothing of them is
// changed or removed. Times without a zone are read in that of the session. It may be repeated: rows that are there
// already stay as they are. What is inserted into dlq_events later goes to the table that was there, and a repetition
// takes it over.
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
		return nil, fmt.Errorf("sqlstore: take over table %q: %w", table, t.Hide(err))
	}
	return done, nil
}

func (t *target) takeOver(ctx context.Context, table string, by dlq.By) (*Takeover, error) {
	if t.Dialect != PostgreSQL {
		return nil, fmt.Errorf("%w: tables of PostgreSQL only; write the rows of others as JSON lines, which redrive dlq import reads",
			dlq.ErrInvalid)
	}
	if by.Actor == "" {
		return nil, fmt.Errorf("%w: no actor: say who does it", dlq.ErrInvalid)
	}
	bare := &Store{dialect: t.dialect}
	if err := t.pools(ctx, bare); err != nil {
		return nil, err
	}
	defer func() { _ = bare.closeDB() }()
	done := &Takeover{}
	var err error
	if done.Kept, err = makeRoom(ctx, bare.write, table); err != nil {
		return nil, err
	}
	t.migrate = true
	s, err := t.open(ctx)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	if done.Before, err = countByStatus(ctx, bare.write, done.Kept); err != nil {
		return nil, err
	}
	if strings.HasSuffix(done.Kept, keptSuffix) {
		if err := divert(ctx, bare.write, done.Kept); err != nil {
			return nil, err
		}
	}
	if err := done.copy(ctx, bare.write, s, by); err != nil {
		return nil, err
	}
	done.After, err = countTaken(ctx, bare.write, done.Kept)
	if err == nil && !maps.Equal(done.Before, done.After) {
		err = fmt.Errorf("the table has %v, and of them the store has %v: repeat it when nothing writes to the table", done.Before, done.After)
	}
	return done, err
}

// makeRoom renames what has names of ours, and returns the table's name from then on.
func makeRoom(ctx context.Context, db *sql.DB, table string) (kept string, err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return "", err
	}
	defer func() { _ = tx.Rollback() }()
	isTable := func(name string) (is bool, err error) {
		err = tx.QueryRowContext(ctx, "SELECT count(*) > 0 FROM pg_class WHERE oid = to_regclass($1) AND relkind IN ('r', 'p')", name).Scan(&is)
		return is, err
	}
	there, err := isTable(quoteTable(table))
	if err != nil {
		return "", err
	}
	again, err := isTable(quoteTable(table + keptSuffix))
	switch {
	case err != nil:
		return "", err
	case !there && again: // an earlier call has come so far at least
		return table + keptSuffix, tx.Commit()
	case !there:
		return "", fmt.Errorf("%w: there is no such table", dlq.ErrNotFound)
	}
	for _, rename := range []struct{ table, to string }{
		{table, "dlq_events" + keptSuffix}, {"archive.dlq_events_archive", "dlq_events_archive" + keptSuffix},
	} {
		if err := renameForeign(ctx, tx, rename.table, rename.to); err != nil {
			return "", err
		}
	}
	if kept = table; unqualified(table) == "dlq_events" {
		kept = table + keptSuffix
	}
	return kept, tx.Commit()
}

// renameForeign renames a table that has a name of ours, and its indexes. Ours have columns that others have not.
func renameForeign(ctx context.Context, tx *sql.Tx, table, to string) error {
	var foreign bool
	err := tx.QueryRowContext(ctx, `SELECT count(*) > 0 FROM pg_class c WHERE c.oid = to_regclass($1) AND c.relkind IN ('r', 'p')
		AND NOT EXISTS (SELECT 1 FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'payload_sha256')`,
		quoteTable(table)).Scan(&foreign)
	if err != nil || !foreign {
		return err
	}
	rows, err := tx.QueryContext(ctx, "SELECT indexrelid::regclass::text, relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"+
		" WHERE indrelid = to_regclass($1)", quoteTable(table))
	if err != nil {
		return err
	}
	defer rows.Close()
	var statements []string
	for rows.Next() {
		var index, name string
		if err := rows.Scan(&index, &name); err != nil {
			return err
		}
		statements = append(statements, "ALTER INDEX "+index+" RENAME TO "+quoteName(name[:min(len(name), 63-len(keptSuffix))]+keptSuffix))
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return err
	}
	if name := unqualified(table); name == "dlq_events" || name == "dlq_events_archive" {
		statements = append(statements, "ALTER TABLE "+quoteTable(table)+" RENAME TO "+quoteName(to))
	}
	for _, statement := range statements {
		if _, err := tx.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// divert leads what is still inserted into dlq_events, which is a view from now on, to the table that was there:
// consumers that have not moved in yet notice nothing, and the next call takes their rows over.
func divert(ctx context.Context, db *sql.DB, kept string) error {
	const columns = "event_id, event_type, source_table, source_id, event_payload, error_message, stack_trace, last_retry_at, resolved_at," +
		" resolved_by, kafka_offset, kafka_partition, kafka_topic, correlation_id"
	for _, statement := range []string{
		`CREATE OR REPLACE FUNCTION dlq_events` + keptSuffix + `_insert() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		INSERT INTO ` + quoteTable(kept) + ` (` + columns + `, retry_count, max_retries, status, created_at)
		VALUES (NEW.` + strings.ReplaceAll(columns, ", ", ", NEW.") + `, COALESCE(NEW.retry_count, 0), COALESCE(NEW.max_retries, 3),
			COALESCE(NEW.status, 'PENDING'), COALESCE(NEW.created_at, CURRENT_TIMESTAMP))
		RETURNING id INTO NEW.id;
		RETURN NEW;
		END $$`,
		"DROP TRIGGER IF EXISTS dlq_events" + keptSuffix + "_insert ON dlq_events",
		"CREATE TRIGGER dlq_events" + keptSuffix + "_insert INSTEAD OF INSERT ON dlq_events" +
			" FOR EACH ROW EXECUTE FUNCTION dlq_events" + keptSuffix + "_insert()",
	} {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("lead what is inserted into dlq_events to %s: %w", kept, err)
		}
	}
	return nil
}

// copy imports the rows.
func (done *Takeover) copy(ctx context.Context, db *sql.DB, s *Store, by dlq.By) error {
	manager, err := dlq.NewManager(dlq.ManagerConfig{Store: s})
	if err != nil {
		return err
	}
	// A timestamp without a zone is one of the session's, which the cast makes of it.
	//nolint:gosec,rowserrcheck // G202: a quoted name; writeLines checks
	rows, err := db.QueryContext(ctx, "SELECT (to_jsonb(t) || jsonb_build_object('created_at', t.created_at::timestamptz,"+
		" 'last_retry_at', t.last_retry_at::timestamptz, 'resolved_at', t.resolved_at::timestamptz))::text"+
		" FROM "+quoteTable(done.Kept)+" t ORDER BY t.id")
	if err != nil {
		return err
	}
	defer rows.Close()
	reader, writer := io.Pipe()
	var reading sync.WaitGroup
	reading.Go(func() { _ = writer.CloseWithError(writeLines(rows, writer)) })
	imported, err := manager.Import(ctx, reader, by)
	_ = reader.Close()
	reading.Wait()
	done.Stored, done.Seen = imported.Stored, imported.Seen
	return err
}

// writeLines writes rows of one column, a line each.
func writeLines(rows *sql.Rows, to io.Writer) error {
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			return err
		}
		if _, err := io.WriteString(to, line+"\n"); err != nil {
			return err
		}
	}
	return rows.Err()
}

func countByStatus(ctx context.Context, db *sql.DB, table string) (map[string]int64, error) {
	return counted(db.QueryContext(ctx, "SELECT upper(coalesce(status, 'PENDING')), count(*) FROM "+quoteTable(table)+" GROUP BY 1"))
}

// countTaken counts the entries of rows, by the status of the row: an entry may be another meanwhile.
func countTaken(ctx context.Context, db *sql.DB, table string) (map[string]int64, error) {
	return counted(db.QueryContext(ctx, "SELECT upper(coalesce(t.status, 'PENDING')), count(*) FROM "+quoteTable(table)+
		" t WHERE EXISTS (SELECT 1 FROM dlq_entries e WHERE e.position = 'dlq_events/' || t.id) GROUP BY 1"))
}

func counted(rows *sql.Rows, err error) (map[string]int64, error) {
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	counts := map[string]int64{}
	for rows.Next() {
		var status string
		var n int64
		if err := rows.Scan(&status, &n); err != nil {
			return nil, err
		}
		counts[status] = n
	}
	return counts, rows.Err()
}

// quoteTable quotes a name that may have a schema in front.
func quoteTable(name string) string {
	parts := strings.Split(name, ".")
	for i := range parts {
		parts[i] = quoteName(parts[i])
	}
	return strings.Join(parts, ".")
}

func quoteName(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

func unqualified(name string) string { return name[strings.LastIndex(name, ".")+1:] }
