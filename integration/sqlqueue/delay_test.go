package sqlqueue_test

import (
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
)

// On an idle queue, delayed messages of another process are never early, and at most 100 ms late. Delays include the
// latency of disk and machine, so messages without a delay are delivered in between, and the medians are compared. A
// busy machine may be late in one round; a queue that polls too rarely is late in every round.
// TestPolling_IsExactTo100ms of the package tests this in virtual time.
func TestDelay_IsExact(t *testing.T) { //nolint:tparallel // not parallel
	onEach(t, func(t *testing.T, url string) {
		t.Helper()
		b, producer := openQueue(t, url), openQueue(t, url)
		received, err := b.Subscriber().Subscribe(t.Context(), "exact")
		require.NoError(t, err)
		late := func(delay time.Duration) time.Duration { // the delay starts during the call of Publish
			m := message.NewMessage(watermill.NewUUID(), payload)
			envelope.SetDelay(m, delay)
			called := time.Now()
			require.NoError(t, producer.Publisher().Publish("exact", m))
			stored := time.Now()
			receive(t, received).Ack()
			require.GreaterOrEqual(t, time.Since(called), delay-time.Millisecond, "early")
			return time.Since(stored) - delay
		}
		const messages = 5
		var delayed, prompt []time.Duration
		for range 10 {
			delayed, prompt = nil, nil
			for i := range messages {
				delayed = append(delayed, late(time.Duration(200+150*i)*time.Millisecond))
				prompt = append(prompt, late(0))
			}
			slices.Sort(delayed)
			slices.Sort(prompt)
			if delayed[messages/2] <= prompt[messages/2]+100*time.Millisecond {
				return
			}
		}
		t.Fatalf("late by %s, and without a delay by %s", delayed, prompt)
	})
}
