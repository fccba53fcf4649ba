package sqlqueue

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/internal/sqldb"
)

// ErrNoDelivery means that a context does not belong to a message delivered by this package, or that the message is
// already settled.
var ErrNoDelivery = errors.New("the context belongs to no delivery of a SQL queue that is still open")

// InTx runs fn in a transaction of the queue's database that also acks the message ctx belongs to: the changes and
// messages of fn (with [Broker.TxPublisher]) happen exactly once, however often the message is delivered. If fn fails,
// nothing has happened, and InTx returns the error. If the answer to the commit is lost, InTx looks up whether it has
// happened. A handler calls it last; after a success its own error would be too late.
//
//	func (h *Handler) Handle(m *message.Message) error {
//		return sqlqueue.InTx(m.Context(), func(tx *sql.Tx) error {
//			_, err := tx.ExecContext(m.Context(), "UPDATE accounts SET ...")
//			return err
//		})
//	}
//
// The transaction is READ COMMITTED, except on SQLite. If another worker has taken over the message, it fails with
// [ErrLeaseLost] and is rolled back.
func InTx(ctx context.Context, fn func(tx *sql.Tx) error) error {
	d, ok := ctx.Value(deliveryKey{}).(*delivery)
	if !ok {
		return fmt.Errorf("sqlqueue: transaction: %w", ErrNoDelivery)
	}
	if err := d.stream.t.ackInTx(ctx, d, fn); err != nil {
		return fmt.Errorf("sqlqueue: transaction: %w", err)
	}
	return nil
}

func (t *transport) ackInTx(ctx context.Context, d *delivery, fn func(tx *sql.Tx) error) (err error) {
	if d.decide(false) != rowOpen {
		return ErrNoDelivery
	}
	outcome := rowOpen
	defer func() { // even if fn panics
		if d.decided(outcome); outcome == rowDecided {
			t.leases.drop(d)
		}
	}()
	acked := false
	// A snapshot would not show the lease's renewals.
	err = sqldb.InTx(ctx, sqldb.Patient{DB: t.handlers}, t.store.name.ReadCommitted(), func(tx *sql.Tx) error {
		if err := fn(tx); err != nil {
			return err
		}
		// Last, so that renewing the lease only waits for the commit.
		n, err := t.store.ackWith(ctx, tx, []leased{d.leased()}, nil)
		if err == nil && n == 0 {
			err = ErrLeaseLost
		}
		acked = err == nil
		return err
	})
	if acked && (err == nil || t.committed(ctx, d, err)) {
		outcome, err = rowDecided, nil
	}
	return err
}

// committed reports whether a transaction that acked d has happened although its commit failed: the answer may have
// been lost, and the attempt must not count as a failure then. If the database does not answer, it ends the handler's
// context, so that the message, if it is still there, is returned to the queue without counting the attempt.
func (t *transport) committed(ctx context.Context, d *delivery, failure error) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.cfg.PublishTimeout)
	defer cancel()
	where, args := t.store.byIDs([]int64{d.row.id})
	// Each of the pool's connections may have been cut together with the transaction's.
	for others := t.db.Stats().OpenConnections; ; others-- {
		// The lock makes it wait for a server that is still committing.
		left, err := queryInts(ctx, t.db, "SELECT id FROM "+t.store.byID+where+t.store.name.ForUpdate(), args...)
		if err == nil {
			return len(left) == 0
		}
		if others <= 0 || !t.store.name.Away(err) {
			d.end(fmt.Errorf("sqlqueue: the outcome of a transaction is unknown: %w", errors.Join(failure, err)))
			return false
		}
	}
}

// TxPublisher returns a publisher that stores messages in tx: they appear when tx commits, together with its other
// changes, and not at all if it rolls back (the outbox). A delay starts with the call of Publish.
//
// tx is a *sql.Tx, or a *sql.Conn or wrapper in a transaction, on the database of this broker. The caller keeps it, and
// must roll it back if Publish fails, because the error may have invalidated it. On PostgreSQL, a transaction above
// READ COMMITTED only publishes to the groups that had subscribed when it began. The publisher needs no Close, and is
// as safe for concurrent use as tx is.
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
	if err := p.publish(topic, messages); err != nil {
		return fmt.Errorf("sqlqueue: publish to %q in a transaction: %w", topic, err)
	}
	return nil
}

// Close makes further publishes fail. The transaction stays open.
func (p *txPublisher) Close() error {
	p.closed.Store(true)
	return nil
}

func (p *txPublisher) publish(topic string, messages []*message.Message) error {
	if err := checkName("topic", topic); err != nil {
		return err
	}
	out, err := p.broker.Outgoing(topic, messages)
	if err != nil {
		return err
	}
	t := p.broker.t
	rows := make([]row, len(out))
	for i := range out {
		rows[i] = newRow(&out[i])
		if err := t.fits(&out[i], &rows[i]); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), t.cfg.PublishTimeout)
	defer cancel()
	return t.store.insertPublication(ctx, p.tx, &publication{topic: topic, rows: rows, outbox: true, notify: true})
}
