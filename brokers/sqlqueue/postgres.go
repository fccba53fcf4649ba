package sqlqueue

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-go/redrive/internal/sqldb"
)

// channel is the channel of the NOTIFY that wakes the consumers of a queue: "<queue id> <delay in µs>".
const channel = "redrive_queue"

// postgres needs one round trip for each operation.
type postgres struct {
	explicit bool // transactions are not READ COMMITTED by default
	arrays   bool // the driver accepts Go's slices as arrays
}

var _ dialect = (*postgres)(nil)

// publish inserts the rows for the groups that exist now, in one statement, so that a group that subscribed before the
// call misses nothing.
func (p *postgres) publish(ctx context.Context, db DB, parcel *publication, rows []row) (bool, error) {
	args := make([]any, 0, 8)
	args = append(args, []byte(parcel.topic))
	if parcel.notify {
		args = append(args, strconv.FormatInt(shortest(rows).Microseconds(), 10))
	}
	from, args := p.values(args, rows, parcel.outbox)
	insert := insertPostgres(from, "redrive_queues") + " WHERE q.topic = $1"
	if !parcel.notify {
		n, err := sqldb.Changed(db.ExecContext(ctx, insert, args...))
		return n > 0, err
	}
	found, err := queryInts(ctx, db, "WITH i AS ("+insert+") "+notifyTopic, args...)
	return len(found) > 0, err
}

// notifyTopic wakes the consumers of all queues of the topic $1 after $2 microseconds.
const notifyTopic = "SELECT length(pg_notify('" + channel + "', id || ' ' || $2::text)::text) FROM redrive_queues " +
	"WHERE topic = $1"

// insertPostgres returns the INSERT of rows, in the order of values, into queues q. It calls clock_timestamp once: in
// the caller's transaction, a delay starts with the call.
func insertPostgres(values, queues string) string {
	return `INSERT INTO redrive_queue_messages (queue_id, visible_at, due_at, published_at, uuid, headers, payload)
		SELECT q.id, t.us + v.delay, t.us + v.delay, t.us, v.uuid, v.headers, v.payload FROM ` + queues + ` q,
		(SELECT ` + sqldb.PostgreSQL.Clock() + ` AS us, ` + sqldb.AwaitDisk + ` OFFSET 0) t, ` +
		values + " AS v(delay, uuid, headers, payload)"
}

func (p *postgres) insertInto(queue int64, rows []row) (query string, args []any) {
	from, args := p.values(append(make([]any, 0, 8), queue), rows, false)
	return insertPostgres(from, "(SELECT $1::bigint AS id)"), args
}

// values yields rows from parameters. In the caller's transaction, the driver may be any.
func (p *postgres) values(args []any, rows []row, outbox bool) (values string, all []any) {
	if p.arrays && !outbox {
		return unnested(args, rows)
	}
	return listed(args, rows)
}

// unnested yields rows from four arrays, which it adds to the parameters. Compared with listed, which every driver
// supports, it takes a third off the client's work on a message in a batch of 100, and some off the server's: there are
// five parameters, and one statement for batches of any size.
func unnested(args []any, rows []row) (values string, all []any) {
	values = sqldb.BindFrom(len(args)+1, "unnest(?::bigint[], ?::text[], ?::text[], ?::bytea[])")
	delays, uuids := make([]int64, len(rows)), make([]string, len(rows))
	headers, payloads := make([]string, len(rows)), make([][]byte, len(rows))
	for i, r := range rows {
		delays[i], uuids[i], headers[i], payloads[i] = r.delay.Microseconds(), r.uuid, r.headers, r.payload
	}
	return values, append(args, delays, uuids, headers, payloads)
}

// listed yields rows from individual parameters, which it adds to the others.
func listed(args []any, rows []row) (values string, all []any) {
	values = sqldb.BindFrom(len(args)+1, "VALUES (?::bigint,?::text,?::text,?::bytea)"+
		strings.Repeat(",(?,?,?,?)", len(rows)-1))
	for _, r := range rows {
		args = append(args, r.delay.Microseconds(), r.uuid, r.headers, r.payload)
	}
	return "(" + values + ")", args
}

// maxBatch is how many rows share a lease: two leases fit a page.
const maxBatch = 490

func (*postgres) limit(n int) int { return min(n, maxBatch) }

// claim is a function in the database, which takes a lock before it looks for due rows. See the migration.
func (p *postgres) claim(ctx context.Context, db *sql.DB, c claim) (list []claimed, err error) {
	query := func(db DB) error {
		// Columns that are mostly 0 cost database/sql no allocation: values derived from the others are not selected.
		list, err = sqldb.All[claimed](db.QueryContext(ctx, `SELECT row_at, row_id, row_delay, row_published, row_deliveries, row_crashes,
			row_uuid, row_headers, row_payload, row_batch FROM redrive_queue_claim($1, $2, $3, $4, $5)`,
			c.queue, c.worker, c.from, c.lease.Microseconds(), c.n))(scanClaimed)
		return err
	}
	if p.explicit {
		err = sqldb.InTx(ctx, db, PostgreSQL.ReadCommitted(), func(tx *sql.Tx) error { return query(tx) })
	} else {
		err = query(db)
	}
	if err != nil {
		return nil, err
	}
	for i := range list {
		c := &list[i]
		c.dueAt += c.publishedAt
		if c.batch != 0 {
			c.at = c.dueAt
		}
	}
	return list, nil
}

func (*postgres) byIDs(ids []int64) (where string, args []any) {
	return " WHERE id = ANY ($1::bigint[])", []any{"{" + sqldb.IDs(ids) + "}"}
}

// held passes its rows in one parameter, so that the statement's text, and with it its plan, is the same for any number
// of them; every driver accepts text for an array.
func (*postgres) held(worker int64, rows []leased) (where string, args []any) {
	ids := "{" + sqldb.IDs(idsOf(rows)) + "}"
	batches := batchesOf(rows)
	if len(batches) == 0 {
		return " WHERE id = ANY (?::bigint[]) AND lease = ?", []any{ids, worker}
	}
	return " WHERE id = ANY (?::bigint[]) AND (lease = ? OR lease IS NULL AND id IN " + shared + ")",
		[]any{ids, worker, "{" + sqldb.IDs(batches) + "}", worker}
}

// shared are the rows of a worker's leases in an array. The lease alone is not enough: lease and row ids start over
// when the tables are emptied.
const shared = "(SELECT unnest(ids) FROM redrive_queue_leases WHERE id = ANY (?::bigint[]) AND worker = ?)"

func (*postgres) over(worker int64, batches []int64) (with string, args []any) {
	if len(batches) == 0 {
		return "", nil
	}
	return "WITH over AS (DELETE FROM redrive_queue_leases WHERE id = ANY (?::bigint[]) AND worker = ?) ",
		[]any{"{" + sqldb.IDs(batches) + "}", worker}
}

func (p *postgres) free(queue int64) string {
	return fmt.Sprintf(`(lease IS NOT NULL OR id NOT IN (SELECT unnest(ARRAY(SELECT unnest(ids) FROM redrive_queue_leases
		WHERE queue_id = %d AND until > %s))))`, queue, sqldb.PostgreSQL.Now())
}

func (*postgres) firsts() string {
	return firstOfEach(PostgreSQL, `(m.lease IS NOT NULL OR m.id NOT IN
		(SELECT unnest(ARRAY(SELECT unnest(ids) FROM redrive_queue_leases WHERE until > `+sqldb.PostgreSQL.Now()+`))))`)
}

// batchesOf returns the leases that rows share with others.
func batchesOf(rows []leased) (batches []int64) {
	for _, r := range rows {
		if r.batch != 0 && !slices.Contains(batches, r.batch) {
			batches = append(batches, r.batch)
		}
	}
	return batches
}

func (*postgres) move(ctx context.Context, db *sql.DB, worker int64, moves []moved) ([]int64, error) {
	rows := sqldb.Map(moves, (*moved).leased)
	var args []any
	for _, m := range moves {
		args = append(args, m.id(), m.delay.Microseconds(), m.headers, m.payload)
	}
	args = append(args, worker, "{"+sqldb.IDs(batchesOf(rows))+"}", worker)
	return queryInts(ctx, db, sqldb.PostgreSQL.Bind(`WITH v(id, delay, headers, payload) AS (
		VALUES (?::bigint,?::bigint,?::text,?::bytea)`+strings.Repeat(",(?,?,?,?)", len(moves)-1)+`) UPDATE redrive_queue_messages m SET visible_at = `+sqldb.PostgreSQL.Now()+` + v.delay, due_at = `+
		sqldb.PostgreSQL.Now()+` + v.delay,
		headers = v.headers, payload = v.payload, crashes = 0, started = 0, deliveries = 0, lease = 0
		FROM v WHERE m.id = v.id AND (m.lease = ? OR m.lease IS NULL AND m.id IN `+shared+`) RETURNING m.id`), args...)
}

func (*postgres) wake(ctx context.Context, db DB, queue int64, delay time.Duration) error {
	_, err := db.ExecContext(ctx, "SELECT pg_notify('"+channel+"', $1)",
		strconv.FormatInt(queue, 10)+" "+strconv.FormatInt(delay.Microseconds(), 10))
	return err
}

// maintain makes PostgreSQL plan again when the table has become four times as large as its statistics. A statement
// that was prepared while the queue was nearly empty reads the whole table, which is right then, and continues to do so
// until its plan is invalidated. Autovacuum would, a minute after a million messages have arrived. Without the right to
// analyze the table, PostgreSQL warns and does nothing.
func (*postgres) maintain(ctx context.Context, db *sql.DB) error {
	grown, err := queryInts(ctx, db, `SELECT 1 FROM pg_class c, LATERAL (SELECT pg_relation_size(c.oid) /
		current_setting('block_size')::int AS now) pages
		WHERE c.oid = 'redrive_queue_messages'::regclass AND pages.now > 200 AND pages.now > 4 * c.relpages`)
	if err != nil || len(grown) == 0 {
		return err
	}
	_, err = db.ExecContext(ctx, "ANALYZE redrive_queue_messages")
	return err
}

// probe stays below the gigabyte limit of a field, to leave room for the protocol's and the server's copies.
func (p *postgres) probe(ctx context.Context, db *sql.DB) (maxMessage int64, err error) {
	committed, err := queryInts(ctx, db, "SELECT count(*) FROM pg_settings WHERE name = 'default_transaction_isolation' "+
		"AND setting = 'read committed'")
	if err != nil {
		return 0, err
	}
	p.explicit = len(committed) == 1 && committed[0] == 0
	p.arrays = takesArrays(ctx, db)
	return 256 << 20, nil
}

// takesArrays reports whether the driver passes Go's slices as arrays, as pgx does, without altering them.
func takesArrays(ctx context.Context, db *sql.DB) bool {
	rows := []row{
		{delay: -time.Microsecond, uuid: `{"\,`, headers: "", payload: []byte{0, '\\', 255}},
		{delay: time.Hour, uuid: "NULL", headers: "{}", payload: []byte{}},
	}
	values, args := unnested(nil, rows)
	same, err := queryInts(ctx, db, `SELECT count(*) FROM `+values+` AS v(delay, uuid, headers, payload)
		WHERE (delay, uuid, headers, payload) IN ((-1, '{"\,', '', '\x005cff'::bytea), (3600000000, 'NULL', '{}', ''))`,
		args...)
	return err == nil && len(same) == 1 && same[0] == 2
}

func shortest(rows []row) time.Duration {
	return slices.MinFunc(rows, func(a, b row) int { return cmp.Compare(a.delay, b.delay) }).delay
}

func set(ids []int64) map[int64]bool {
	s := make(map[int64]bool, len(ids))
	for _, id := range ids {
		s[id] = true
	}
	return s
}
