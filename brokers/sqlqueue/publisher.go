package sqlqueue

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
)

// Bounds of one INSERT. PostgreSQL takes 65,535 parameters, and beyond a few hundred rows larger statements gain nothing.
const (
	maxRows  = 500
	maxBytes = 4 << 20
)

// lanes publish to one topic each, so that a topic's messages stay in order and topics do not wait for each other.
type lanes struct {
	insert func(topic string, rows []row) error
	mu     sync.Mutex
	topics map[string]*batcher[*request]
}

// request is one caller's messages.
type request struct {
	rows []row
	done chan error // capacity 1
}

func newLanes(insert func(topic string, rows []row) error) *lanes {
	return &lanes{insert: insert, topics: map[string]*batcher[*request]{}}
}

// publish returns when rows are stored. Callers that publish to one topic at the same time share statements.
func (l *lanes) publish(topic string, rows []row) error {
	r := &request{rows: rows, done: make(chan error, 1)}
	l.mu.Lock()
	lane := l.topics[topic]
	if lane == nil {
		lane = &batcher[*request]{max: maxRows}
		lane.flush = func(batch []*request) { l.flush(topic, batch) }
		l.topics[topic] = lane
	}
	l.mu.Unlock()
	lane.add(r)
	return <-r.done
}

// flush stores whole requests, as many at a time as one statement takes.
func (l *lanes) flush(topic string, batch []*request) {
	for len(batch) > 0 {
		n, rows, bytes := 0, 0, 0
		for ; n < len(batch); n++ {
			for _, r := range batch[n].rows {
				bytes += r.size()
			}
			rows += len(batch[n].rows)
			if n > 0 && (rows > maxRows || bytes > maxBytes) {
				break
			}
		}
		l.store(topic, batch[:n])
		batch = batch[n:]
	}
}

// store inserts the rows of batch together. If the database refuses one of them, each request is tried by itself, so that
// one caller's message does not fail the others'.
func (l *lanes) store(topic string, batch []*request) {
	rows := batch[0].rows
	if len(batch) > 1 {
		rows = nil
		for _, r := range batch {
			rows = append(rows, r.rows...)
		}
	}
	err := l.insertChunks(topic, rows)
	if err != nil && len(batch) > 1 && !unreachable(err) {
		for _, r := range batch {
			r.done <- l.insertChunks(topic, r.rows)
		}
		return
	}
	for _, r := range batch {
		r.done <- err
	}
}

func (l *lanes) insertChunks(topic string, rows []row) error {
	for chunk := range chunks(rows) {
		if err := l.insert(topic, chunk); err != nil {
			return err
		}
	}
	return nil
}

// chunks splits rows into what one statement takes.
func chunks(rows []row) iter.Seq[[]row] {
	return func(yield func([]row) bool) {
		for len(rows) > 0 {
			n, bytes := 0, 0
			for ; n < len(rows) && n < maxRows; n++ {
				if bytes += rows[n].size(); n > 0 && bytes > maxBytes {
					break
				}
			}
			if !yield(rows[:n]) {
				return
			}
			rows = rows[n:]
		}
	}
}

// unreachable tells whether the database did not answer, rather than refuse.
func unreachable(err error) bool {
	var netErr net.Error
	return errors.Is(err, driver.ErrBadConn) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || errors.As(err, &netErr)
}

// publisher is a handle on the broker. Closing it leaves the broker open.
type publisher struct {
	broker *Broker
	closed atomic.Bool
}

// Publish stores the messages and returns when the transaction is committed.
func (p *publisher) Publish(topic string, messages ...*message.Message) error {
	if p.closed.Load() {
		return fmt.Errorf("sqlqueue: publish to %s: %w", topic, brokers.ErrClosed)
	}
	done, err := p.broker.enter()
	if err != nil {
		return fmt.Errorf("sqlqueue: publish to %s: %w", topic, err)
	}
	defer done()
	rows, err := p.broker.rows(topic, messages)
	if err == nil && len(rows) > 0 {
		err = p.broker.lanes.publish(topic, rows)
	}
	if err != nil {
		return fmt.Errorf("sqlqueue: publish to %q: %w", topic, err)
	}
	return nil
}

// Close makes further publishes on this handle fail.
func (p *publisher) Close() error {
	p.closed.Store(true)
	return nil
}

// rows copies messages, and takes their requests for a delay.
func (b *Broker) rows(topic string, messages []*message.Message) ([]row, error) {
	if err := checkName("topic", topic); err != nil {
		return nil, err
	}
	rows := make([]row, len(messages))
	for i, m := range messages {
		if err := checkSize(m, b.maxMessage); err != nil {
			return nil, err
		}
		var delay time.Duration
		if asksDelay(m) {
			m = m.Copy()
			delay, _ = envelope.TakeDelay(m)
		}
		rows[i] = newRow(m, delay)
	}
	return rows, nil
}

// asksDelay saves the copy of messages that ask for none.
func asksDelay(m *message.Message) bool {
	for _, key := range [...]string{envelope.KeyDelay, envelope.KeyWatermillDelayedFor, envelope.KeyWatermillDelayedUntil} {
		if _, ok := m.Metadata[key]; ok {
			return true
		}
	}
	return false
}

// TxPublisher returns a publisher that stores messages in tx: they appear when tx commits, together with everything else
// in it, and not at all when it rolls back (the outbox, C13). A delay counts from the call of Publish.
//
// tx is a *sql.Tx, or a *sql.Conn or wrapper in a transaction, on the database of this broker. It stays the caller's, and
// an error of Publish may have spoiled it: roll it back. The publisher needs no Close, and is as safe for concurrent use
// as tx is.
func (b *Broker) TxPublisher(tx DB) message.Publisher { return &txPublisher{broker: b, tx: tx} }

type txPublisher struct {
	broker *Broker
	tx     DB
	closed atomic.Bool
}

// Publish stores the messages in the transaction.
func (p *txPublisher) Publish(topic string, messages ...*message.Message) error {
	if p.closed.Load() {
		return fmt.Errorf("sqlqueue: publish to %q: %w", topic, brokers.ErrClosed)
	}
	rows, err := p.broker.rows(topic, messages)
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), p.broker.cfg.PublishTimeout)
		defer cancel()
		chunks := lanes{insert: func(topic string, rows []row) error {
			return p.broker.store.insertWith(ctx, p.tx, topic, rows, true)
		}}
		err = chunks.insertChunks(topic, rows)
	}
	if err != nil {
		return fmt.Errorf("sqlqueue: publish to %q in a transaction: %w", topic, err)
	}
	return nil
}

// Close makes further publishes fail. The transaction stays open.
func (p *txPublisher) Close() error {
	p.closed.Store(true)
	return nil
}
