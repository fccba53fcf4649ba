package sqlqueue

import (
	"context"
	"database/sql"
	"maps"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-go/redrive/internal/sqldb"
	"github.com/redrive-go/redrive/internal/wait"
)

// Dialect names the kind of database of a *sql.DB.
type Dialect = sqldb.Dialect

// The databases supported by [New].
const (
	PostgreSQL = sqldb.PostgreSQL // 12 and later
	MySQL      = sqldb.MySQL      // MariaDB 10.6 and later; MySQL 8.0 should work, but is not tested
	SQLite     = sqldb.SQLite     // 3.42 and later
)

// DB is the part of *sql.DB, *sql.Tx and *sql.Conn that a statement needs. [Broker.TxPublisher] takes one, so that
// wrappers of *sql.Tx work too.
type DB interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// dialect contains the differences between the databases' statements. Everything else is in store.
type dialect interface {
	// publish inserts rows of p once for every group of its topic, and reports whether the topic has any.
	publish(ctx context.Context, db DB, p *publication, rows []row) (bool, error)
	// insertInto is the INSERT of rows into one queue, for one of the broker's own transactions.
	insertInto(queue int64, rows []row) (query string, args []any)
	// claim leases the first due rows.
	claim(ctx context.Context, db *sql.DB, c claim) ([]claimed, error)
	// limit is the size of the largest claim allowed by n.
	limit(n int) int
	// byIDs selects rows by their ids.
	byIDs(ids []int64) (where string, args []any)
	// held selects the rows leased by worker.
	held(worker int64, rows []leased) (where string, args []any)
	// over begins a statement on rows that also ends a worker's shared leases, if it answers their last rows.
	over(worker int64, batches []int64) (with string, args []any)
	// free is the condition that a due row of queue is not leased.
	free(queue int64) string
	// firsts is the query for the queues with rows between two ids, its parameters, and the time until the first row of
	// each is due, or its separate lease ends.
	firsts() string
	// move gives leased rows a new due time and content, and drops their leases. It returns the ids of the moved rows.
	move(ctx context.Context, db *sql.DB, worker int64, moves []moved) ([]int64, error)
	// wake notifies other processes that a queue has a row due after delay. It does nothing if the database cannot notify.
	wake(ctx context.Context, db DB, queue int64, delay time.Duration) error
	// maintain keeps the database's plans right when the table grows fast. It is called every few seconds.
	maintain(ctx context.Context, db *sql.DB) error
	// probe queries the database's settings and its largest message.
	probe(ctx context.Context, db *sql.DB) (maxMessage int64, err error)
}

// claim requests up to n rows of a queue for a worker.
type claim struct {
	queue, worker int64
	from          int64 // where to start in the index
	lease         time.Duration
	n             int
	// passed is kept between claims if the order of delivery matters: rows that stay locked, which claims no longer wait
	// for. It is nil if the order does not matter.
	passed map[int64]bool
}

// moved is a leased row on its way back to its queue.
type moved struct {
	row
	*delivery

	place int // in the call of Publish
}

func (m moved) id() int64 { return m.delivery.row.id }

// leased identifies a row held by a worker, and the lease that it shares with others, or 0.
type leased struct{ id, batch int64 }

// newStore returns the store of a database of that kind.
func newStore(db *sql.DB, name Dialect, lease time.Duration) (*store, error) {
	s := &store{
		db: db, name: name, lease: lease, byID: messages, deleteByID: "DELETE FROM " + messages,
		worker: 1 + rand.Int64N(math.MaxInt64), //nolint:gosec // G404: tells workers apart, keeps no secret
	}
	switch name {
	case PostgreSQL:
		s.dialect, s.locks = new(postgres), lookLate
	case MySQL:
		s.dialect, s.locks = mysql{eachLeased{MySQL}}, lookFirst
		s.byID, s.deleteByID = byPrimaryKey, "DELETE "+messages+" FROM "+byPrimaryKey
	case SQLite:
		s.dialect, s.writer = sqlite{eachLeased{SQLite}}, make(chan struct{}, 1)
	default:
		return nil, name.Validate()
	}
	return s, nil
}

// columns of a claimed row, in the order that scan reads, after its position in the index.
const columns = ", id, due_at, published_at, deliveries, crashes, uuid, headers, payload, 0"

// crashed is 1 for a row whose lease expired without an answer. If it was counted before, its handler must have
// started.
const crashed = "CASE WHEN lease IS NULL OR lease = 0 OR crashes > 0 AND started = 0 THEN 0 ELSE 1 END"

// scanClaimed reads a row of columns.
func scanClaimed(row sqldb.Row, c *claimed) error {
	return row.Scan(&c.at, &c.id, &c.dueAt, &c.publishedAt, &c.deliveries, &c.crashes, &c.uuid, &c.headers, &c.payload,
		&c.batch)
}

// queryInts reads a column of integers.
func queryInts(ctx context.Context, db DB, query string, args ...any) ([]int64, error) {
	return sqldb.Column[int64](db.QueryContext(ctx, query, args...))
}

// firstOfEach is firsts for databases where a GROUP BY would read all rows: it goes from queue to queue in the index,
// and takes the first row m of each that is free.
func firstOfEach(d Dialect, free string) string {
	return d.Bind(`WITH RECURSIVE q(id) AS (SELECT min(queue_id) FROM redrive_queue_messages WHERE queue_id >= ?
		UNION ALL SELECT (SELECT min(m.queue_id) FROM redrive_queue_messages m WHERE m.queue_id > q.id) FROM q WHERE q.id < ?)
		SELECT id, (SELECT m.visible_at FROM redrive_queue_messages m WHERE m.queue_id = q.id AND ` + free +
		` ORDER BY m.queue_id, m.visible_at LIMIT 1) - ` + d.Now() + ` FROM q WHERE id IS NOT NULL`)
}

// eachLeased is common to the databases where every row has a separate lease and new rows are not announced.
type eachLeased struct{ name Dialect }

func (eachLeased) limit(n int) int { return claimSize(n) }

//nolint:unparam // where there are arrays, the ids are a parameter
func (eachLeased) byIDs(ids []int64) (where string, args []any) {
	return " WHERE id IN (" + sqldb.IDs(ids) + ")", nil
}

func (eachLeased) held(worker int64, rows []leased) (where string, args []any) {
	return " WHERE id IN (" + sqldb.IDs(idsOf(rows)) + ") AND lease = ?", []any{worker}
}

func (eachLeased) over(int64, []int64) (with string, args []any) { return "", nil }

// free adds no condition: the owner of a row has postponed its visible_at.
func (eachLeased) free(int64) string { return "1 = 1" }

func (eachLeased) wake(context.Context, DB, int64, time.Duration) error { return nil }

func (eachLeased) maintain(context.Context, *sql.DB) error { return nil }

// move moves all rows in one transaction, or none of them. It needs no join: rows that keep their lease until the end
// of the transaction cannot be claimed in between.
func (e eachLeased) move(ctx context.Context, db *sql.DB, worker int64, moves []moved) (ids []int64, err error) {
	query := `UPDATE redrive_queue_messages SET visible_at = ` + e.name.Now() + ` + ?, due_at = ` + e.name.Now() + ` + ?,
		headers = ?, payload = ?, crashes = 0, started = 0, deliveries = 0, lease = 0 WHERE id = ? AND lease = ?`
	err = sqldb.InTx(ctx, db, e.name.ReadCommitted(), func(tx *sql.Tx) error {
		ids = ids[:0]
		for _, r := range moves {
			delay := e.microseconds(r.delay)
			n, err := sqldb.Changed(tx.ExecContext(ctx, query, delay, delay, r.headers, r.payload, r.id(), worker))
			if err != nil {
				return err
			}
			if n > 0 {
				ids = append(ids, r.id())
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return ids, nil
}

// microseconds returns a delay, padded on SQLite, whose clock has whole milliseconds.
func (e eachLeased) microseconds(delay time.Duration) int64 {
	if delay > 0 && e.name == SQLite {
		delay += sqldb.Tick * time.Microsecond
	}
	return delay.Microseconds()
}

// publishInto reads the groups of topic and inserts rows for each, in one transaction. Reading first is enough: it
// includes every group that subscribed before Publish was called.
func (e eachLeased) publishInto(ctx context.Context, db DB, d dialect, topic string, rows []row) (bool, error) {
	queues, err := queryInts(ctx, db, "SELECT id FROM redrive_queues WHERE topic = ?"+e.name.Latest(), []byte(topic))
	if err != nil {
		return false, err
	}
	insert := func(db DB) error {
		for _, queue := range queues {
			query, args := d.insertInto(queue, rows)
			if _, err := db.ExecContext(ctx, query, args...); err != nil {
				return err
			}
		}
		return nil
	}
	if pool, ok := db.(*sql.DB); ok && len(queues) > 1 {
		err = sqldb.InTx(ctx, pool, e.name.ReadCommitted(), func(tx *sql.Tx) error { return insert(tx) })
	} else {
		err = insert(db)
	}
	return len(queues) > 0, err
}

func idsOf(rows []leased) []int64 {
	return sqldb.Map(rows, func(r *leased) int64 { return r.id })
}

// claimSize rounds n down to a power of two: the limit is part of the statement's text, so that the planner knows it,
// and few distinct texts keep the drivers' statement caches small. 0 stays 0.
func claimSize(n int) int {
	if n == 0 {
		return 0
	}
	return 1 << (bits.Len(uint(n)) - 1)
}

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

// mysql serves MySQL and MariaDB, which return no rows from an UPDATE: a claim is a short transaction.
type mysql struct{ eachLeased }

var _ dialect = mysql{}

// byPrimaryKey names the table in a statement on rows by their ids. The planner treats a table that was just filled as
// empty, and reads all of it. The statement then locks rows that it does not need, or waits for them, and claims skip
// those: messages are delivered out of order.
const byPrimaryKey = messages + " FORCE INDEX (PRIMARY)"

func (m mysql) publish(ctx context.Context, db DB, p *publication, rows []row) (bool, error) {
	return m.publishInto(ctx, db, m, p.topic, rows)
}

func (m mysql) insertInto(queue int64, rows []row) (query string, args []any) {
	args = make([]any, 0, 6*len(rows))
	for _, r := range rows {
		args = append(args, queue, r.delay.Microseconds(), r.delay.Microseconds(), r.uuid, r.headers, r.payload)
	}
	return `INSERT INTO redrive_queue_messages
		(queue_id, visible_at, due_at, published_at, uuid, headers, payload) VALUES ` +
			sqldb.Tuples("(?, "+sqldb.MySQL.Now()+" + ?, "+sqldb.MySQL.Now()+" + ?, "+sqldb.MySQL.Now()+", ?, ?, ?)", len(rows)),
		args
}

// claim looks for due rows without a lock and then locks them by their ids. A locking read of the index would continue
// to the record after the last due one, which may be the first of another queue, and lock that as well: the other
// queue's claims would skip it, and its messages would be delivered out of order.
func (m mysql) claim(ctx context.Context, db *sql.DB, c claim) (list []claimed, err error) {
	// REPEATABLE READ would lock the gaps between claimed rows, and every publish into one would wait.
	err = sqldb.InTx(ctx, db, MySQL.ReadCommitted(), func(tx *sql.Tx) error {
		list, err = m.lock(ctx, tx, c)
		if err != nil || len(list) == 0 {
			return err
		}
		ids := make([]int64, len(list))
		for i := range list {
			list[i].deliveries++
			ids[i] = list[i].id
		}
		//nolint:gosec // G202: the ids are integers of ours
		_, err = tx.ExecContext(ctx, `UPDATE `+byPrimaryKey+` SET crashes = crashes + `+crashed+
			`, deliveries = deliveries + 1,
			started = 0, lease = ?, visible_at = `+sqldb.MySQL.Now()+` + ? WHERE id IN (`+sqldb.IDs(ids)+`)`, c.worker,
			c.lease.Microseconds())
		return err
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// claimTries is how many more claims' worth of rows a claim looks at if all the first ones are locked.
const claimTries = 4

// lock returns the first rows that are due and not locked, and keeps them locked until tx ends. A skipped row is locked
// by another worker, or still by its own publication: InnoDB may show rows that are being committed a moment before it
// releases the locks. So later rows only count if they existed when the skipped rows were seen: a row published since
// would overtake what the same publisher sent first.
func (m mysql) lock(ctx context.Context, tx *sql.Tx, c claim) ([]claimed, error) {
	for _, limit := range [...]int{c.n, claimTries * c.n} {
		found, err := queryInts(ctx, tx, `SELECT id FROM redrive_queue_messages FORCE INDEX (redrive_queue_messages_visible)
			WHERE queue_id = ? AND visible_at >= ? AND visible_at <= `+sqldb.MySQL.Now()+` ORDER BY visible_at, id
			LIMIT `+strconv.Itoa(limit), c.queue, c.from)
		if err != nil {
			return nil, err
		}
		for some := range slices.Chunk(found, c.n) {
			list, err := m.lockSome(ctx, tx, some)
			if err == nil && limit == c.n && c.passed != nil {
				list, err = m.waitFor(ctx, tx, some, list, c.passed)
			}
			if err != nil || len(list) > 0 {
				return list, err
			}
		}
		if len(found) < limit {
			break
		}
	}
	return nil, nil
}

// lockSome returns those of some rows that are due and not locked.
func (m mysql) lockSome(ctx context.Context, tx *sql.Tx, ids []int64) ([]claimed, error) {
	// Without parameters, because a statement that never repeats is not worth preparing.
	return sqldb.All[claimed](tx.QueryContext(ctx,
		`SELECT visible_at`+strings.Replace(columns, "crashes", "crashes + "+crashed, 1)+
			` FROM `+byPrimaryKey+` WHERE id IN (`+sqldb.IDs(ids)+`) AND visible_at <= `+
			sqldb.MySQL.Now()+` FOR UPDATE SKIP LOCKED`))(scanClaimed)
}

// The pauses between two checks of a locked row double.
const firstLockPause, longestLockPause = time.Millisecond, 32 * time.Millisecond

// waitFor adds to a list of locked rows those of ids that others have locked but release in a moment, so that later
// rows do not overtake them. It gives up on rows that stay locked, and does not wait for them again: passed keeps them
// until the next call.
func (m mysql) waitFor(
	ctx context.Context, tx *sql.Tx, ids []int64, list []claimed, passed map[int64]bool,
) ([]claimed, error) {
	for pause := firstLockPause; len(list) < len(ids); pause *= 2 {
		mine := set(sqldb.Map(list, func(c *claimed) int64 { return c.id }))
		missing := slices.DeleteFunc(slices.Clone(ids), func(id int64) bool { return mine[id] })
		// Rows claimed by another worker meanwhile are no longer due.
		due, err := queryInts(ctx, tx, `SELECT id FROM `+byPrimaryKey+` WHERE id IN (`+
			sqldb.IDs(missing)+`) AND visible_at <= `+sqldb.MySQL.Now())
		if err != nil {
			return nil, err
		}
		if pause > longestLockPause || !slices.ContainsFunc(due, func(id int64) bool { return !passed[id] }) {
			clear(passed)
			maps.Copy(passed, set(due))
			break
		}
		if err := wait.For(ctx, pause); err != nil {
			return nil, err
		}
		more, err := m.lockSome(ctx, tx, due)
		if err != nil {
			return nil, err
		}
		list = append(list, more...)
	}
	return list, nil
}

// firsts reads the first row of each queue in the index.
func (mysql) firsts() string {
	return "SELECT queue_id, MIN(visible_at) - " + sqldb.MySQL.Now() + ` FROM redrive_queue_messages
		FORCE INDEX (redrive_queue_messages_visible) WHERE queue_id >= ? AND queue_id <= ? GROUP BY queue_id`
}

// probe leaves room for the rest of the statement: one row may nearly fill a packet.
func (mysql) probe(ctx context.Context, db *sql.DB) (int64, error) {
	packet, err := queryInts(ctx, db, "SELECT @@max_allowed_packet")
	if err != nil || len(packet) == 0 {
		return 0, err
	}
	return packet[0] - 64<<10, nil
}
