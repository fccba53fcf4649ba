package docstest

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/components/fanin"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/components/requeuer"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/internal/logbuffer"
	"github.com/redrive-go/redrive/middleware"
)

// composed is a router with a pipeline on a broker in memory, in a bubble.
type composed struct {
	*testing.T
	broker   *memory.Broker
	pipeline *middleware.Pipeline
	router   *message.Router
	logs     *logbuffer.Buffer
}

// compose runs f, and the router that it has filled for an hour, and then what is returned.
func compose(t *testing.T, f func(c *composed) (after func())) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		broker, err := memory.New(brokers.Config{DrainTimeout: time.Second})
		require.NoError(t, err)
		logs := &logbuffer.Buffer{}
		pipeline, err := middleware.New(middleware.Config{
			Rescheduler: broker, DeadLetters: broker, Logger: slog.New(slog.NewTextHandler(logs, nil)),
			MaxAttempts: 3, Backoff: middleware.Constant(time.Minute),
		})
		require.NoError(t, err)
		router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
		require.NoError(t, err)
		c := &composed{t, broker, pipeline, router, logs}
		after := f(c)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- router.Run(ctx) }()
		time.Sleep(time.Hour) // virtual
		synctest.Wait()
		cancel()
		require.NoError(t, <-ended)
		after()
		require.NoError(t, broker.Close())
	})
}

// Without the plugin the first message finds a middleware that would lose it, on either side, and nothing is lost: a
// program that is mended handles it.
func TestComposition_WithoutThePlugin(t *testing.T) {
	var unfit []composition
	for _, c := range shipped() {
		if c.name == "Deduplicator" || c.name == "InstantAck" {
			unfit = append(unfit, c)
		}
	}
	require.Len(t, unfit, 2)
	for _, u := range unfit {
		for place, inside := range map[string]bool{"inside": true, "outside": false} {
			t.Run(u.name+" "+place, func(t *testing.T) {
				compose(t, func(c *composed) func() {
					chain := []message.HandlerMiddleware{u.make(c.T, c.broker.Publisher()), c.pipeline.Middleware}
					if inside {
						chain[0], chain[1] = chain[1], chain[0]
					}
					c.router.AddMiddleware(chain...)
					var runs atomic.Int32
					c.router.AddConsumerHandler("handler", "orders", c.broker.Subscriber(), func(*message.Message) error {
						runs.Add(1)
						return errAlways
					})
					require.NoError(c, c.broker.Publisher().Publish("orders", message.NewMessage("1", nil)))
					return func() {
						require.Contains(c, c.logs.String(), "messages would be lost")
						require.Contains(c, c.logs.String(), "Watermill's "+u.name+" stands next to it")
						if u.name == "InstantAck" && !inside { // it is acked already: all that can be done is to handle it
							require.EqualValues(c, 3, runs.Load())
							require.Len(c, c.broker.Peek("orders_dlq", ""), 1)
							return
						}
						require.Zero(c, runs.Load())
						waiting := len(c.broker.Peek("orders", "")) + len(c.broker.Waiting("orders", "")) // ready, or in the pause of a nack
						require.Equal(c, 1, waiting, "it waits for a program that is mended")
					}
				})
			})
		}
	}
}

// A forwarder hands on what was put into an outbox, and the message is retried where it is consumed.
func TestComponents_Forwarder(t *testing.T) {
	compose(t, func(c *composed) func() {
		f, err := forwarder.NewForwarder(c.broker.Subscriber(), c.broker.Publisher(), watermill.NopLogger{}, forwarder.Config{
			ForwarderTopic: "outbox", Router: c.router, Middlewares: []message.HandlerMiddleware{c.pipeline.Middleware},
		})
		require.NoError(c, err)
		_ = f // the router runs it
		c.router.AddMiddleware(c.pipeline.Middleware)
		runs := c.failing("orders")
		outbox := forwarder.NewPublisher(c.broker.Publisher(), forwarder.PublisherConfig{ForwarderTopic: "outbox"})
		require.NoError(c, outbox.Publish("orders", message.NewMessage("1", []byte("order"))))
		// What it cannot unwrap is a dead letter, and no loop.
		require.NoError(c, c.broker.Publisher().Publish("outbox", message.NewMessage("2", []byte("no envelope of a forwarder"))))
		return func() {
			require.EqualValues(c, 3, runs.Load())
			require.Len(c, c.broker.Peek("orders_dlq", ""), 1)
			require.Equal(c, "1", c.broker.Peek("orders_dlq", "")[0].UUID)
			require.Len(c, c.broker.Peek("outbox_dlq", ""), 1)
		}
	})
}

// failing adds a handler that always fails.
func (c *composed) failing(topic string) *atomic.Int32 {
	var runs atomic.Int32
	c.router.AddConsumerHandler("handler of "+topic, topic, c.broker.Subscriber(), func(*message.Message) error {
		runs.Add(1)
		return errAlways
	})
	return &runs
}

type placeOrder struct{ ID string }

// A command that fails is retried by its own handler, and dead in the end.
func TestComponents_CQRS(t *testing.T) {
	compose(t, func(c *composed) func() {
		c.router.AddMiddleware(c.pipeline.Middleware)
		marshaler := cqrs.JSONMarshaler{}
		bus, err := cqrs.NewCommandBusWithConfig(c.broker.Publisher(), cqrs.CommandBusConfig{
			GeneratePublishTopic: func(p cqrs.CommandBusGeneratePublishTopicParams) (string, error) { return "commands", nil },
			Marshaler:            marshaler,
		})
		require.NoError(c, err)
		processor, err := cqrs.NewCommandProcessorWithConfig(c.router, cqrs.CommandProcessorConfig{
			GenerateSubscribeTopic: func(cqrs.CommandProcessorGenerateSubscribeTopicParams) (string, error) { return "commands", nil },
			SubscriberConstructor: func(cqrs.CommandProcessorSubscriberConstructorParams) (message.Subscriber, error) {
				return c.broker.Subscriber(), nil
			},
			Marshaler: marshaler,
		})
		require.NoError(c, err)
		var runs atomic.Int32
		require.NoError(c, processor.AddHandlers(cqrs.NewCommandHandler("place", func(context.Context, *placeOrder) error {
			runs.Add(1)
			return errAlways
		})))
		require.NoError(c, bus.Send(c.Context(), &placeOrder{ID: "1"}))
		return func() {
			require.EqualValues(c, 3, runs.Load())
			require.Len(c, c.broker.Peek("commands_dlq", ""), 1)
		}
	})
}

// A requeuer sends dead letters back to where they came from, and they have all their attempts again.
func TestComponents_Requeuer(t *testing.T) {
	compose(t, func(c *composed) func() {
		c.router.AddMiddleware(c.pipeline.Middleware)
		var runs atomic.Int32
		c.router.AddConsumerHandler("handler", "orders", c.broker.Subscriber(), func(*message.Message) error {
			if runs.Add(1) <= 3 {
				return errAlways
			}
			return nil
		})
		_, err := requeuer.NewRequeuer(requeuer.Config{
			Subscriber: c.broker.Subscriber(), SubscribeTopic: "orders_dlq", Publisher: c.broker.Publisher(), Router: c.router,
			GeneratePublishTopic: func(requeuer.GeneratePublishTopicParams) (string, error) { return "orders", nil },
		}, watermill.NopLogger{})
		require.NoError(c, err)
		require.NoError(c, c.broker.Publisher().Publish("orders", message.NewMessage("1", nil)))
		return func() {
			require.EqualValues(c, 4, runs.Load(), "dead after three, and handled when it was sent back")
			require.Empty(c, c.broker.Peek("orders_dlq", ""))
		}
	})
}

// A fan-in copies topics into one, whose consumer retries.
func TestComponents_FanIn(t *testing.T) {
	compose(t, func(c *composed) func() {
		c.router.AddMiddleware(c.pipeline.Middleware)
		runs := c.failing("all")
		f, err := fanin.NewFanIn(c.broker.Subscriber(), c.broker.Publisher(), fanin.Config{
			SourceTopics: []string{"orders", "invoices"}, TargetTopic: "all",
		}, watermill.NopLogger{})
		require.NoError(c, err)
		ctx, cancel := context.WithCancel(c.Context())
		ended := make(chan error)
		go func() { ended <- f.Run(ctx) }()
		require.NoError(c, c.broker.Publisher().Publish("orders", message.NewMessage("1", nil)))
		require.NoError(c, c.broker.Publisher().Publish("invoices", message.NewMessage("2", nil)))
		return func() {
			require.EqualValues(c, 6, runs.Load())
			require.Len(c, c.broker.Peek("all_dlq", ""), 2)
			cancel()
			require.NoError(c, <-ended)
		}
	})
}
