package docstest

import (
	"context"
	"errors"
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

// The functions up to run are the snippets in docs/migrate.

func laravel(ctx context.Context, url string) (brokers.Broker, *middleware.Pipeline, error) {
	broker, err := brokers.Open(ctx, url, brokers.WithNaming(brokers.Laravel())) // orders, orders_retry, orders_dlq
	if err != nil {
		return nil, nil, err
	}
	cfg := middleware.Laravel(5) // maxRetries = 5: five runs in all
	cfg.Rescheduler, cfg.DeadLetters = broker, broker
	cfg.Hooks.OnDeadLetter = onDeadLetter
	pipeline, err := middleware.New(cfg)
	return broker, pipeline, err
}

// dispatch puts a message on a queue, in the JSON form that the PHP side reads and writes.
func dispatch(publisher message.Publisher, queue string, data any) error {
	e, err := envelope.New("checkout", queue, data, map[string]string{"priority": "high"},
		envelope.InMode(envelope.Structured))
	if err != nil {
		return err
	}
	return publisher.Publish(queue, e.Message())
}

func delayedBackoff(ctx context.Context, url string) (brokers.Broker, *middleware.Pipeline, error) {
	delays := []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second} // a queue each, ready at start
	broker, err := brokers.Open(ctx, url, brokers.WithNaming(brokers.DelayedBackoff()), brokers.WithDelays(delays...))
	if err != nil {
		return nil, nil, err
	}
	cfg := middleware.DelayedBackoff(3, 10*time.Second) // MAX_RETRIES = 3, and the base for messages without a delay
	cfg.Rescheduler, cfg.DeadLetters = broker, broker
	pipeline, err := middleware.New(cfg)
	return broker, pipeline, err
}

// remind delivers for the first time after ten seconds; no retry changes that delay (x-original-delay).
func remind(publisher message.Publisher, order any) error {
	e, err := envelope.New("orders", "order-reminder", order, nil, envelope.Delay(10*time.Second))
	if err != nil {
		return err
	}
	return publisher.Publish("order-reminder", e.Message())
}

func ttlCycle(ctx context.Context, url string) (brokers.Broker, *middleware.Pipeline, error) {
	naming := brokers.TTLCycle("sme.sgp.workers")
	naming.Dead = "{queue}.limbu" // as the original spells it
	broker, err := brokers.Open(ctx, url, brokers.WithNaming(naming))
	if err != nil {
		return nil, nil, err
	}
	cfg := middleware.TTLCycle(3, 5*time.Second) // three cycles of five seconds
	cfg.Rescheduler, cfg.DeadLetters = broker, broker
	pipeline, err := middleware.New(cfg)
	return broker, pipeline, err
}

func onDeadLetter(context.Context, middleware.DeadLetterParams) error { return nil }

// run consumes topic in virtual time with a handler that always fails, and returns the times at which it ran.
func run(t *testing.T, wire func(context.Context, string) (brokers.Broker, *middleware.Pipeline, error), topic string,
	publish func(message.Publisher) error,
) (attempts []time.Duration, broker *memory.Broker) {
	t.Helper()
	opened, pipeline, err := wire(t.Context(), "mem://")
	require.NoError(t, err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	router.AddMiddleware(pipeline.Middleware)
	start := time.Now()
	router.AddConsumerHandler("handler", topic, opened.Subscriber(), func(*message.Message) error {
		attempts = append(attempts, time.Since(start))
		return errors.New("out of order")
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	ended := make(chan error)
	go func() { ended <- router.Run(ctx) }()
	<-router.Running()
	require.NoError(t, publish(opened.Publisher()))
	require.NoError(t, <-ended)
	require.NoError(t, opened.Close())
	return attempts, opened.(*memory.Broker)
}

func seconds(s ...float64) (all []time.Duration) {
	for _, n := range s {
		all = append(all, time.Duration(n*float64(time.Second)))
	}
	return all
}

// A(5): five runs without a delay, then orders_dlq; the body contains the error.
func TestMigrate_Laravel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		attempts, broker := run(t, laravel, "orders", func(p message.Publisher) error {
			return dispatch(p, "orders", map[string]int{"order_id": 1})
		})
		require.Equal(t, seconds(0, 0, 0, 0, 0), attempts)
		dead := broker.Peek("orders_dlq", "")
		require.Len(t, dead, 1)
		require.Contains(t, string(dead[0].Payload), `"retry_count":5`)
		require.Contains(t, string(dead[0].Payload), `"message":"out of order"`)
		require.Contains(t, string(dead[0].Payload), `"queue":"orders"`)
	})
}

// B: first delivery after 10 s, retries 10, 20 and 40 s apart, then dead.
func TestMigrate_DelayedBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		attempts, broker := run(t, delayedBackoff, "order-reminder", func(p message.Publisher) error {
			return remind(p, map[string]int{"order_id": 1})
		})
		require.Equal(t, seconds(10, 20, 40, 80), attempts)
		dead := broker.Peek("order-reminder-dlq", "")
		require.Len(t, dead, 1)
		require.Equal(t, "10000", dead[0].Metadata[envelope.KeyOriginalDelay])
	})
}

// E: three cycles of five seconds, then limbo.
func TestMigrate_TTLCycle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const queue = "sgp.fechamento.reabertura.notificacao.dre"
		attempts, broker := run(t, ttlCycle, queue, func(p message.Publisher) error {
			return p.Publish(queue, message.NewMessage("1", []byte("dre")))
		})
		require.Equal(t, seconds(0, 5, 10, 15), attempts)
		require.Len(t, broker.Peek(queue+".limbu", ""), 1)
	})
}
