package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/internal/sqldb"
)

var _ driver.ArchiveStore = (*Store)(nil)

// Unarchive moves entries back from the archive, in one transaction.
func (s *Store) Unarchive(ctx context.Context, by dlq.By, at time.Time, ids ...int64) ([]int64, error) {
	if by.Actor == "" || at.IsZero() {
		return nil, fmt.Errorf("sqlstore: unarchive: %w: without an actor or a time", dlq.ErrInvalid)
	}
	ids = slices.Compact(slices.Sorted(slices.Values(ids)))
	return writing(ctx, s, "unarchive", func(tx *sql.Tx) (back []int64, err error) {
		for in, args := range s.dialect.idIn("id", ids) {
			moved, err := s.unarchiveSome(ctx, tx, in, args)
			if err != nil {
				return nil, err
			}
			back = append(back, moved...)
		}
		return back, s.countBack(ctx, tx, by, at, back)
	})
}

// unarchiveSome copies archived entries whose key is free, and removes them from the archive.
func (s *Store) unarchiveSome(ctx context.Context, tx *sql.Tx, in string, args []any) ([]int64, error) {
	keys, _ := s.dialect.keys()
	archive := s.dialect.archive()
	ids, err := sqldb.Column[int64](s.query(ctx, tx, "SELECT id FROM "+archive+" WHERE "+in+
		" AND NOT EXISTS (SELECT 1 FROM "+keys+" k WHERE k.dedup_key = "+archive+".dedup_key)", args...))
	if err != nil {
		return nil, err
	}
	slices.Sort(ids)
	entries := strings.Join(entryColumns, ", ")
	archived := strings.Join(archivedColumns, ", ")
	queries := []string{
		"INSERT INTO dlq_entries (id, " + entries + ") SELECT id, " + archived + " FROM " + archive,
		"INSERT INTO dlq_bodies (" + strings.Join(bodyColumns, ", ") + ") SELECT id, revision, message_uuid, payload, " +
			s.dialect.archivedProjection() + ", payload_sha256, content_type, headers, stack_trace FROM " + archive,
	}
	if keys != "dlq_entries" {
		queries = append(queries, "INSERT INTO "+keys+" (entry_id, "+strings.Join(keyColumns, ", ")+
			") SELECT id, dedup_key, event_id, source_id, correlation FROM "+archive)
	}
	queries = append(queries, "DELETE FROM "+archive)
	for in, args := range s.dialect.idIn("id", ids) {
		for _, query := range queries {
			if _, err := s.exec(ctx, tx, query+" WHERE "+in, args...); err != nil {
				return nil, err
			}
		}
	}
	names, bodies := strings.Join(bodyColumns, ", "), s.dialect.archivedBodies()
	for in, args := range s.dialect.idIn("entry_id", ids) {
		for _, query := range []string{
			"INSERT INTO dlq_bodies (" + names + ") SELECT " + names + " FROM " + bodies, "DELETE FROM " + bodies,
		} {
			if _, err := s.exec(ctx, tx, query+" WHERE "+in, args...); err != nil {
				return nil, err
			}
		}
	}
	return ids, nil
}

// countBack writes the statistics and the audit records of restored entries.
func (s *Store) countBack(ctx context.Context, tx *sql.Tx, by dlq.By, at time.Time, ids []int64) error {
	entries, err := s.lockEntries(ctx, tx, ids)
	if err != nil {
		return err
	}
	var counted deltas
	var audit []driver.AuditRecord
	for _, id := range ids {
		e := entries[id]
		counted.add(e)
		audit = append(audit, driver.AuditRecord{
			At: at, Actor: by.Actor, Action: driver.ActionUnarchive, Note: by.Note, EntryID: id, To: e.Status,
			Version: e.Version,
		})
	}
	if err := s.insertAudit(ctx, tx, audit); err != nil {
		return err
	}
	return counted.apply(ctx, s, tx)
}
