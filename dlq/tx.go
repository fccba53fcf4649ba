package dlq

import (
	"context"
	"database/sql"

	"github.com/redrive-go/redrive/dlq/driver"
)

type txKey struct{}

// ContextWithTx offers a transaction on the store's database to [Letters.DeadLetter], so that a dead letter and the
// work that goes with it are one: a row marked invalid and its dead letter, or a dead letter and the offset
// behind it.
//
// The one who offers commits after DeadLetter has returned nil, and acks the message only after the commit; when the
// commit fails, the message is to be delivered again. Never offer a transaction that a failing handler has worked in:
// roll it back, and let the dead letter have a separate one, as it has without an offer. A transaction that cannot take
// the letter, because it is over or a statement in it has failed, is left alone, and the letter is stored as if none
// had been offered.
func ContextWithTx(ctx context.Context, tx *sql.Tx) context.Context {
	return context.WithValue(ctx, txKey{}, tx)
}

// putTx stores the entry in the transaction that the context offers, if it offers one and the store can. It reports
// whether it did.
func (l *Letters) putTx(ctx context.Context, entry *Entry) bool {
	tx, _ := ctx.Value(txKey{}).(*sql.Tx)
	if _, ok := driver.As[driver.TxStore](l.store); tx == nil || !ok {
		return false
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.closed {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, l.opts.storeTimeout)
	defer cancel()
	if err := putTx(ctx, l.store, tx, entry); err != nil {
		l.opts.logger.WarnContext(ctx, "the transaction that was offered cannot take the dead letter: it is stored in a "+
			"separate one",
			"message_id", entry.EventID, "error", err)
		return false
	}
	return true
}
