package engine

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
)

func letter() *envelope.DeadLetter {
	return crashLetter(message.NewMessage("m", []byte("payload")), envelope.Origin{Topic: "orders", Consumer: "billing"},
		6, 5, time.Unix(1, 0))
}

func TestLetter_HasTheReason(t *testing.T) {
	d := letter()
	require.Equal(t, envelope.ReasonCrash, d.Reason)
	require.Equal(t, "crash-limit", d.Rule)
	require.Contains(t, d.Err.Message, "6 times")
	require.Equal(t, "orders", d.Origin.Topic)
	require.Equal(t, "payload", string(d.Message.Payload))
	require.Equal(t, string(envelope.ReasonCrash), d.Message.Metadata.Get(envelope.KeyDeadLetterReason))
}

// A body that claims to be an envelope but is not is preserved byte for byte.
func TestLetter_OfAMalformedEnvelope(t *testing.T) {
	m := message.NewMessage("m", []byte(`{"message_id":"1","retry_count":{}}`))
	d := crashLetter(m, envelope.Origin{}, 5, 5, time.Unix(1, 0))
	require.Equal(t, m.Payload, d.Message.Payload)
	require.Equal(t, envelope.ReasonCrash, d.Reason)
}

// If a sink does not accept the letter, for any reason, it goes to the broker's own queue.
func TestKeep_FallsBackToTheQueue(t *testing.T) {
	for name, c := range map[string]struct {
		sink   func(ctx context.Context, d *envelope.DeadLetter) error
		queued int
	}{
		"none":   {nil, 1},
		"takes":  {func(context.Context, *envelope.DeadLetter) error { return nil }, 0},
		"fails":  {func(context.Context, *envelope.DeadLetter) error { return errors.New("full") }, 1},
		"panics": {func(context.Context, *envelope.DeadLetter) error { panic("nil map") }, 1},
		"hangs":  {func(ctx context.Context, _ *envelope.DeadLetter) error { <-ctx.Done(); return ctx.Err() }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				queued := 0
				cfg := brokers.Config{DeadLetters: c.sink, PublishTimeout: time.Second, Logger: slog.New(slog.DiscardHandler)}
				require.NoError(t, keepLetter(t.Context(), cfg, letter(), func(context.Context, *envelope.DeadLetter) error {
					queued++
					return nil
				}))
				require.Equal(t, c.queued, queued)
			})
		})
	}
}
