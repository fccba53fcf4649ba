package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

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

// acquirerTimeout is how long a charge may take before the shop gives up on it.
const acquirerTimeout = 250 * time.Millisecond

// acquirer simulates a card acquirer's HTTP service, as unreliable as a real one: the token of a payment determines how
// it behaves, like the test tokens of payment services. It runs in this process, because net/http would be a seventh of
// what a first run of the example compiles.
//
//	tok_visa, tok_pix    charged
//	tok_timeout_K        answers too late K times, then charges
//	tok_acquirer_down    503, until the acquirer is back
//	tok_rate_limited     429 with Retry-After once, then charges
//	tok_declined         402: the bank said no
type acquirer struct {
	back bool // the outage of tok_acquirer_down has ended

	mu    sync.Mutex
	calls map[string]int // by order
}

func newAcquirer(back bool) *acquirer { return &acquirer{back: back, calls: map[string]int{}} }

// answer is the service's side: it returns a status code and headers, or waits until the caller times out.
func (a *acquirer) answer(ctx context.Context, order, token string) (code int, header map[string][]string, err error) {
	a.mu.Lock()
	a.calls[order]++
	call := a.calls[order]
	a.mu.Unlock()

	kind, times, _ := strings.Cut(strings.TrimPrefix(token, "tok_"), "_")
	switch late, _ := strconv.Atoi(times); {
	case kind == "timeout" && call <= late:
		<-ctx.Done()
		return 0, nil, ctx.Err()
	case kind == "acquirer" && !a.back:
		return 503, nil, nil
	case kind == "rate" && call == 1:
		return 429, map[string][]string{"Retry-After": {"2"}}, nil
	case kind == "declined":
		return 402, nil, nil
	}
	return 201, nil, nil
}

// charge is the shop's side: it charges the card, or returns an error whose HTTP status shows whether a retry is
// useful.
func (a *acquirer) charge(ctx context.Context, o *Order) error {
	ctx, cancel := context.WithTimeout(ctx, acquirerTimeout)
	defer cancel()
	code, header, err := a.answer(ctx, o.ID, o.Payment.Token)
	if err == nil {
		err = middleware.HTTPStatus(code, header)
	}
	if err != nil {
		return fmt.Errorf("payment: %w", err)
	}
	return nil
}
