package sqlqueue

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
)

// TxPublisher returns a publisher that stores messages in tx: they appear when tx commits, together with its other
// changes, and not at all if it rolls back (the outbox). A delay starts with the call of Publish.
//
// tx is a *sql.Tx, or a *sql.Conn or wrapper in a transaction, on the database of this broker. The caller keeps it, and
// must roll it back if Publish fails, because the error may have invalidated it. The publisher needs no Close, and is
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
	err := p.publish(topic, messages)
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
