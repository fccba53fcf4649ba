package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
)

// Seven seconds of retries take a few milliseconds, because the clock of the bubble jumps while everything waits.
func TestMailer_IsRetriedAndThenDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker, err := memory.New(brokers.Config{})
		if err != nil {
			t.Fatal(err)
		}
		start, calls := time.Now(), []time.Duration{}
		router, err := NewRouter(broker, broker, func(context.Context, string, string) error {
			calls = append(calls, time.Since(start))
			return errors.New("mail server: connection refused")
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		order := message.NewMessage("1", []byte(`{"id":"4711","email":"ana@example.com"}`))
		if err := errors.Join(broker.Publisher().Publish("orders", order), router.Run(ctx), broker.Close()); err != nil {
			t.Fatal(err)
		}
		if len(calls) != 4 || calls[3] != 7*time.Second {
			t.Errorf("runs at %v", calls)
		}
		if dead := broker.Peek("orders_dlq", ""); len(dead) != 1 {
			t.Errorf("%d dead letters", len(dead))
		}
	})
}
