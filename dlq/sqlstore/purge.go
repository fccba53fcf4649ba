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

// archiveColumns are the columns that dlq_events and the archive have: an entry's, its body's, and those that are there
// a second time, under the name or with the type that other systems use.
var archiveColumns = strings.Join(slices.Concat(
	[]string{"id"}, archivedColumns, bodyColumns[2:bodyProjection], []string{"event_payload"},
	bodyColumns[bodyProjection+1:],
	[]string{"kafka_topic", "correlation_id"},
), ", ")

// Purge removes closed entries in one transaction: each is copied to the archive before it is deleted.
func (s *Store) Purge(ctx context.Context, p dlq.Purge) (int, error) {
	p, err := p.Resolve()
	if err != nil {
		return 0, fmt.Errorf("sqlstore: purge: %w", err)
	}
	return writing(ctx, s, "purge", func(tx *sql.Tx) (int, error) { return s.purgeTx(ctx, tx, p) })
}

func (s *Store) purgeTx(ctx context.Context, tx *sql.Tx, p dlq.Purge) (int, error) {
	b := s.selectFrom("dlq_entries", selectEntry)
	s.where(b, &dlq.Filter{Statuses: p.Statuses, ResolvedBefore: p.ClosedBefore})
	b.Where(notRestored("dlq_entries", b.Var(s.dialect.time(p.ClosedBefore))))
	b.OrderBy("resolved_at").Limit(p.Limit)
	query, args := b.Build()
	entries, err := scanEntries(tx.QueryContext(ctx, query+s.forUpdate(), args...))
	if err != nil {
		return 0, err
	}
	all := changes{store: s, tx: tx}
	ids := make([]int64, len(entries))
	for i := range entries {
		e := &entries[i]
		ids[i] = e.ID
		all.deltas.remove(e)
		all.audit = append(all.audit, driver.AuditRecord{
			At: p.At, Actor: p.Actor, Action: driver.ActionPurge, Note: p.Note, EntryID: e.ID, Run: e.Run,
			From: e.Status, Version: e.Version, Detail: map[string]string{"event_id": e.EventID},
		})
	}
	if err := s.removeEntries(ctx, tx, ids, p); err != nil {
		return 0, err
	}
	return len(entries), all.writeAll(ctx)
}

// notRestored is a condition that an entry of a table was not restored from the archive since a time, which is a
// parameter or a literal. After a restore, retention starts again.
func notRestored(table, since string) string {
	return "NOT EXISTS (SELECT 1 FROM dlq_audit a WHERE a.entry_id = " + table + ".id AND a.action = '" +
		string(driver.ActionUnarchive) +
		"' AND a.at >= " + since + ")"
}

// archiveRevisions copies all revisions but the last, which is in the archive's row of the entry.
func archiveRevisions(d dialect, bodies, entries string) string {
	names := strings.Join(bodyColumns, ", b.")
	return "INSERT INTO " + d.archivedBodies() + " (" + strings.Join(bodyColumns, ", ") + ") SELECT b." + names +
		" FROM " + bodies +
		" b JOIN " + entries + " e ON e.id = b.entry_id WHERE b.revision <> e.revision"
}

func (s *Store) removeEntries(ctx context.Context, tx *sql.Tx, ids []int64, p dlq.Purge) error {
	archive := s.dialect.archive()
	var statements []inIDs
	if !p.SkipArchive {
		statements = []inIDs{
			{"DELETE FROM " + archive + " WHERE ", "id", nil}, // copies that were made by hand while the entry existed
			{
				"INSERT INTO " + archive + " (" + archiveColumns + ", archived_at) SELECT " + archiveColumns +
					", ? FROM dlq_events WHERE ", "id", []any{s.dialect.time(p.At)},
			},
			{archiveRevisions(s.dialect, "dlq_bodies", "dlq_entries") + " AND ", "e.id", nil},
		}
	}
	statements = append(statements,
		inIDs{"DELETE FROM dlq_bodies WHERE ", "entry_id", nil}, inIDs{"DELETE FROM dlq_entries WHERE ", "id", nil})
	if table, id := s.dialect.keys(); table != "dlq_entries" {
		statements = append(statements, inIDs{"DELETE FROM " + table + " WHERE ", id, nil})
	}
	if p.SkipArchive && s.dialect.partSize() > 0 { // otherwise they belong to the archive
		statements = append(statements, inIDs{"DELETE FROM dlq_parts WHERE ", "entry_id", nil})
	}
	return s.execAllIn(ctx, tx, ids, statements...)
}

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

// unarchiveSome copies archived entries whose key is free, the first with each key, and removes them from the archive.
func (s *Store) unarchiveSome(ctx context.Context, tx *sql.Tx, in string, args []any) ([]int64, error) {
	keys, _ := s.dialect.keys()
	archive := s.dialect.archive()
	ids, err := sqldb.Column[int64](s.query(ctx, tx, "SELECT min(id) FROM "+archive+" WHERE "+in+
		" AND NOT EXISTS (SELECT 1 FROM "+keys+" k WHERE k.dedup_key = "+archive+".dedup_key) GROUP BY dedup_key", args...))
	if err != nil {
		return nil, err
	}
	slices.Sort(ids)
	archived, names := strings.Join(archivedColumns, ", "), strings.Join(bodyColumns, ", ")
	bodies := s.dialect.archivedBodies()
	statements := []inIDs{
		{
			"INSERT INTO dlq_entries (id, " + strings.Join(entryColumns, ", ") + ") SELECT id, " + archived + " FROM " +
				archive + " WHERE ", "id", nil,
		},
		{
			"INSERT INTO dlq_bodies (" + names + ") SELECT id, revision, message_uuid, payload, " +
				s.dialect.archivedProjection() + ", payload_sha256, content_type, headers, stack_trace FROM " + archive +
				" WHERE ", "id", nil,
		},
	}
	if keys != "dlq_entries" {
		statements = append(statements, inIDs{
			"INSERT INTO " + keys + " (entry_id, " + strings.Join(keyColumns, ", ") +
				") SELECT id, dedup_key, event_id, source_id, correlation FROM " + archive + " WHERE ", "id", nil,
		})
	}
	return ids, s.execAllIn(ctx, tx, ids, append(statements,
		inIDs{"DELETE FROM " + archive + " WHERE ", "id", nil},
		inIDs{"INSERT INTO dlq_bodies (" + names + ") SELECT " + names + " FROM " + bodies + " WHERE ", "entry_id", nil},
		inIDs{"DELETE FROM " + bodies + " WHERE ", "entry_id", nil})...)
}

// countBack writes the statistics and the audit records of restored entries.
func (s *Store) countBack(ctx context.Context, tx *sql.Tx, by dlq.By, at time.Time, ids []int64) error {
	entries, err := s.lockEntries(ctx, tx, ids)
	if err != nil {
		return err
	}
	all := changes{store: s, tx: tx}
	for _, id := range ids {
		e := entries[id]
		all.deltas.add(e)
		all.audit = append(all.audit, driver.AuditRecord{
			At: at, Actor: by.Actor, Action: driver.ActionUnarchive, Note: by.Note, EntryID: id, To: e.Status,
			Version: e.Version,
		})
	}
	return all.writeAll(ctx)
}
