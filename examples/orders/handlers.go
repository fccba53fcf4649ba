package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

// charge charges an order and publishes that it was paid. It does not handle retries: it returns its error.
func (sh *shop) charge(m *message.Message) ([]*message.Message, error) {
	received, err := envelope.FromMessage(m)
	if err != nil {
		return nil, err
	}
	order, err := envelope.Data[Order](received)
	if err != nil {
		return nil, err // not JSON, or not an order: a retry would not help
	}
	if err := order.validate(); err != nil {
		return nil, err
	}
	if !sh.orders.first(order.ID, received.MessageID()) {
		return nil, middleware.Skip(fmt.Errorf("order %s has been sent before", order.ID))
	}
	if err := sh.acquirer.charge(m.Context(), &order); err != nil {
		return nil, err
	}
	return sh.paid(received, &order)
}

// paid returns the event that the order was paid. Its id is derived from the order's, so that it is the same if the
// order is delivered twice.
func (sh *shop) paid(received envelope.Envelope, order *Order) ([]*message.Message, error) {
	id := uuid.NewSHA1(uuid.NameSpaceOID, []byte("paid "+received.MessageID())).String()
	event, err := envelope.New("shop", topicPaid, order,
		map[string]string{envelope.KeyCorrelationID: received.CorrelationID()},
		envelope.ID(id), envelope.EventNamed("order.paid"))
	if err != nil {
		return nil, err
	}
	sh.ledger.Expect(consumerLoyalty, id)
	return []*message.Message{event.Message()}, nil
}

// bookPoints is the handler with a bug: see loyaltyPoints.
func (sh *shop) bookPoints(_ context.Context, order Order) error {
	if points := loyaltyPoints(&order); points < 0 {
		return errors.New("loyalty: negative points")
	}
	return nil
}

func isInvalid(err error) bool { return strings.HasPrefix(err.Error(), "validation: ") }

// orderBook records which message had an order first. It is safe for concurrent use.
type orderBook struct {
	mu   sync.Mutex
	seen map[string]string // order id, message id
}

// first reports whether message was the first with the order, in this or an earlier attempt.
func (b *orderBook) first(order, messageID string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.seen == nil {
		b.seen = map[string]string{}
	}
	if by, ok := b.seen[order]; ok {
		return by == messageID
	}
	b.seen[order] = messageID
	return true
}
