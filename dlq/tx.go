package dlq

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/redrive-go/redrive/dlq/driver"
)

type txKey struct{}

// offeredTx is a transaction, and the context that it was offered with: pipelines dead-letter with a context that
// outlives it.
type offeredTx struct {
	tx  *sql.Tx
	ctx context.Context //nolint:containedctx // only checked for its end
}

// ContextWithTx offers [Letters.DeadLetter] a transaction on the store's database, so that a dead letter and related
// work commit together: a row marked invalid and its dead letter, or a dead letter and the offset of its message.
//
// The caller commits after DeadLetter has returned nil, and acks the message only after the commit; if the commit
// fails, the message must be redelivered. Never offer a transaction that a failing handler has worked in: roll it back,
// and let the dead letter be stored in a separate one, as it is without an offer. A transaction that cannot be used,
// because it is over or a statement in it has failed, is ignored, and the letter is stored as if none had been offered.
// But if ctx has ended by then, for example because another worker has the message, DeadLetter returns an error, and
// the message must be redelivered: a transaction begun with ctx can no longer be committed.
func ContextWithTx(ctx context.Context, tx *sql.Tx) context.Context {
	return context.WithValue(ctx, txKey{}, offeredTx{tx, ctx})
}

// putTx stores the entry in the transaction that the context offers, if there is one and the store supports it, and
// reports whether it did. After an error the entry must not be stored at all.
func (l *Letters) putTx(ctx context.Context, entry *Entry) (bool, error) {
	offered, _ := ctx.Value(txKey{}).(offeredTx)
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
		cause := context.Cause(offered.ctx) //nolint:contextcheck // the one that ends the transaction
		return false, fmt.Errorf("dlq: dead letter: in the offered transaction: %w", cause)
	}
	l.opts.logger.WarnContext(ctx, "the offered transaction cannot be used for the dead letter: it is stored in a "+
		"separate one",
		"message_id", entry.EventID, "error", err)
	return false, nil
}
