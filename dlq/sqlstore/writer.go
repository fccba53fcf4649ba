package sqlstore

import (
	"context"
	"database/sql"
	"runtime"
	"sync"
	"time"

	"github.com/redrive-go/redrive/dlq"
)

// Bounds of one joined transaction.
const (
	maxJoinedRows  = 1000
	maxJoinedBytes = 16 << 20
	joinedTimeout  = time.Minute
	maxIdle        = 16 // how often the writer steps aside without anybody coming
	maxMoment      = 500 * time.Microsecond
)

// writer joins concurrent Puts: while one transaction commits, the next callers gather, and share the next commit. A commit costs a
// sync of the disk however much is in it.
type writer struct {
	store   *Store
	calls   chan *putCall
	quit    chan struct{}
	stopped chan struct{}
	once    sync.Once

	previous int // calls in the last group; of the goroutine alone
}

type putCall struct {
	letters []letterRow
	size    int64
	done    chan putAnswer
}

type putAnswer struct {
	receipts []dlq.Receipt
	err      error
}

func startWriter(s *Store) *writer {
	w := &writer{store: s, calls: make(chan *putCall), quit: make(chan struct{}), stopped: make(chan struct{})}
	go w.run()
	return w
}

// put hands letters to the writer. A caller whose context ends does not stop the transaction that others share.
func (w *writer) put(ctx context.Context, letters []letterRow) ([]dlq.Receipt, error) {
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
	w.once.Do(func() { close(w.quit) })
	<-w.stopped
}

func (w *writer) run() {
	defer close(w.stopped)
	for {
		select {
		case call := <-w.calls:
			w.commit(w.gather(call))
		case <-w.quit:
			return
		}
	}
}

// gather adds the callers that wait already to the first. Those of the group before have just been answered and are about to come
// back: without a chance to run they would miss this commit, and two halves of the callers would take turns, each waiting for a
// whole commit of the other. So the writer steps aside a few times before it commits, and then waits for a moment as long as there are
// fewer than in the group before; after a group of one it does not.
func (w *writer) gather(first *putCall) []*putCall {
	group, rows, size := []*putCall{first}, len(first.letters), first.size
	previous := w.previous
	var moment <-chan time.Time
	for idle := 0; rows < maxJoinedRows && size < maxJoinedBytes; {
		var call *putCall
		select {
		case call = <-w.calls:
		default:
			switch {
			case previous == 1 && len(group) == 1, idle >= maxIdle && len(group) >= previous:
				w.previous = len(group)
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
				w.previous = len(group)
				return group
			}
		}
		group = append(group, call)
		rows += len(call.letters)
		size += call.size
		idle = 0
	}
	w.previous = len(group)
	return group
}

// commit writes a group. When that fails each call is tried alone, so that one letter that the database does not take does not
// fail its neighbours; when a second one fails too it is the database, and the others get the same answer at once.
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
		if len(group) == 1 || failures > 1 {
			call.done <- putAnswer{err: err}
			continue
		}
		alone, err := w.transact(call.letters)
		if err != nil {
			failures++
		}
		call.done <- putAnswer{receipts: alone, err: err}
	}
}

func (w *writer) transact(letters []letterRow) ([]dlq.Receipt, error) {
	s := w.store
	ctx, cancel := context.WithTimeout(context.Background(), joinedTimeout)
	defer cancel()
	var receipts []dlq.Receipt
	err := s.dialect.inTx(ctx, s.write, func(tx *sql.Tx) error {
		p, err := s.putTx(ctx, tx, letters)
		if err != nil {
			return err
		}
		receipts = p.receipts
		return p.deltas.apply(ctx, s, tx)
	})
	if err != nil {
		return nil, err
	}
	// Not an error of these letters, which are stored; it shows again when the statement is used.
	_ = s.statements.prepare(ctx, s.write)
	return receipts, nil
}
