package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"slices"
	"strconv"
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

// maxKept limits how many entries of a dropped month may be kept: one for this many purged ones. They are copied.
const maxKept = 10

// PurgeMonths drops the partitions of months in which nearly all entries are to be purged, after one statement has
// copied these to the archive. The month's other entries move to the default partition. It returns the number of purged
// entries, 0 for a store that is not partitioned. In the audit log a dropped month is one record.
func (s *Store) PurgeMonths(ctx context.Context, p dlq.Purge) (int, error) {
	p, err := p.Resolve()
	if err != nil {
		return 0, fmt.Errorf("sqlstore: purge: %w", err)
	}
	d, ok := s.dialect.(postgres)
	if !ok {
		return 0, nil
	}
	if err := s.checkOpen("purge"); err != nil {
		return 0, err
	}
	total, err := s.purgeMonths(ctx, d, p)
	if err != nil {
		return total, fmt.Errorf("sqlstore: purge: %w", err)
	}
	return total, nil
}

func (s *Store) purgeMonths(ctx context.Context, d postgres, p dlq.Purge) (int, error) {
	yes, err := isPartitioned(ctx, s.write)
	if err != nil || !yes {
		return 0, err
	}
	if err := d.makeMonths(ctx, s.write, p.At); err != nil {
		return 0, err
	}
	candidates, err := months(ctx, s.write, p.At)
	if err != nil {
		return 0, err
	}
	total := 0
	for _, month := range candidates {
		var n int
		err := durably(ctx, PostgreSQL, s.write, func(tx *sql.Tx) (err error) {
			n, err = s.dropMonth(ctx, tx, month, p)
			return err
		})
		if err != nil {
			return total, fmt.Errorf("month %s: %w", month, err)
		}
		total += n
	}
	return total, nil
}

// dropMonth drops one month, unless too many of its entries stay. While the entries are counted and copied, only
// writers to this month wait; the final part blocks all others.
func (s *Store) dropMonth(ctx context.Context, tx *sql.Tx, month string, p dlq.Purge) (int, error) {
	entries, bodies := "dlq_entries_"+month, "dlq_bodies_"+month
	err := execAll(ctx, tx, []string{
		"SET LOCAL lock_timeout = '10s'", "LOCK TABLE " + entries + ", " + bodies + " IN SHARE ROW EXCLUSIVE MODE",
	})
	if err != nil {
		return 0, err
	}
	if many, err := keepsMany(ctx, tx, entries, p); err != nil || many {
		return 0, err
	}
	purged := purgedBy(entries, p)
	counted, gone, stay, err := countMonth(ctx, tx, entries, purged)
	if err != nil || stay > gone/maxKept {
		return 0, err
	}
	from, to := int64(math.MinInt64), int64(0)
	if number, err := strconv.Atoi(month); err == nil {
		from, to = bounds(number)
	} else if err := tx.QueryRowContext(ctx, "SELECT coalesce(max(id), 0) + 1 FROM "+entries).Scan(&to); err != nil {
		return 0, err
	}
	if !p.SkipArchive && gone > 0 {
		if err := s.archiveMonth(ctx, tx, month, [2]int64{from, to}, p); err != nil {
			return 0, err
		}
	}
	statements := []string{
		// Also keys that were left behind earlier, whose month was dropped without them: they would prevent a restore.
		fmt.Sprintf("DELETE FROM dlq_keys k WHERE k.entry_id < %d AND NOT EXISTS (SELECT 1 FROM dlq_entries e"+
			" WHERE e.id = k.entry_id AND e.id < %d AND NOT (e.id >= %d AND %s))", to, to, from, purgedBy("e", p)),
		"LOCK TABLE ONLY dlq_entries, ONLY dlq_bodies, dlq_entries_" + otherMonth + ", dlq_bodies_" + otherMonth +
			" IN ACCESS EXCLUSIVE MODE",
		"ALTER TABLE dlq_entries DETACH PARTITION " + entries,
		"ALTER TABLE dlq_bodies DETACH PARTITION " + bodies,
	}
	if stay > 0 {
		statements = append(statements,
			"INSERT INTO dlq_bodies SELECT * FROM "+bodies+" WHERE entry_id IN (SELECT id FROM "+entries+" WHERE NOT ("+purged+
				"))",
			"INSERT INTO dlq_entries SELECT * FROM "+entries+" WHERE NOT ("+purged+")")
	}
	statements = append(statements, "DROP TABLE "+entries, "DROP TABLE "+bodies)
	if err := execAll(ctx, tx, statements); err != nil {
		return 0, err
	}
	err = s.insertAudit(ctx, tx, []driver.AuditRecord{{
		At: p.At, Actor: p.Actor, Action: driver.ActionPurge, Note: p.Note,
		Detail: map[string]string{
			"month": month, "entries": strconv.FormatInt(gone, 10), "kept": strconv.FormatInt(stay, 10),
		},
	}})
	if err != nil {
		return 0, err
	}
	return int(gone), counted.apply(ctx, s, tx)
}

// archiveMonth copies the purged entries of a month, whose ids are in a half-open range.
func (s *Store) archiveMonth(ctx context.Context, tx *sql.Tx, month string, ids [2]int64, p dlq.Purge) error {
	entries, archive := "dlq_entries_"+month, s.dialect.archive()
	// Remove copies that were made by hand while the entries existed.
	_, err := s.exec(ctx, tx, "DELETE FROM "+archive+" a WHERE a.id >= ? AND a.id < ?"+
		" AND EXISTS (SELECT 1 FROM "+entries+" e WHERE e.id = a.id)", ids[0], ids[1])
	if err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	_, err = s.exec(ctx, tx, "INSERT INTO "+archive+" ("+archiveColumns+", archived_at) SELECT "+
		archiveColumns+", ? FROM dlq_events WHERE id >= ? AND id < ? AND "+purgedBy("dlq_events", p), s.dialect.time(p.At),
		ids[0], ids[1])
	if err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	_, err = tx.ExecContext(ctx, archiveRevisions(s.dialect, "dlq_bodies_"+month, entries)+" AND "+purgedBy("e", p))
	if err != nil {
		return fmt.Errorf("archive revisions: %w", err)
	}
	return nil
}

// purgedBy is the condition for purged entries, which is never NULL. It consists of names that Resolve has checked, and
// a time.
func purgedBy(table string, p dlq.Purge) string {
	before := timeLiteral(p.ClosedBefore)
	return "status IN (" + statusList(p.Statuses) + ") AND resolved_at IS NOT NULL AND resolved_at < " + before + " AND " +
		notRestored(table, before)
}

func statusList(statuses []dlq.Status) string {
	return strings.Join(sqldb.Map(statuses, func(s *dlq.Status) string { return "'" + string(*s) + "'" }), ", ")
}

func timeLiteral(at time.Time) string { return "'" + at.UTC().Format(time.RFC3339Nano) + "'" }

// keepsMany reports whether two index ranges already show that too many entries of a month stay. Retention looks at
// each month many times before it is old enough, and should not read all of it each time. If it returns false, the
// month has to be counted.
func keepsMany(ctx context.Context, tx *sql.Tx, entries string, p dlq.Purge) (many bool, err error) {
	var rows float64 // estimated from the rows per page at the last ANALYZE; 0 without one
	query := "SELECT CASE WHEN relpages > 0 THEN reltuples / relpages ELSE 0 END * (pg_relation_size(oid) / " +
		"current_setting('block_size')::int) FROM pg_class WHERE oid = '" +
		entries + "'::regclass"
	if err := tx.QueryRowContext(ctx, query).Scan(&rows); err != nil || rows <= 0 {
		return false, err
	}
	limit := int64(rows*1.5/(maxKept+1)) + 1 // half as much again as a month may keep
	for _, kept := range []string{
		"status NOT IN (" + statusList(p.Statuses) + ")",
		"resolved_at >= " + timeLiteral(p.ClosedBefore),
	} {
		query := "SELECT count(*) >= $1 FROM (SELECT 1 FROM " + entries + " WHERE " + kept + " LIMIT $1) kept"
		if err := tx.QueryRowContext(ctx, query, limit).Scan(&many); err != nil || many {
			return many, err
		}
	}
	return false, nil
}

// countMonth returns what the statistics lose with the entries that a condition selects, the number of these, and that
// of the others.
func countMonth(ctx context.Context, tx *sql.Tx, entries, condition string) (lost *deltas, gone, stay int64,
	err error,
) {
	// The planner assumes that every combination of hour, cause and topic exists, and would sort the month on disk. Hours
	// are numbers because truncating times takes the server longer than everything else.
	settings := []string{"SET LOCAL work_mem = '64MB'", "SET LOCAL enable_sort = off"}
	if err := execAll(ctx, tx, settings); err != nil {
		return nil, 0, 0, err
	}
	query := "SELECT " + condition + ", fingerprint, event_type, topic, status, floor(date_part('epoch', created_at) / " +
		"3600)::bigint, floor(date_part('epoch', resolved_at) / 3600)::bigint, count(*)," +
		" sum(round(date_part('epoch', resolved_at - created_at) * 1000000)::bigint / 1000)::bigint" +
		" FROM " + entries + " GROUP BY 1, 2, 3, 4, 5, 6, 7"
	lost = &deltas{}
	err = sqldb.Each(tx.QueryContext(ctx, query))(func(row sqldb.Row) error {
		var c monthCount
		err := row.Scan(&c.gone, &c.fingerprint, &c.key.EventType, &c.key.Topic, &c.status, &c.created, &c.resolved, &c.n,
			&c.resolutionMS)
		if err != nil {
			return err
		}
		if !c.gone {
			stay += c.n
			return nil
		}
		gone += c.n
		lost.drop(&c)
		return nil
	})
	if err != nil {
		return nil, 0, 0, err
	}
	_, err = tx.ExecContext(ctx, "SET LOCAL enable_sort TO DEFAULT")
	return lost, gone, stay, err
}

// monthCount is how many entries of a month have the same statistics.
type monthCount struct {
	gone              bool
	fingerprint       string
	key               countKey
	status            dlq.Status
	created, resolved sql.Null[int64] // hours since 1970
	n                 int64
	resolutionMS      sql.Null[int64]
}

// drop counts closed entries that were removed.
func (d *deltas) drop(c *monthCount) {
	created, resolved := hourAt(c.created.V), hourAt(c.resolved.V)
	var counts driver.Counts
	counts.Add(c.status, -c.n)
	// These times change neither first_seen nor last_seen of the group: the entry died after the one and before the
	// other.
	d.addGroup(groupDelta{Fingerprint: c.fingerprint, First: resolved.Add(time.Hour), Last: created, Counts: counts})
	count := countDelta{countKey: c.key, Counts: counts}
	if c.status == dlq.Resolved {
		count.ResolutionMS = -c.resolutionMS.V
	}
	d.addCount(count)
	d.addHour(hourDelta{hourKey: hourKey{created, c.fingerprint}, Entries: -c.n})
	d.addHour(hourDelta{hourKey: hourKey{resolved, c.fingerprint}, Closed: -c.n})
}

func hourAt(hours int64) time.Time { return time.Unix(hours*3600, 0).UTC() }
