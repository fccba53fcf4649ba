package sqlqueue

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/redrive-go/redrive/internal/sqldb"
)

// ErrNoDelivery means that a context does not belong to a message delivered by this package, or that the message is
// already settled.
var ErrNoDelivery = errors.New("the context belongs to no delivery of a SQL queue that is still open")

// InTx runs fn in a transaction of the queue's database that also acks the message ctx belongs to: the changes and
// messages of fn (with [Broker.TxPublisher]) happen exactly once, however often the message is delivered. If fn fails,
// nothing has happened, and InTx returns the error. A handler calls it last; after a success its own error would be too
// late.
//
//	func (h *Handler) Handle(m *message.Message) error {
//		return sqlqueue.InTx(m.Context(), func(tx *sql.Tx) error {
//			_, err := tx.ExecContext(m.Context(), "UPDATE accounts SET ...")
//			return err
//		})
//	}
//
// If another worker has taken over the message, it fails with [ErrLeaseLost], and the transaction is rolled back.
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
		if d.turn(outcome); outcome == rowDecided {
			t.leases.drop(d)
		}
	}()
	err = sqldb.InTx(ctx, t.db, nil, func(tx *sql.Tx) error {
		if err := fn(tx); err != nil {
			return err
		}
		// Last, so that renewing the lease only waits for the commit.
		n, err := t.store.ackWith(ctx, tx, []leased{d.leased()}, nil)
		if err == nil && n == 0 {
			err = ErrLeaseLost
		}
		return err
	})
	if err == nil {
		outcome = rowDecided
	}
	return err
}
