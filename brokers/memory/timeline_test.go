package memory_test

import (
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

// This is how to test a handler's whole retry timeline of 80 seconds without waiting.
func TestTimeline_InVirtualTime(t *testing.T) {
	remindersThatFail(t)
}

func TestTimeline_TakesNoTime(t *testing.T) {
	const most = 20 * time.Millisecond
	best := time.Hour
	for n := 0; n < 1000 && best >= most; n++ {
		start := time.Now()
		remindersThatFail(t)
		best = min(best, time.Since(start))
	}
	t.Logf("80 seconds of virtual time took %s", best)
	require.Less(t, best, most, "the fastest of a thousand runs, on any machine and with the race detector")
}

func remindersThatFail(t *testing.T) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		broker, err := memory.New(brokers.Config{})
		require.NoError(t, err)
		pipeline, err := middleware.New(middleware.Config{
			Rescheduler: broker,
			DeadLetters: broker,
			Logger:      slog.New(slog.DiscardHandler),
			MaxAttempts: middleware.Retries(3), Backoff: middleware.FromOriginalDelay(time.Second),
		})
		require.NoError(t, err)
		router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
		require.NoError(t, err)
		router.AddMiddleware(pipeline.Middleware)

		start := time.Now()
		var deliveries []time.Duration
		router.AddConsumerHandler("remind", "reminders", broker.Subscriber(), func(*message.Message) error {
			deliveries = append(deliveries, time.Since(start))
			return errors.New("the mail server is down")
		})
		go func() { _ = router.Run(t.Context()) }()
		<-router.Running()

		order := message.NewMessage("order-1", []byte(`{"order": 1}`))
		envelope.SetDelay(order, 10*time.Second)
		require.NoError(t, broker.Publisher().Publish("reminders", order))
		time.Sleep(time.Hour) // virtual
		synctest.Wait()

		require.Equal(t, []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second}, deliveries)
		dead := broker.Peek("reminders_dlq", "")
		require.Len(t, dead, 1)
		require.Equal(t, "the mail server is down", dead[0].Metadata.Get(envelope.KeyErrorMessage))
		require.Equal(t, "4", dead[0].Metadata.Get(envelope.KeyRetryCount))

		require.NoError(t, router.Close())
		require.NoError(t, broker.Close())
	})
}
