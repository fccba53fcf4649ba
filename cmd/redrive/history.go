package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/envelope"
)

// The demo begins with a week that has passed.
const (
	historyDays = 7
	outage      = 150 // dead letters of one bad evening, more than one person may redrive alone
	demoAlone   = 100
)

// history fills an empty store with a week of a shop, and leaves two runs to look at: one that stops, because its
// orders die again, and one that waits for approval.
func history(ctx context.Context, letters *dlq.Letters, runner *redrive.Runner, now time.Time) error {
	stats, err := letters.Store().Stats(ctx, dlq.StatsQuery{})
	if err != nil || stats.Counts != (driver.Counts{}) {
		return err // an earlier demo's store, which was kept
	}
	put := func(at time.Time, o order, why string, reason envelope.Reason) error {
		payload, err := json.Marshal(o)
		if err != nil {
			return err
		}
		m := message.NewMessage(fmt.Sprintf("history-%d", o.Number), payload)
		m.Metadata[envelope.KeyMessageID] = m.UUID
		_, err = letters.Store().Put(ctx, dlq.NewEntry(&envelope.DeadLetter{ //nolint:contextcheck // pure; the message has a separate context
			Message: m, Reason: reason, Err: envelope.Error{Message: why}, Class: "*errors.errorString", Handler: "charge",
			Origin:   envelope.Origin{Broker: "mem", Topic: orderTopic, Consumer: brokers.DefaultGroup},
			Attempts: 3, At: at,
		}))
		return err
	}
	n := 0
	for hour := historyDays * 24; hour > 0; hour-- {
		at := now.Add(-time.Duration(hour) * time.Hour)
		for range hour % 3 {
			n++
			o := newOrder(n)
			o.Card = ""
			err := put(at, o, fmt.Sprintf("order %d: %s has no card", n, o.Customer), envelope.ReasonPermanent)
			if err != nil {
				return err
			}
		}
	}
	for range outage {
		n++
		at := now.Add(-26*time.Hour + time.Duration(n%40)*time.Minute)
		if err := put(at, newOrder(n), fmt.Sprintf("order %d: %v", n, errBank), envelope.ReasonExhausted); err != nil {
			return err
		}
	}
	for _, spec := range []redrive.Spec{
		{ID: "without-a-card", Filter: dlq.Filter{ErrorText: "has no card"}, Limit: 60, Canary: []int{1, 20}},
		{ID: "last-evening", Filter: dlq.Filter{ErrorText: "bank"}, Rate: 20, Canary: []int{1, 10}},
	} {
		if _, err := runner.StartRun(ctx, spec, dlq.By{Actor: "ben", Note: "an example of the demo"}); err != nil {
			return err
		}
	}
	return nil
}
