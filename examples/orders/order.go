package main

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/examples/internal/cpf"
	"github.com/redrive-go/redrive/examples/internal/demo"
)

// Order is a line of orders.ndjson.
type Order struct {
	ID       string    `json:"id"`
	PlacedAt time.Time `json:"placed_at"`
	Customer struct {
		Name      string `json:"name"`
		TaxNumber string `json:"cpf"`
		Email     string `json:"email"`
		BirthDate string `json:"birth_date"`
	} `json:"customer"`
	Items []struct {
		SKU        string `json:"sku"`
		Quantity   int    `json:"quantity"`
		PriceCents int    `json:"price_cents"`
	} `json:"items"`
	TotalCents int     `json:"total_cents"`
	Coupon     *string `json:"coupon"`
	Payment    struct {
		Method string `json:"method"`
		Token  string `json:"token"`
	} `json:"payment"`
	Delivery struct {
		By string `json:"by"`
	} `json:"delivery"`
}

// Errors that no retry can fix, because the order itself is invalid.
var (
	errTaxNumber = errors.New("validation: customer's tax number is invalid")
	errMinor     = errors.New("validation: customer is younger than 16")
	errDelivery  = errors.New("validation: delivery date is before the order was placed")
	errTotal     = errors.New("validation: total is not the sum of the items")
)

const minimumAge = 16

// validate returns an error if an order cannot be fulfilled.
func (o *Order) validate() error {
	if !cpf.Valid(o.Customer.TaxNumber) {
		return fmt.Errorf("%w: order %s", errTaxNumber, o.ID)
	}
	born, err := time.Parse(time.DateOnly, o.Customer.BirthDate)
	if err != nil {
		return fmt.Errorf("validation: birth date of order %s: %w", o.ID, err)
	}
	if born.AddDate(minimumAge, 0, 0).After(o.PlacedAt) {
		return fmt.Errorf("%w: order %s", errMinor, o.ID)
	}
	by, err := time.Parse(time.DateOnly, o.Delivery.By)
	if err != nil {
		return fmt.Errorf("validation: delivery date of order %s: %w", o.ID, err)
	}
	if by.AddDate(0, 0, 1).Before(o.PlacedAt) {
		return fmt.Errorf("%w: order %s", errDelivery, o.ID)
	}
	sum := 0
	for _, it := range o.Items {
		sum += it.Quantity * it.PriceCents
	}
	if sum != o.TotalCents {
		return fmt.Errorf("%w: order %s: %d, not %d", errTotal, o.ID, sum, o.TotalCents)
	}
	return nil
}

// discounts is the price book of coupons, in percent of the total.
var discounts = map[string]*int{"CAFE10": new(10), "FRETE0": new(0), "VOLTA15": new(15)}

// loyaltyPoints is the handler bug of this example: a coupon that is not in the
// price book is a nil pointer, and the handler panics.
func loyaltyPoints(o *Order) int {
	total := o.TotalCents
	if o.Coupon != nil {
		total -= total * *discounts[*o.Coupon] / 100
	}
	return total / 1000
}

//go:embed orders.ndjson
var ordersFile []byte

const batch = 100 // messages of one Publish, which the broker confirms together

// publishAll publishes every line of the input unchecked, because the consumer validates them.
func (sh *shop) publishAll(ctx context.Context, input string, stdin io.Reader) error {
	reader, err := demo.Open(input, stdin, ordersFile)
	if err != nil {
		return fmt.Errorf("read orders: %w", err)
	}
	defer func() { _ = reader.Close() }()
	publisher := sh.broker.Publisher()
	lines := bufio.NewReader(reader)
	for last := false; !last; {
		var messages []*message.Message
		for len(messages) < batch && !last {
			line, err := lines.ReadBytes('\n')
			if last = errors.Is(err, io.EOF); err != nil && !last {
				return fmt.Errorf("read orders: %w", err)
			}
			if line = bytes.TrimRight(line, "\r\n"); len(line) == 0 {
				continue
			}
			m, err := sh.orderMessage(line)
			if err != nil {
				return err
			}
			messages = append(messages, m)
		}
		if len(messages) == 0 {
			break
		}
		if err := publisher.Publish(topicOrders, messages...); err != nil {
			return fmt.Errorf("publish orders: %w", err)
		}
		if ctx.Err() != nil {
			return nil // interrupted: the ledger shows what is waiting
		}
	}
	return nil
}

func (sh *shop) orderMessage(line []byte) (*message.Message, error) {
	e, err := envelope.New("web-shop", topicOrders, line, map[string]string{envelope.KeyCorrelationID: sh.run},
		envelope.EventNamed("order.placed"))
	if err != nil {
		return nil, err
	}
	sh.ledger.Expect(consumerCharge, e.MessageID())
	return e.Message(), nil
}

// redriveExhausted redrives the orders that died because the acquirer was down.
func (sh *shop) redriveExhausted(ctx context.Context) error {
	entries, err := demo.Entries(ctx, sh.letters, dlq.Filter{
		Statuses: []dlq.Status{dlq.Pending}, Reason: string(envelope.ReasonExhausted), Handler: consumerCharge,
	})
	if err != nil {
		return err
	}
	manager := sh.letters.Manager(sh.broker)
	for i := range entries {
		sh.ledger.Expect(consumerCharge, entries[i].EventID)
		by := dlq.By{Actor: "orders example", Note: "the acquirer is back"}
		if _, err := manager.Redrive(ctx, entries[i].ID, by); err != nil {
			return err
		}
	}
	return nil
}
