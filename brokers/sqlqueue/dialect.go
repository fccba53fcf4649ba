package sqlqueue

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/redrive-go/redrive/internal/sqldb"
)

// Dialect names the kind of database behind a *sql.DB.
type Dialect = sqldb.Dialect

// The databases that [New] takes.
const (
	PostgreSQL = sqldb.PostgreSQL // 12 and later
	MySQL      = sqldb.MySQL      // MariaDB 10.6 and later; MySQL 8.0 should do, and is not tested
	SQLite     = sqldb.SQLite     // 3.42 and later
)

// DB is the part of *sql.DB, *sql.Tx and *sql.Conn that a statement needs. [Broker.TxPublisher] takes one, so that
// wrappers of *sql.Tx work too.
type DB interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// dialect is what differs between the databases. Everything else is in store.
type dialect interface {
	// name is the database's; what every package knows about it follows from that.
	name() Dialect
	// publish inserts rows of p once for every group of its topic, and reports whether the topic has any.
	publish(ctx context.Context, db DB, p *parcel, rows []row) (bool, error)
	// byID names a table in a statement on rows by their ids, which is to read no others. deleteFrom begins a DELETE of
	// them.
	byID(table string) string
	deleteFrom(table string) string
	// insertInto is the INSERT of rows into one queue, for a transaction of the broker's own.
	insertInto(queue int64, rows []row) (query string, args []any)
	// claim leases rows that are due, in the order of delivery.
	claim(ctx context.Context, db *sql.DB, c claim) ([]claimed, error)
	// limit is the size of the largest claim that n allows.
	limit(n int) int
	// byIDs selects rows by their ids. locks is how statements on rows treat those that another session has locked.
	byIDs(ids []int64) (where string, args []any)
	locks() lockHabit
	// held selects those of rows that worker has the lease of.
	held(worker int64, rows []leased) (where string, args []any)
	// over begins a statement on rows that also ends a worker's leases of many rows, all of which are answered with it.
	over(worker int64, batches []int64) (with string, args []any)
	// free is the condition on a due row of queue that it is not leased.
	free(queue int64) string
	// next is the query for the time until the first row of a queue, its parameter, is due.
	next() string
	// firsts is the query for the queues between two ids, its parameters, that have rows, and the time until the first
	// of each is due, leased or not.
	firsts() string
	// move gives leased rows a new due time and content, and drops their leases. It notes the ids of the rows it moved.
	move(ctx context.Context, db *sql.DB, worker int64, moves []moved, done map[int64]bool) error
	// wake tells other processes that a queue has something due after delay. It does nothing where that is unknown.
	wake(ctx context.Context, db DB, queue int64, delay time.Duration) error
	// tend keeps the database's plans right when the table grows fast. It is called every few seconds.
	tend(ctx context.Context, db *sql.DB) error
	// probe asks the database how it is set up, and how large a message may be.
	probe(ctx context.Context, db *sql.DB) (maxMessage int64, err error)
	// write runs a change. SQLite has one writer at a time; queueing for it here is fairer than its busy handler.
	write(ctx context.Context, change func() error) error
}

// claim asks for up to n rows of a queue for a worker.
type claim struct {
	queue, worker int64
	from          int64 // where to begin in the index
	lease         time.Duration
	n             int
	// passed is kept from one claim to the next where the order of delivery counts: rows that stay locked, which the
	// claims do not wait for any more. It is nil where the order does not count.
	passed map[int64]bool
}

// moved is a leased row on its way back to its queue.
type moved struct {
	row
	*delivery

	place int // in the call of Publish
}

func (m moved) id() int64 { return m.delivery.row.id }

// leased names a row that a worker has, and the lease that it shares with others, or 0.
type leased struct{ id, batch int64 }

func dialectOf(name Dialect) (dialect, error) {
	switch name {
	case PostgreSQL:
		return new(postgres), nil
	case MySQL:
		return mysql{}, nil
	case SQLite:
		return sqlite{writer: make(chan struct{}, 1)}, nil
	default:
		return nil, name.Validate()
	}
}

// columns of a claimed row, in the order that scan reads, after its position in the index.
const columns = ", id, due_at, published_at, deliveries, crashes, uuid, headers, payload, 0"

// crashed is 1 for a row whose lease ran out without an answer. One that is counted already must have been started.
const crashed = "CASE WHEN lease IS NULL OR lease = 0 OR crashes > 0 AND started = 0 THEN 0 ELSE 1 END"

// queryClaimed reads all rows of a query of columns, of which there are n at most.
func queryClaimed(ctx context.Context, db DB, n int, query string, args ...any) (list []claimed, err error) {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	var c claimed // outside of the loop, because Scan lets it escape
	for rows.Next() {
		c.payload = nil
		if list == nil {
			list = make([]claimed, 0, n)
		}
		if err := rows.Scan(&c.at, &c.id, &c.dueAt, &c.publishedAt, &c.deliveries, &c.crashes, &c.uuid, &c.headers,
			&c.payload, &c.batch); err != nil {
			return nil, err
		}
		list = append(list, c)
	}
	return list, rows.Err()
}

// queryInts reads a column of integers.
func queryInts(ctx context.Context, db DB, query string, args ...any) (list []int64, err error) {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var n int64
		if err := rows.Scan(&n); err != nil {
			return nil, err
		}
		list = append(list, n)
	}
	return list, rows.Err()
}

// firstDue is next where every row has a separate lease.
func firstDue(now string) string {
	return "SELECT visible_at - " + now + " FROM redrive_queue_messages WHERE queue_id = ? ORDER BY visible_at, id LIMIT 1"
}

// firstOfEach is firsts where a GROUP BY would read all rows: it goes from one queue to the next in the index.
func firstOfEach(d Dialect) string {
	return d.Bind(`WITH RECURSIVE q(id) AS (SELECT min(queue_id) FROM redrive_queue_messages WHERE queue_id >= ?
		UNION ALL SELECT (SELECT min(m.queue_id) FROM redrive_queue_messages m WHERE m.queue_id > q.id) FROM q WHERE q.id < ?)
		SELECT id, (SELECT m.visible_at FROM redrive_queue_messages m WHERE m.queue_id = q.id ORDER BY m.queue_id, m.visible_at LIMIT 1) - ` +
		d.Now() + ` FROM q WHERE id IS NOT NULL`)
}

// eachLeased is what databases have in common in which every row has a separate lease, and nothing tells of new rows.
type eachLeased struct{}

func (eachLeased) limit(n int) int { return claimSize(n) }

//nolint:unparam // where there are arrays, the ids are a parameter
func (eachLeased) byIDs(ids []int64) (where string, args []any) {
	return " WHERE id IN (" + sqldb.IDs(ids) + ")", nil
}

func (eachLeased) held(worker int64, rows []leased) (where string, args []any) {
	return " WHERE id IN (" + sqldb.IDs(idsOf(rows)) + ") AND lease = ?", []any{worker}
}

func (eachLeased) over(int64, []int64) (with string, args []any) { return "", nil }

// free adds no condition: the owner of a row has moved it out of what is due.
func (eachLeased) free(int64) string { return "1 = 1" }

func (eachLeased) wake(context.Context, DB, int64, time.Duration) error { return nil }

func (eachLeased) tend(context.Context, *sql.DB) error { return nil }

func idsOf(rows []leased) []int64 {
	ids := make([]int64, len(rows))
	for i, r := range rows {
		ids[i] = r.id
	}
	return ids
}

// claimSize rounds n down to a power of two: the limit is part of the statement's text, so that the planner knows it,
// and a few texts only keep the drivers' statement caches small. 0 stays 0.
func claimSize(n int) int {
	if n == 0 {
		return 0
	}
	size := 1
	for size*2 <= n {
		size *= 2
	}
	return size
}
