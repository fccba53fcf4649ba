package sqlqueue

import (
	"context"
	"database/sql"
	"strconv"

	"github.com/redrive-go/redrive/internal/sqldb"
)

// sqlite has one writer at a time, whatever the number of workers.
type sqlite struct{ eachLeased }

var _ dialect = sqlite{}

func (s sqlite) publish(ctx context.Context, db DB, p *publication, rows []row) (bool, error) {
	return s.publishInto(ctx, db, s, p.topic, rows)
}

// insertInto queries the time once. SQLite parses a statement each time: one that queries it for each row takes three
// times as long.
func (s sqlite) insertInto(queue int64, rows []row) (query string, args []any) {
	args = make([]any, 0, 1+4*len(rows))
	for _, r := range rows {
		args = append(args, s.microseconds(r.delay), r.uuid, r.headers, r.payload)
	}
	return `WITH t(us) AS MATERIALIZED (SELECT ` + sqldb.SQLite.Now() + `), v(delay, uuid, headers, payload) AS (VALUES ` +
		sqldb.Tuples("(?,?,?,?)", len(rows)) + `)
		INSERT INTO redrive_queue_messages (queue_id, visible_at, due_at, published_at, uuid, headers, payload)
		SELECT ?, t.us + v.delay, t.us + v.delay, t.us, v.uuid, v.headers, v.payload FROM t, v`, append(args, queue)
}

func (sqlite) claim(ctx context.Context, db *sql.DB, c claim) ([]claimed, error) {
	return sqldb.All[claimed](db.QueryContext(ctx, `UPDATE redrive_queue_messages SET crashes = crashes + `+crashed+
		`, started = 0, lease = ?, visible_at = `+sqldb.SQLite.Now()+` + ?, deliveries = deliveries + 1
		WHERE id IN (SELECT id FROM redrive_queue_messages WHERE queue_id = ? AND visible_at >= ? AND visible_at <= `+
		sqldb.SQLite.Now()+` ORDER BY visible_at, id LIMIT `+strconv.Itoa(c.n)+`)
		RETURNING 0`+columns, c.worker, c.lease.Microseconds(), c.queue, c.from))(scanClaimed)
}

func (sqlite) firsts() string { return firstOfEach(SQLite, "1 = 1") }

// probe stays below SQLITE_MAX_LENGTH, which a build of SQLite may lower but not below this.
func (sqlite) probe(context.Context, *sql.DB) (int64, error) { return 256 << 20, nil }
