package dlq

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/redrive-go/redrive/dlq/driver"
)

type txKey struct{}

// offer is a transaction, and the context that it was offered with: pipelines dead-letter on one that outlives it.
type offer struct {
	tx  *sql.Tx
	ctx context.Context //nolint:containedctx // asked for nothing but whether it is over
}

// ContextWithTx offers a transaction on the store's database to [Letters.DeadLetter], so that a dead letter and the
// work that goes with it are one: a row marked invalid and its dead letter, or a dead letter and the offset
// behind it.
//
// The one who offers commits after DeadLetter has returned nil, and acks the message only after the commit; when the
// commit fails, the message is to be delivered again. Never offer a transaction that a failing handler has worked in:
// roll it back, and let the dead letter have a separate one, as it has without an offer. A transaction that cannot take
// the letter, because it is over or a statement in it has failed, is left alone, and the letter is stored as if none
// had been offered. But when ctx is over by then, as it is when another worker has the message, DeadLetter returns an
// error, and the message is to be delivered again: a transaction that was begun with ctx cannot be committed any more.
func ContextWithTx(ctx context.Context, tx *sql.Tx) context.Context {
	return context.WithValue(ctx, txKey{}, offer{tx, ctx})
}

// putTx stores the entry in the transaction that the context offers, if it offers one and the store can. It reports
// whether it did. An error means that the entry is not to be stored at all.
func (l *Letters) putTx(ctx context.Context, entry *Entry) (bool, error) {
	offered, _ := ctx.Value(txKey{}).(offer)
	if _, ok := driver.As[driver.TxStore](l.store); offered.tx == nil || !ok {
		return false, nil
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.closed {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, l.opts.storeTimeout)
	defer cancel()
	var err error
	if offered.ctx.Err() == nil {
		if err = putTx(ctx, l.store, offered.tx, entry); err == nil {
			return true, nil
		}
	}
	if offered.ctx.Err() != nil {
		cause := context.Cause(offered.ctx) //nolint:contextcheck // the one that the transaction ends with
		return false, fmt.Errorf("dlq: dead letter: in the transaction that was offered: %w", cause)
	}
	l.opts.logger.WarnContext(ctx, "the transaction that was offered cannot take the dead letter: it is stored in a "+
		"separate one",
		"message_id", entry.EventID, "error", err)
	return false, nil
}
