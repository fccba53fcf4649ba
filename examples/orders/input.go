package main

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/examples/internal/demo"
)

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
	manager := sh.letters.Manager(sh.broker)
	filter := dlq.Filter{
		Statuses: []dlq.Status{dlq.Pending}, Reason: string(envelope.ReasonExhausted), Handler: consumerCharge,
	}
	return sh.eachEntry(ctx, filter, func(e *dlq.Entry) error {
		sh.ledger.Expect(consumerCharge, e.EventID)
		_, err := manager.Redrive(ctx, e.ID, dlq.By{Actor: "orders example", Note: "the acquirer is back"})
		return err
	})
}

// eachEntry visits the dead letters that the filter selects.
func (sh *shop) eachEntry(ctx context.Context, filter dlq.Filter, visit func(*dlq.Entry) error) error {
	for page := (dlq.Page{}); ; {
		listing, err := sh.letters.Store().List(ctx, filter, page)
		if err != nil {
			return fmt.Errorf("list dead letters: %w", err)
		}
		for i := range listing.Entries {
			if err := visit(&listing.Entries[i]); err != nil {
				return err
			}
		}
		if page.After = listing.Next; page.After == "" {
			return nil
		}
	}
}
