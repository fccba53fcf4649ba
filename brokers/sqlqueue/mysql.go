package sqlqueue

import (
	"context"
	"database/sql"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-go/redrive/internal/sqldb"
	"github.com/redrive-go/redrive/internal/wait"
)

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
