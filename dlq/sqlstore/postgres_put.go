package sqlstore

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/redrive-go/redrive/dlq"
)

// A dead letter that waits and was never seen is what a store gets nearly always, and on PostgreSQL one statement stores any number of
// them: keys, entries, bodies and statistics. It is a transaction of its own, so there is one round trip instead of eight, which is a
// third of the time of a commit of 64 letters.
//
// Each part of the statement makes a table of those parameters only that it needs. One table for all parts would be written and read again
// for each of them, payloads included, and that took the server as long as all the indexes.

// unclaimed are the columns that are as the table makes them until somebody claims or closes an entry.
var unclaimed = map[string]bool{
	"status": true, "lease_until": true, "run_id": true, "last_retry_at": true, "succeeded_at": true, "resolved_at": true, "resolved_by": true,
}

// isNew reports whether a letter is, unless its key is there, no more than a row to insert: it waits, and was never claimed.
func (r letterRow) isNew() bool {
	return r.RedriveOf == 0 && r.Status == dlq.Pending && r.Revision == r.Body.Revision && r.Run == "" && r.ResolvedBy == "" &&
		r.LeaseUntil.IsZero() && r.LastRedriveAt.IsZero() && r.SucceededAt.IsZero() && r.ResolvedAt.IsZero()
}

var (
	// newColumns are the columns of dlq_entries that such a letter has a value for.
	newColumns = slices.DeleteFunc(slices.Clone(entryColumns), func(column string) bool { return unclaimed[column] })
	// newBodyColumns are those of dlq_bodies that the entry has not.
	newBodyColumns = []string{"message_uuid", "payload", "payload_json", "payload_sha256", "content_type", "headers", "stack_trace"}
)

// newNames are the parameters of putNewStatement, in their order: arrays, of the letters and of their statistics.
var newNames = slices.Concat(newColumns, newBodyColumns, newStatisticsNames)

// putNew stores those of the letters whose key is not there, and returns their ids. Each letter has a key of its own, and isNew.
func (d postgres) putNew(ctx context.Context, s *Store, letters []letterRow) (map[dlq.Key]int64, error) {
	// In the order of their keys, so that two processes with the same dead letters do not wait for each other.
	letters = slices.SortedFunc(slices.Values(letters), func(a, b letterRow) int { return bytes.Compare(a.Key[:], b.Key[:]) })
	entries, bodies := make([][]any, len(letters)), make([][]any, len(letters))
	for i := range letters {
		entries[i], bodies[i] = letters[i].entry, letters[i].body
	}
	args := make([]any, 0, len(newNames))
	for i, column := range entryColumns {
		if !unclaimed[column] {
			args = append(args, columnArray(postgresType(column), entries, i))
		}
	}
	for i, column := range bodyColumns {
		if slices.Contains(newBodyColumns, column) {
			args = append(args, columnArray(postgresType(column), bodies, i))
		}
	}
	args = append(args, newStatistics(letters)...)
	found, err := s.write.QueryContext(ctx, putNewStatement, args...)
	if err != nil {
		return nil, fmt.Errorf("new letters: %w", err)
	}
	ids := make(map[dlq.Key]int64, len(letters))
	return ids, scanIDs(found, ids)
}

// newTable is a table, v, of some of the parameters.
func newTable(names ...string) string {
	arrays := make([]string, len(names))
	for i, name := range names {
		arrays[i] = "$" + strconv.Itoa(slices.Index(newNames, name)+1) + "::" + postgresType(name) + "[]"
	}
	return "unnest(" + strings.Join(arrays, ", ") + ") WITH ORDINALITY AS v (" + strings.Join(names, ", ") + ", n)"
}

// putNewStatement names what each part waits for: the rows of the statistics, which everybody wants, are locked last, and in the order
// in which other transactions lock them. Setting synchronous_commit is what inTx does.
//
//nolint:gosec // G202: the names are ours, the values parameters
var putNewStatement = `WITH k AS (
	INSERT INTO dlq_keys (dedup_key, event_id, source_id, correlation_id)
	SELECT dedup_key, event_id, source_id, correlation_id FROM ` + newTable("dedup_key", "event_id", "source_id", "correlation_id") + `
	WHERE (SELECT set_config('synchronous_commit', 'on', true)) = 'on'
	ON CONFLICT (dedup_key) DO NOTHING RETURNING entry_id, dedup_key),
e AS (
	INSERT INTO dlq_entries (id, ` + strings.Join(newColumns, ", ") + `)
	SELECT k.entry_id, v.` + strings.Join(newColumns, ", v.") + ` FROM ` + newTable(newColumns...) + ` JOIN k USING (dedup_key) RETURNING 1),
b AS (
	INSERT INTO dlq_bodies (entry_id, revision, ` + strings.Join(newBodyColumns, ", ") + `)
	SELECT k.entry_id, v.revision, ` + strings.Replace(strings.Join(newBodyColumns, ", "), "payload_json", "payload_json::jsonb", 1) + `
	FROM ` + newTable(append([]string{"dedup_key", "revision"}, newBodyColumns...)...) + ` JOIN k USING (dedup_key) RETURNING 1),
l AS MATERIALIZED (
	SELECT k.entry_id, v.in_group, v.is_last, v.in_count, v.in_hour
	FROM ` + newTable("dedup_key", "in_group", "is_last", "in_count", "in_hour") + ` JOIN k USING (dedup_key)
	WHERE (SELECT count(*) FROM e) + (SELECT count(*) FROM b) > 0),
g AS (
	INSERT INTO dlq_groups (fingerprint, cause, sample, error_class, handler, pending, first_seen, last_seen, last_entry_id)
	SELECT group_fingerprint, cause, sample, group_class, group_handler, new, group_first, group_last, last FROM
	` + newTable("group_fingerprint", "cause", "sample", "group_class", "group_handler", "group_first", "group_last") + `
	JOIN (SELECT in_group, count(*) AS new, coalesce(max(entry_id) FILTER (WHERE is_last), max(entry_id)) AS last FROM l GROUP BY in_group) c
	ON in_group = n ORDER BY n
	ON CONFLICT (fingerprint) DO UPDATE SET pending = dlq_groups.pending + excluded.pending,
		last_seen = GREATEST(dlq_groups.last_seen, excluded.last_seen),
		last_entry_id = GREATEST(dlq_groups.last_entry_id, excluded.last_entry_id)
	RETURNING 1),
c AS (
	INSERT INTO dlq_counts (event_type, topic, pending)
	SELECT count_type, count_topic, new FROM ` + newTable("count_type", "count_topic") + `
	JOIN (SELECT in_count, count(*) AS new FROM l WHERE (SELECT count(*) FROM g) > 0 GROUP BY in_count) c ON in_count = n ORDER BY n
	ON CONFLICT (event_type, topic) DO UPDATE SET pending = dlq_counts.pending + excluded.pending
	RETURNING 1),
h AS (
	INSERT INTO dlq_hours (hour, fingerprint, entries)
	SELECT hour, hour_fingerprint, new FROM ` + newTable("hour", "hour_fingerprint") + `
	JOIN (SELECT in_hour, count(*) AS new FROM l WHERE (SELECT count(*) FROM c) > 0 GROUP BY in_hour) c ON in_hour = n ORDER BY n
	ON CONFLICT (hour, fingerprint) DO UPDATE SET entries = dlq_hours.entries + excluded.entries
	RETURNING 1)
SELECT entry_id, dedup_key FROM k WHERE (SELECT count(*) FROM h) >= 0`
