package sqlstore

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/internal/sqldb"
)

// Put stores dead letters. Concurrent calls are joined into one transaction; a call with hundreds of letters may use
// several.
func (s *Store) Put(ctx context.Context, letters ...*dlq.Entry) ([]driver.Receipt, error) {
	if err := checkLetters(letters); err != nil {
		return nil, err
	}
	if len(letters) == 0 {
		return nil, nil
	}
	if err := s.checkOpen("put"); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil { // the writer might be ready at once, and select it
		return nil, fmt.Errorf("sqlstore: put: %w", err)
	}
	receipts, err := s.putPieces(ctx, letters)
	if err != nil {
		return nil, fmt.Errorf("sqlstore: put: %w", err)
	}
	return receipts, nil
}

// PutTx stores dead letters in the caller's transaction, on this store's database: once it commits they are stored
// durably. Ack their messages only then. If PutTx fails, the transaction is as it was before, or it is rolled back and
// Commit fails. Do not use the transaction of business work that has failed: it will be rolled back, and the dead
// letter with it.
func (s *Store) PutTx(ctx context.Context, tx *sql.Tx, letters ...*dlq.Entry) ([]driver.Receipt, error) {
	if tx == nil {
		return nil, fmt.Errorf("sqlstore: put: %w: the transaction is nil", dlq.ErrInvalid)
	}
	if err := checkLetters(letters); err != nil {
		return nil, err
	}
	rows, err := s.makeRows(letters)
	if err != nil {
		return nil, fmt.Errorf("sqlstore: put: %w", err)
	}
	var receipts []driver.Receipt
	err = savepoint(ctx, tx, func() error {
		if err := awaitDisk(ctx, s.dialect.name(), tx); err != nil {
			return err
		}
		p, err := s.putTx(ctx, tx, rows)
		if err != nil {
			return err
		}
		receipts = p.receipts
		return p.deltas.store(ctx, s, tx)
	})
	if err != nil {
		return nil, fmt.Errorf("sqlstore: put: %w", err)
	}
	return receipts, nil
}

// savepoint runs fn so that the transaction, which is the caller's, can continue when fn fails. If that is impossible,
// it is rolled back: MySQL rolls back all of it in a deadlock, and would commit what follows statement by statement.
func savepoint(ctx context.Context, tx *sql.Tx, fn func() error) error {
	if _, err := tx.ExecContext(ctx, "SAVEPOINT redrive_put"); err != nil {
		return err
	}
	if err := fn(); err != nil {
		_, rollback := tx.ExecContext(context.WithoutCancel(ctx), "ROLLBACK TO SAVEPOINT redrive_put")
		if rollback != nil {
			rollback = errors.Join(fmt.Errorf("the transaction is rolled back: %w", rollback), tx.Rollback())
		}
		return errors.Join(err, rollback)
	}
	_, err := tx.ExecContext(ctx, "RELEASE SAVEPOINT redrive_put")
	return err
}

func checkLetters(letters []*dlq.Entry) error {
	for _, e := range letters {
		if e == nil || e.Body == nil || e.CreatedAt.IsZero() || e.Key == (driver.Key{}) {
			return fmt.Errorf("sqlstore: put: %w: a dead letter needs a body, a key and a time; make it with dlq.NewEntry",
				dlq.ErrInvalid)
		}
	}
	return nil
}

// letterRow is a dead letter with the values of its columns. Each caller of Put computes them itself, because all
// callers wait for the writer.
type letterRow struct {
	*dlq.Entry
	entry []any // values of entryColumns
	body  []any // values of bodyColumns
}

func (s *Store) makeRows(letters []*dlq.Entry) ([]letterRow, error) {
	rows := make([]letterRow, len(letters))
	for i, e := range letters {
		clean := *e // e is the caller's
		clean.Clean()
		e = &clean
		body, err := bodyValues(s.dialect, 0, e.Body)
		if err != nil {
			return nil, err
		}
		rows[i] = letterRow{Entry: e, entry: entryValues(s.dialect, e), body: body}
	}
	return rows, nil
}

// putting is one transaction of dead letters.
type putting struct {
	changes

	receipts []driver.Receipt
	replaced bool // keys without an entry
}

// putTx stores letters. The caller writes the statistics.
func (s *Store) putTx(ctx context.Context, tx *sql.Tx, letters []letterRow) (*putting, error) {
	p := &putting{changes: changes{store: s, tx: tx}, receipts: make([]driver.Receipt, len(letters))}
	fresh, err := p.recordReturns(ctx, letters)
	if err != nil {
		return nil, err
	}
	if err := p.insert(ctx, letters, fresh); err != nil {
		return nil, err
	}
	return p, p.write(ctx)
}

// recordReturns assigns the redriven messages to their entries, and returns the indexes of the others.
func (p *putting) recordReturns(ctx context.Context, letters []letterRow) (fresh []int, err error) {
	var ids []int64
	for _, d := range letters {
		if d.RedriveOf != 0 {
			ids = append(ids, d.RedriveOf)
		}
	}
	owners, err := p.store.lockEntries(ctx, p.tx, ids)
	if err != nil {
		return nil, err
	}
	for i, d := range letters {
		owner := owners[d.RedriveOf]
		if owner == nil || !d.Belongs(owner) {
			fresh = append(fresh, i)
			continue
		}
		if err := p.die(ctx, i, owner, d.Entry); err != nil {
			return nil, err
		}
	}
	return fresh, nil
}

// insert stores new entries; those whose key exists have been seen before.
func (p *putting) insert(ctx context.Context, letters []letterRow, fresh []int) error {
	var first, again []int // the first letter with a key, and those that repeat it
	seen := make(map[driver.Key]bool, len(fresh))
	for _, i := range fresh {
		if key := letters[i].Key; !seen[key] {
			seen[key] = true
			first = append(first, i)
		} else {
			again = append(again, i)
		}
	}
	if p.store.dialect.name() != SQLite {
		// In the order of the keys, so that two processes with the same dead letters do not deadlock.
		slices.SortFunc(first, func(i, j int) int { return bytes.Compare(letters[i].Key[:], letters[j].Key[:]) })
	}
	rows := make([][]any, len(first))
	for n, i := range first {
		rows[n] = letters[i].entry
	}
	ids, err := p.store.dialect.insertEntries(ctx, p.store, p.tx, rows)
	if err != nil {
		return err
	}
	var bodies [][]any
	for _, i := range first {
		id, isNew := ids[letters[i].Key]
		if !isNew {
			again = append(again, i)
			continue
		}
		p.receipts[i] = driver.Receipt{ID: id, Result: driver.Stored}
		stored := *letters[i].Entry
		stored.ID = id
		p.deltas.add(&stored)
		bodies = append(bodies, append([]any{id}, letters[i].body[1:]...))
	}
	if err := p.store.insertBodies(ctx, p.tx, bodies); err != nil {
		return err
	}
	return p.seeAgain(ctx, letters, again)
}

// seeAgain applies deaths whose keys existed, in order.
func (p *putting) seeAgain(ctx context.Context, letters []letterRow, again []int) error {
	slices.Sort(again)
	keys := make([]driver.Key, 0, len(again))
	for _, i := range again {
		keys = append(keys, letters[i].Key)
	}
	rows, err := p.entriesByKey(ctx, keys)
	if err != nil {
		return err
	}
	for n, i := range again {
		row := rows[letters[i].Key]
		if row == nil {
			return p.replaceOrphans(ctx, letters, again[n:])
		}
		if err := p.die(ctx, i, row, letters[i].Entry); err != nil {
			return err
		}
	}
	return nil
}

// errRemoved ends a transaction of dead letters that found a key but not its entry, because the entry was removed in
// between; the transaction is repeated. On MariaDB this also happens to concurrent calls that store the same letters.
var errRemoved = errors.New("an entry was removed while its message died again: repeat the call")

// removed reports whether a transaction ended with errRemoved.
func removed(err error) bool { return errors.Is(err, errRemoved) }

// replaceOrphans stores letters whose keys existed without an entry: their month was dropped just now, or an operator
// has deleted the entry. It does so once per transaction.
func (p *putting) replaceOrphans(ctx context.Context, letters []letterRow, again []int) error {
	table, id := p.store.dialect.keys()
	if p.replaced || table == "dlq_entries" {
		return errRemoved
	}
	p.replaced = true
	for _, i := range again {
		_, err := p.store.exec(ctx, p.tx, "DELETE FROM "+table+" WHERE dedup_key = ?"+
			" AND NOT EXISTS (SELECT 1 FROM dlq_entries WHERE id = "+id+")", letters[i].Key[:])
		if err != nil {
			return err
		}
	}
	return p.insert(ctx, letters, again)
}

// entriesByKey reads and locks entries, in the order of their ids.
func (p *putting) entriesByKey(ctx context.Context, keys []driver.Key) (map[driver.Key]*dlq.Entry, error) {
	found := make(map[driver.Key]*dlq.Entry, len(keys))
	ids := map[driver.Key]int64{}
	for chunk := range slices.Chunk(keys, maxRows) {
		args := sqldb.Map(chunk, func(key *driver.Key) any { return key[:] })
		table, id := p.store.dialect.keys()
		err := scanIDs(p.store.query(ctx, p.tx, "SELECT "+id+", dedup_key FROM "+table+
			" WHERE dedup_key IN "+questionMarks(len(chunk), 1), args...))(ids)
		if err != nil {
			return nil, err
		}
	}
	entries, err := p.store.lockEntries(ctx, p.tx, slices.Collect(maps.Values(ids)))
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		found[e.Key] = e
	}
	return found, nil
}

// die applies a death to an existing entry.
func (p *putting) die(ctx context.Context, i int, row, d *dlq.Entry) error {
	row = p.now(row)
	after, outcome := row.Die(d)
	p.receipts[i] = driver.Receipt{ID: row.ID, Result: outcome}
	if outcome == driver.DiedAgain {
		p.deltas.addHour(hourDelta{hourKey: hourKey{after.DiedAt, after.Fingerprint}, DiedAgain: 1}) // never undone
		if err := p.keepBody(ctx, &after, d); err != nil {
			return err
		}
		p.audit = append(p.audit, driver.AuditRecord{
			At: d.DiedAt, Actor: d.DiedBy(), Action: driver.ActionDie, EntryID: row.ID, Run: row.Run,
			From: row.Status, To: after.Status, Version: after.Version,
			Detail: map[string]string{"error": after.ErrorMessage, "previous_error": row.ErrorMessage},
		})
	}
	p.change(row, &after)
	return nil
}

// keepBody adds a revision when the message that died again differs from the stored one. Of a redrive, every revision
// counts: the late death of an earlier one would otherwise revert an edit.
func (p *putting) keepBody(ctx context.Context, e, d *dlq.Entry) error {
	query, args := "SELECT EXISTS (SELECT 1 FROM dlq_bodies WHERE entry_id = ? AND payload_sha256 = ?",
		[]any{e.ID, d.Body.SHA256[:]}
	if d.RedriveOf != e.ID {
		query, args = query+" AND revision = ?", append(args, e.Revision)
	}
	var kept bool
	if err := p.store.queryRow(ctx, p.tx, query+")", args...).Scan(&kept); err != nil || kept {
		return err
	}
	return p.store.addRevision(ctx, p.tx, e, d.Body)
}

// Limits for the pieces of a large call, in letters.
const (
	minPiece = 100
	maxPiece = 500
)

// putPieces stores many letters in pieces, so that this process prepares the rows of one while the server works on
// another, and the server uses two processors. Each piece is a transaction; after an error the caller repeats the whole
// call.
func (s *Store) putPieces(ctx context.Context, letters []*dlq.Entry) ([]driver.Receipt, error) {
	size := s.pieceSize(letters)
	if size >= len(letters) {
		return s.putPiece(ctx, letters)
	}
	pieces := slices.Collect(slices.Chunk(letters, size))
	receipts, errs := make([][]driver.Receipt, len(pieces)), make([]error, len(pieces))
	var group sync.WaitGroup
	for i := range pieces {
		group.Go(func() { receipts[i], errs[i] = s.putPiece(ctx, pieces[i]) })
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return slices.Concat(receipts...), nil
}

func (s *Store) putPiece(ctx context.Context, letters []*dlq.Entry) ([]driver.Receipt, error) {
	rows, err := s.makeRows(letters)
	if err != nil {
		return nil, err
	}
	return s.writer.put(ctx, rows)
}

// pieceSize is the number of letters in a piece of a call. A call with redriven letters, or with several of one key, is
// one piece, because their order matters.
func (s *Store) pieceSize(letters []*dlq.Entry) int {
	if _, short := s.dialect.(newPutter); !short || len(letters) < 2*minPiece {
		return len(letters)
	}
	seen := make(map[driver.Key]bool, len(letters))
	for _, e := range letters {
		if seen[e.Key] || !(&letterRow{Entry: e}).isNew() {
			return len(letters)
		}
		seen[e.Key] = true
	}
	return min(max((len(letters)+s.writers()-1)/s.writers(), minPiece), maxPiece)
}
