package sqlstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
)

// Limits of one joined transaction.
const (
	maxJoinedRows  = 1000
	maxJoinedBytes = 16 << 20
	joinedTimeout  = time.Minute
	maxIdle        = 16 // how often the writer yields without a new caller
	maxMoment      = 500 * time.Microsecond
)

// writer joins concurrent Puts: while one transaction commits, the next callers gather for the next commit, which costs
// one sync of the disk no matter how much is in it. Unlike the batcher of brokers/internal/engine, which flushes one
// batch at a time and as soon as the previous one is done, it commits on two connections, and waits for callers that
// have just got their results.
type writer struct {
	store   *Store
	calls   chan *putCall
	quit    chan struct{}
	stopped chan struct{}
	once    sync.Once
	running sync.WaitGroup
}

type putCall struct {
	letters []letterRow
	size    int64
	done    chan putAnswer
}

type putAnswer struct {
	receipts []driver.Receipt
	err      error
}

func startWriter(s *Store, goroutines int) *writer {
	w := &writer{store: s, calls: make(chan *putCall), quit: make(chan struct{}), stopped: make(chan struct{})}
	for range goroutines {
		w.running.Go(w.run)
	}
	return w
}

// put passes letters to the writer. A caller whose context ends does not stop the transaction that others share.
func (w *writer) put(ctx context.Context, letters []letterRow) ([]driver.Receipt, error) {
	call := &putCall{letters: letters, done: make(chan putAnswer, 1)}
	for _, e := range letters {
		call.size += e.Size
	}
	select {
	case w.calls <- call:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-w.stopped:
		return nil, dlq.ErrClosed
	}
	select {
	case answer := <-call.done:
		return answer.receipts, answer.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (w *writer) stop() {
	w.once.Do(func() {
		close(w.quit)
		w.running.Wait()
		close(w.stopped)
	})
	<-w.stopped
}

func (w *writer) run() {
	previous := 0 // calls in the last group
	for {
		select {
		case call := <-w.calls:
			group := w.gather(call, previous)
			previous = len(group)
			w.commit(group)
		case <-w.quit:
			return
		}
	}
}

// gather adds the callers that are already waiting to the first. Those of the previous group have just got their
// results and are about to return: without a chance to run they would miss this commit, and two halves of the callers
// would alternate, each waiting for a whole commit of the other. So the writer yields a few times before it commits,
// and then waits for a moment while there are fewer than in the previous group; after a group of one it does not. A
// piece of a large call is a group on its own: the next one is for another writer.
func (w *writer) gather(first *putCall, previous int) []*putCall {
	group, rows, size := []*putCall{first}, len(first.letters), first.size
	var moment <-chan time.Time
	for idle := 0; rows < maxJoinedRows && size < maxJoinedBytes && len(first.letters) < minPiece; {
		var call *putCall
		select {
		case call = <-w.calls:
		default:
			switch {
			case previous == 1 && len(group) == 1, idle >= maxIdle && len(group) >= previous:
				return group
			case idle < maxIdle:
				idle++
				runtime.Gosched()
				continue
			}
			if moment == nil {
				moment = time.After(maxMoment)
			}
			select {
			case call = <-w.calls:
			case <-moment:
				return group
			}
		}
		group = append(group, call)
		rows += len(call.letters)
		size += call.size
		idle = 0
	}
	return group
}

// commit writes a group. If that fails, each call is tried alone, so that a letter that the database rejects does not
// fail the others. If a second call fails too, the database is the cause, and the remaining calls get the error at
// once.
func (w *writer) commit(group []*putCall) {
	var joined []letterRow
	for _, call := range group {
		joined = append(joined, call.letters...)
	}
	receipts, err := w.transact(joined)
	if err == nil {
		for _, call := range group {
			n := len(call.letters)
			call.done <- putAnswer{receipts: receipts[:n:n]}
			receipts = receipts[n:]
		}
		return
	}
	failures := 0
	for _, call := range group {
		if len(group) == 1 && !w.refuses(err) || failures > 1 {
			call.done <- putAnswer{err: err}
			continue
		}
		alone, err := w.putAlone(call.letters)
		if err != nil {
			failures++
		}
		call.done <- putAnswer{receipts: alone, err: err}
	}
}

// newPutter is a dialect with a faster way to store PENDING letters whose keys do not exist.
type newPutter interface {
	putNew(ctx context.Context, s *Store, letters []letterRow) (map[driver.Key]int64, error)
}

// transact stores new letters the fast way, if the database has one, and the others in a transaction.
func (w *writer) transact(letters []letterRow) ([]driver.Receipt, error) {
	ctx, cancel := context.WithTimeout(context.Background(), joinedTimeout)
	defer cancel()
	receipts := make([]driver.Receipt, len(letters))
	rest, indexes := w.putNew(ctx, letters, receipts)
	if len(rest) == 0 {
		return receipts, nil
	}
	others, err := w.putAll(ctx, rest)
	if err != nil {
		return nil, err
	}
	for n, i := range indexes {
		receipts[i] = others[n]
	}
	return receipts, nil
}

// putNew stores what it can the fast way, and returns the other letters with their indexes. It ignores an error: if it
// persists, the slow way returns it.
func (w *writer) putNew(ctx context.Context, letters []letterRow, receipts []driver.Receipt) (rest []letterRow,
	indexes []int,
) {
	d, ok := w.store.dialect.(newPutter)
	if !ok {
		return letters, allIndexes(len(letters))
	}
	var fresh []letterRow
	var size int64
	seen := make(map[driver.Key]bool, len(letters))
	for _, e := range letters {
		if e.isNew() && !seen[e.Key] {
			seen[e.Key] = true
			fresh = append(fresh, e)
			size += e.Size
		}
	}
	if len(fresh) == 0 || size > int64(w.store.maxStatement()) {
		return letters, allIndexes(len(letters))
	}
	ids, err := d.putNew(ctx, w.store, fresh)
	if err != nil {
		return letters, allIndexes(len(letters))
	}
	for i, e := range letters {
		if id, stored := ids[e.Key]; stored && e.isNew() {
			receipts[i] = driver.Receipt{ID: id, Result: driver.Stored}
			delete(ids, e.Key) // a second one with the key is seen again
			continue
		}
		rest, indexes = append(rest, e), append(indexes, i)
	}
	return rest, indexes
}

func allIndexes(n int) []int {
	indexes := make([]int, n)
	for i := range indexes {
		indexes[i] = i
	}
	return indexes
}

// putAll stores letters in one transaction.
func (w *writer) putAll(ctx context.Context, letters []letterRow) (receipts []driver.Receipt, err error) {
	s := w.store
	err = durably(ctx, s.dialect.name(), s.write, func(tx *sql.Tx) error {
		p, err := s.putTx(ctx, tx, letters)
		if err != nil {
			return err
		}
		receipts = p.receipts
		return p.deltas.apply(ctx, s, tx)
	})
	return receipts, err
}

// putAlone is transact for the letters of one call. A letter with text that the database will never accept, because its
// character set lacks a character or an operator's constraint forbids it, would be redelivered forever and block its
// queue. It is stored with its texts escaped. Payload and headers are bytes, and stay as they are.
func (w *writer) putAlone(letters []letterRow) ([]driver.Receipt, error) {
	receipts, err := w.transact(letters)
	if err == nil || !w.refuses(err) {
		return receipts, err
	}
	receipts = make([]driver.Receipt, 0, len(letters))
	for i := range letters {
		one, err := w.transact(letters[i : i+1])
		if err != nil && w.refuses(err) {
			escapedLetter, escapeErr := w.store.withEscapedTexts(&letters[i], err)
			if escapeErr != nil {
				return nil, escapeErr
			}
			if one, err = w.transact([]letterRow{escapedLetter}); err != nil && w.refuses(err) {
				err = fmt.Errorf("%w: %w", dlq.ErrInvalid, err)
			}
		}
		if err != nil {
			return nil, err
		}
		receipts = append(receipts, one...)
	}
	return receipts, nil
}

func (w *writer) refuses(err error) bool { return w.store.dialect.name().Refused(err) }

// Bounds of an escaped text, which takes up to six bytes for one.
const (
	maxEscapedName  = 200
	maxEscapedError = 4000
)

// withEscapedTexts returns the letter with texts that any database accepts, and the same key and group.
func (s *Store) withEscapedTexts(letter *letterRow, refusal error) (letterRow, error) {
	e, body := *letter.Entry, *letter.Body
	for _, text := range append(e.Names(), &body.ContentType) {
		*text = escaped(*text, maxEscapedName)
	}
	e.ErrorMessage = "stored with escaped texts, because the database refused the original ones (" +
		escaped(refusal.Error(), maxEscapedName) + "): " + escaped(e.ErrorMessage, maxEscapedError)
	e.Cause = escaped(e.Cause, maxEscapedError)
	body.Trace = escaped(body.Trace, maxEscapedError)
	e.Body = &body
	values, err := bodyValues(s.dialect, 0, &body)
	if err != nil {
		return letterRow{}, err
	}
	values[bodyProjection] = s.dialect.projection([]byte("{")) // not JSON
	if values[bodyHeaders], err = binaryHeaders(&body); err != nil {
		return letterRow{}, err
	}
	return letterRow{Entry: &e, entry: entryValues(s.dialect, &e), body: values}, nil
}

// escaped returns the text in ASCII.
func escaped(text string, limit int) string {
	quoted := strconv.QuoteToASCII(text)
	quoted = strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
	return quoted[:min(len(quoted), limit)]
}

// binaryHeaders returns the stored headers in ASCII.
func binaryHeaders(b *dlq.Body) (string, error) {
	stored := storedHeaders{Text: map[string]string{}, Collected: b.Wire().Collected}
	for key, value := range b.Headers {
		stored.Binary = append(stored.Binary, [2][]byte{[]byte(key), []byte(value)})
	}
	data, err := json.Marshal(stored)
	return string(data), err
}
