package sqlstore

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/redrive-go/redrive/dlq"
)

// archiveColumns are the columns of dlq_events, which the archive has too.
const archiveColumns = "id, event_id, event_type, source_table, source_id, event_payload, error_message, stack_trace, retry_count," +
	" max_retries, status, created_at, last_retry_at, resolved_at, resolved_by, kafka_offset, kafka_partition, kafka_topic," +
	" correlation_id, correlation, payload, payload_sha256, payload_size, content_type, headers, message_uuid, broker, topic, consumer, handler," +
	" exchange, routing_key, message_key, position, broker_time, reason, error_class, error_code, rule, fingerprint, attempts," +
	" version, seen_count, death_redrive, lease_until, run_id, first_failure_at, died_at, last_seen_at, succeeded_at, changed_at," +
	" changed_by, revision, dedup_key"

// Purge removes closed entries in one transaction: each is copied to the archive before it is deleted (C35).
func (s *Store) Purge(ctx context.Context, p dlq.Purge) (int, error) {
	p, err := p.Resolve()
	if err != nil {
		return 0, fmt.Errorf("sqlstore: purge: %w", err)
	}
	var removed int
	err = s.inTx(ctx, "purge", func(tx *sql.Tx) (err error) {
		removed, err = s.purgeTx(ctx, tx, p)
		return err
	})
	if err != nil {
		return 0, err
	}
	return removed, nil
}

func (s *Store) purgeTx(ctx context.Context, tx *sql.Tx, p dlq.Purge) (int, error) {
	b := s.dialect.flavor().NewSelectBuilder()
	b.Select(selectEntry).From("dlq_entries")
	s.where(b, &dlq.Filter{Statuses: p.Statuses, ResolvedBefore: p.ClosedBefore})
	b.OrderBy("resolved_at").Limit(p.Limit)
	query, args := b.Build()
	rows, err := tx.QueryContext(ctx, query+s.dialect.forUpdate(), args...)
	if err != nil {
		return 0, err
	}
	entries, err := scanEntries(rows)
	if err != nil {
		return 0, err
	}
	var counted deltas
	audit := make([]dlq.AuditRecord, 0, len(entries))
	for i := range entries {
		e := &entries[i]
		counted.remove(e)
		audit = append(audit, dlq.AuditRecord{
			At: p.At, Actor: p.Actor, Action: dlq.ActionPurge, Note: p.Note, EntryID: e.ID, Run: e.Run,
			From: e.Status, Version: e.Version, Detail: map[string]string{"event_id": e.EventID},
		})
	}
	for chunk := range chunks(entries) {
		if err := s.removeEntries(ctx, tx, chunk, p); err != nil {
			return 0, err
		}
	}
	if err := s.insertAudit(ctx, tx, audit); err != nil {
		return 0, err
	}
	return len(entries), counted.apply(ctx, s, tx)
}

func (s *Store) removeEntries(ctx context.Context, tx *sql.Tx, entries []dlq.Entry, p dlq.Purge) error {
	ids := make([]any, len(entries))
	for i := range entries {
		ids[i] = entries[i].ID
	}
	in := " IN " + questionMarks(len(ids), 1)
	if !p.SkipArchive {
		query := "INSERT INTO " + s.dialect.archive() + " (" + archiveColumns + ", archived_at) SELECT " + archiveColumns +
			", ? FROM dlq_events WHERE id" + in
		if _, err := tx.ExecContext(ctx, s.dialect.rebind(query), append([]any{s.dialect.time(p.At)}, ids...)...); err != nil {
			return fmt.Errorf("archive: %w", err)
		}
	}
	removals := []string{"DELETE FROM dlq_bodies WHERE entry_id" + in, "DELETE FROM dlq_entries WHERE id" + in}
	if table, id := s.dialect.keys(); table != "dlq_entries" {
		removals = append(removals, "DELETE FROM "+table+" WHERE "+id+in)
	}
	if p.SkipArchive && s.dialect.splits() {
		removals = append(removals, "DELETE FROM dlq_parts WHERE entry_id"+in) // else they belong to the archive
	}
	for _, query := range removals {
		if _, err := tx.ExecContext(ctx, s.dialect.rebind(query), ids...); err != nil {
			return err
		}
	}
	return nil
}
