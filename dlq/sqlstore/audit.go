package sqlstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	fit "github.com/redrive-go/redrive/dlq/internal/text"
	"github.com/redrive-go/redrive/internal/sqldb"
)

var auditColumns = []string{
	"at", "entry_id", "run_id", "actor", "action", "note", "from_status", "to_status", "version", "detail",
}

func (s *Store) insertAudit(ctx context.Context, tx *sql.Tx, records []driver.AuditRecord) error {
	rows := make([][]any, len(records))
	for i, r := range records {
		var detail any
		if len(r.Detail) > 0 {
			data, err := json.Marshal(r.Detail)
			if err != nil {
				return fmt.Errorf("audit: %w", err)
			}
			detail = string(data)
		}
		rows[i] = []any{
			s.dialect.time(r.At), r.EntryID, null(r.Run), fit.Clean(r.Actor, fit.MaxName), string(r.Action),
			fit.Clean(r.Note, fit.MaxError), string(r.From), string(r.To), r.Version, detail,
		}
	}
	if err := s.dialect.insertRows(ctx, s, tx, tableRows{"dlq_audit", auditColumns, rows}); err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	return nil
}

// Record appends to the audit log.
func (s *Store) Record(ctx context.Context, records ...driver.AuditRecord) error {
	for i := range records {
		if r := &records[i]; r.Actor == "" || r.Action == "" || r.At.IsZero() {
			return fmt.Errorf("sqlstore: record: %w: an audit record needs an actor, an action and a time", dlq.ErrInvalid)
		}
	}
	if len(records) == 0 {
		return nil
	}
	return s.inTx(ctx, "record", func(tx *sql.Tx) error { return s.insertAudit(ctx, tx, records) })
}

// Audit returns a page of the audit log.
func (s *Store) Audit(ctx context.Context, f dlq.AuditFilter, p dlq.Page) ([]driver.AuditRecord, string, error) {
	next := ""
	records, err := reading(s, "audit", func() ([]driver.AuditRecord, error) {
		p, cursor, err := p.Resolve()
		if err != nil {
			return nil, err
		}
		b := s.selectFrom("dlq_audit", append([]string{"id"}, auditColumns...)...)
		if f.EntryID != 0 {
			b.Where(b.EQ("entry_id", f.EntryID))
		}
		whereText(b, "run_id", f.Run)
		whereText(b, "actor", f.Actor)
		whereText(b, "action", string(f.Action))
		s.whereTimes(b, "at", f.From, f.To)
		s.page(b, [2]string{"at", "id"}, p, cursor)
		records, err := sqldb.All[driver.AuditRecord](s.find(ctx, b))(scanAudit)
		records, next = cutPage(records, p, func(r *driver.AuditRecord) (time.Time, int64) { return r.At, r.ID })
		return records, err
	})
	return records, next, err
}

func scanAudit(row sqldb.Row, r *driver.AuditRecord) error {
	var detail string
	err := row.Scan(&r.ID, timeValue{&r.At}, &r.EntryID, textValue{&r.Run}, &r.Actor, &r.Action, &r.Note, &r.From, &r.To,
		&r.Version, textValue{&detail})
	if err != nil || detail == "" {
		return err
	}
	if err := json.Unmarshal([]byte(detail), &r.Detail); err != nil {
		return fmt.Errorf("detail of record %d: %w", r.ID, err)
	}
	return nil
}
