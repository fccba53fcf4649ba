package sqlqueue

import (
	"context"
	"database/sql"
	"slices"
	"strconv"
	"strings"
	"time"
)

// channel is where PostgreSQL's NOTIFY tells consumers that a queue has something for them: "<queue id> <delay in µs>".
const channel = "redrive_queue"

// postgres needs one round trip for each operation.
type postgres struct{}

var _ dialect = postgres{}

// statement_timestamp is stable, which lets an index condition use it, and does not stand still in a long transaction.
func (postgres) now() string { return "(extract(epoch FROM statement_timestamp()) * 1000000)::bigint" }

func (postgres) bind(query string) string { return numbered(query) }

func (postgres) insertIgnore(insert string) string { return insert + " ON CONFLICT DO NOTHING" }

func (postgres) write(change func() error) error { return change() }

// publish inserts the rows for the groups that exist at this moment, in one statement, so that a group which has
// subscribed before the call misses nothing.
func (p postgres) publish(ctx context.Context, db DB, topic string, rows []row, notify bool) (bool, error) {
	args := make([]any, 0, 2+4*len(rows))
	args = append(args, []byte(topic))
	if notify {
		args = append(args, strconv.FormatInt(shortest(rows).Microseconds(), 10))
	}
	insert := insertPostgres(len(args)+1, len(rows))
	for _, r := range rows {
		args = append(args, r.delay.Microseconds(), r.uuid, r.headers, r.payload)
	}
	if !notify {
		result, err := db.ExecContext(ctx, insert, args...)
		if err != nil {
			return false, err
		}
		n, err := result.RowsAffected()
		return n > 0, err
	}
	found, err := queryInts(ctx, db, "WITH i AS ("+insert+`) SELECT length(pg_notify('`+channel+`', id || ' ' || $2::text)::text)
		FROM redrive_queues WHERE topic = $1`, args...)
	return len(found) > 0, err
}

// insertPostgres writes the INSERT of n rows, whose parameters begin at first, into all queues of the topic $1. The time is
// clock_timestamp's, asked for once: in the caller's transaction, a delay counts from the call.
func insertPostgres(first, n int) string {
	var b strings.Builder
	b.WriteString(`INSERT INTO redrive_queue_messages (queue_id, visible_at, due_at, published_at, uuid, headers, payload)
		SELECT q.id, t.us + v.delay, t.us + v.delay, t.us, v.uuid, v.headers, v.payload FROM redrive_queues q,
		(SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS us OFFSET 0) t, (VALUES `)
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		for j, cast := range [...]string{"::bigint", "::text", "::text", "::bytea"} {
			b.WriteString([...]string{"(", ",", ",", ","}[j])
			b.WriteByte('$')
			b.WriteString(strconv.Itoa(first + 4*i + j))
			if i == 0 {
				b.WriteString(cast)
			}
		}
		b.WriteByte(')')
	}
	b.WriteString(") AS v(delay, uuid, headers, payload) WHERE q.topic = $1")
	return b.String()
}

// claim takes the rows by the primary key from an array that a subquery makes: whatever the statistics say, the planner
// has no reason to read the table.
func (p postgres) claim(ctx context.Context, db *sql.DB, queue, worker, from int64, lease time.Duration, n int) ([]claimed, error) {
	query := `UPDATE redrive_queue_messages SET lease = $1, visible_at = ` + p.now() + ` + $2, deliveries = deliveries + 1
		WHERE id = ANY (ARRAY(SELECT id FROM redrive_queue_messages WHERE queue_id = $3
		AND visible_at >= $4 AND visible_at <= ` + p.now() + `
		ORDER BY visible_at, id LIMIT ` + strconv.Itoa(claimSize(n)) + ` FOR UPDATE SKIP LOCKED)) RETURNING ` + columns
	list, err := queryClaimed(ctx, db, query, worker, lease.Microseconds(), queue, from)
	sortClaimed(list)
	return list, err
}

func (p postgres) move(ctx context.Context, db *sql.DB, worker int64, moves []moved) (map[int64]bool, error) {
	args := []any{worker}
	due := map[int64]time.Duration{}
	for _, m := range moves {
		args = append(args, m.id, m.delay.Microseconds(), m.headers, m.payload)
		if d, ok := due[m.queue]; !ok || m.delay < d {
			due[m.queue] = m.delay
		}
	}
	values := strings.Replace(tuples("(?, ?, ?, ?)", len(moves)), "(?, ?, ?, ?)", "(?::bigint, ?::bigint, ?::text, ?::bytea)", 1)
	query := p.bind(`WITH w AS (SELECT ?::bigint AS worker), v(id, delay, headers, payload) AS (VALUES ` + values + `)
		UPDATE redrive_queue_messages m SET visible_at = ` + p.now() + ` + v.delay, due_at = ` + p.now() + ` + v.delay,
		headers = v.headers, payload = v.payload, lease = NULL, deliveries = 0
		FROM v, w WHERE m.id = v.id AND m.lease = w.worker RETURNING m.id`)
	ids, err := queryInts(ctx, db, query, args...)
	if err != nil {
		return nil, err
	}
	for queue, delay := range due {
		_ = p.wake(ctx, db, queue, delay) // the rows are moved: consumers that are not woken find them by looking
	}
	return set(ids), nil
}

func (postgres) wake(ctx context.Context, db DB, queue int64, delay time.Duration) error {
	_, err := db.ExecContext(ctx, "SELECT pg_notify('"+channel+"', $1)",
		strconv.FormatInt(queue, 10)+" "+strconv.FormatInt(delay.Microseconds(), 10))
	return err
}

// tend makes PostgreSQL plan anew when the table has become four times as large as its statistics say. A statement that was
// prepared while the queue was nearly empty reads the whole table, which is right then, and goes on doing so until
// something makes its plan invalid. Autovacuum would, a minute after a million messages have come. Without the right to
// analyze the table, PostgreSQL warns and does nothing.
func (postgres) tend(ctx context.Context, db *sql.DB) error {
	grown, err := queryInts(ctx, db, `SELECT 1 FROM pg_class c, LATERAL (SELECT pg_relation_size(c.oid) /
		current_setting('block_size')::int AS now) pages
		WHERE c.oid = 'redrive_queue_messages'::regclass AND pages.now > 200 AND pages.now > 4 * c.relpages`)
	if err != nil || len(grown) == 0 {
		return err
	}
	_, err = db.ExecContext(ctx, "ANALYZE redrive_queue_messages")
	return err
}

// maxMessage stays below the gigabyte that a field may have, for the protocol's and the server's copies.
func (postgres) maxMessage(context.Context, *sql.DB) (int64, error) { return 256 << 20, nil }

func sortClaimed(list []claimed) {
	slices.SortFunc(list, func(a, b claimed) int {
		if a.dueAt != b.dueAt {
			return int(min(1, max(-1, a.dueAt-b.dueAt)))
		}
		return int(min(1, max(-1, a.id-b.id)))
	})
}

func shortest(rows []row) time.Duration {
	shortest := rows[0].delay
	for _, r := range rows[1:] {
		shortest = min(shortest, r.delay)
	}
	return shortest
}

func set(ids []int64) map[int64]bool {
	s := make(map[int64]bool, len(ids))
	for _, id := range ids {
		s[id] = true
	}
	return s
}
