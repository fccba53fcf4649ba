package docstest

import (
	"context"
	"database/sql/driver"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/components/fanin"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/components/requestreply"
	"github.com/ThreeDotsLabs/watermill/components/requeuer"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"
	"modernc.org/sqlite"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/live"
	"github.com/redrive-go/redrive/internal/logbuffer"
	"github.com/redrive-go/redrive/middleware"
	"github.com/redrive-go/redrive/middleware/tracing"
)

// SQLite gets the time from Go, so that in a bubble its queue has the bubble's time. With the machine's clock, the
// pause of a nack was over only if the polls of a virtual minute together took 100 real milliseconds.
func init() {
	sqlite.MustRegisterScalarFunction("unixepoch", 1, func(*sqlite.FunctionContext, []driver.Value) (driver.Value, error) {
		return float64(time.Now().UnixMilli()) / 1000, nil
	})
}

// composed is a router with a pipeline on a broker in memory, in a bubble.
type composed struct {
	*testing.T
	broker   *memory.Broker
	pipeline *middleware.Pipeline
	router   *message.Router
	logs     *logbuffer.Buffer
}

// compose runs f, then the router that f has set up, for an hour, then the function that f has returned.
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

// Watermill's contexts, metrics and poison headers name the broker, whichever wrappers of ours its clients have.
func TestComponents_Names(t *testing.T) {
	compose(t, func(c *composed) func() {
		seen := make(chan string, 2)
		traced := tracing.New(tracing.Config{}).Publisher(c.broker.Publisher(), "mem")
		c.router.AddHandler("handler", "orders", c.broker.Subscriber(), "out", traced,
			func(m *message.Message) ([]*message.Message, error) {
				seen <- message.SubscriberNameFromCtx(m.Context())
				seen <- message.PublisherNameFromCtx(m.Context())
				return nil, nil
			})
		require.NoError(c, c.broker.Publisher().Publish("orders", message.NewMessage("1", nil)))
		return func() {
			require.Equal(c, "memory.Subscriber", <-seen)
			require.Equal(c, "memory.Publisher", <-seen)
		}
	})

	letters, err := dlq.Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "dead.db"), dlq.WithoutSpool())
	require.NoError(t, err)
	defer func() { require.NoError(t, letters.Close()) }()
	monitor, err := live.New(live.Config{Service: "billing", Store: letters.Store()})
	require.NoError(t, err)
	broker, err := memory.New(brokers.Config{})
	require.NoError(t, err)
	require.Equal(t, "memory.Subscriber", fmt.Sprint(monitor.Subscriber(broker.Subscriber())))
	require.NoError(t, broker.Close())
}

// Without the plugin, the first message reveals a middleware that would lose messages, on either side. Nothing is lost:
// the corrected program handles the message.
func TestComposition_WithoutThePlugin(t *testing.T) {
	var unfit []composition
	for _, c := range shipped() {
		if c.name == "Deduplicator" || c.name == "InstantAck" || c.name == "IgnoreErrors" {
			unfit = append(unfit, c)
		}
	}
	require.Len(t, unfit, 3)
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
						require.Contains(c, c.logs.String(), "Watermill's "+u.name+" is used next to it")
						if u.name == "InstantAck" && !inside { // it is acked already: all that can be done is to handle it
							require.EqualValues(c, 3, runs.Load())
							require.Len(c, c.broker.Peek("orders_dlq", ""), 1)
							return
						}
						require.Zero(c, runs.Load())
						// ready, or in the pause of a nack
						waiting := len(c.broker.Peek("orders", "")) + len(c.broker.Waiting("orders", ""))
						require.Equal(c, 1, waiting, "it waits for a program that is mended")
					}
				})
			})
		}
	}
}

// A handler may have another subscriber than those of the pipeline's broker: a plain one of Watermill, or one of
// another broker of ours, also of the same kind. It does not read what the broker delivers again, so a retry that the
// broker takes would be lost.
func TestComposition_AnotherSubscriber(t *testing.T) {
	file := func(name string) string { return "sqlite://" + filepath.Join(t.TempDir(), name) }
	for _, pair := range [][2]string{
		{"plain", "mem://"},
		{"plain", "gochannel://" + t.Name() + "1"},
		{"mem://", "gochannel://" + t.Name() + "2"},
		{"gochannel://" + t.Name() + "3", "mem://"},
		{"mem://", "mem://"},
		{"gochannel://" + t.Name() + "4", "gochannel://" + t.Name() + "5"},
		{"gochannel://", "gochannel://"},
		{"mem://", file("a.db")},
		{file("b.db"), "mem://"},
		{file("c.db"), file("d.db")},
		{"gochannel://" + t.Name() + "6", file("e.db")},
	} {
		t.Run(pair[0]+" with "+pair[1], func(t *testing.T) { anotherSubscriber(t, pair[0], pair[1]) })
	}
}

func anotherSubscriber(t *testing.T, reads, reschedules string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		open := func(url string) brokers.Broker {
			b, err := brokers.Open(t.Context(), url, brokers.WithLogger(slog.New(slog.DiscardHandler)))
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, b.Close()) })
			return b
		}
		plain := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
		t.Cleanup(func() { require.NoError(t, plain.Close()) })
		var publisher message.Publisher = plain
		var subscriber message.Subscriber = plain
		if reads != "plain" {
			other := open(reads)
			publisher, subscriber = other.Publisher(), other.Subscriber()
		}
		broker, logs := open(reschedules), &logbuffer.Buffer{}
		pipeline, err := middleware.New(middleware.Config{
			Rescheduler: broker, DeadLetters: broker, Logger: slog.New(slog.NewTextHandler(logs, nil)),
		})
		require.NoError(t, err)
		router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
		require.NoError(t, err)
		router.AddPlugin(pipeline.Plugin)
		router.AddMiddleware(pipeline.Middleware)
		var attempts []int
		var strays atomic.Int32
		router.AddConsumerHandler("handler", "orders", subscriber, func(m *message.Message) error {
			attempt, _ := middleware.AttemptFrom(m.Context())
			if attempts = append(attempts, attempt.Number); len(attempts) == 1 {
				return errAlways
			}
			return nil
		})
		if reads != "plain" { // its own consumer of that name
			router.AddConsumerHandler("other", "orders", broker.Subscriber(), func(*message.Message) error {
				strays.Add(1)
				return nil
			})
		}
		require.NoError(t, publisher.Publish("orders", message.NewMessage("1", nil)))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // virtual
		defer cancel()
		require.NoError(t, router.Run(ctx))
		require.Zero(t, strays.Load())
		require.Equal(t, []int{1, 1}, attempts, "its own Pub/Sub delivers the message again, no attempt has been lost")
		require.Contains(t, logs.String(), "set Rescheduler to the handler's own broker")
	})
}

// A decorator may build a message without the context of the one that it got, as Copy does. Its broker reads what it
// delivers again, but refused the retry as that of another subscriber, forever.
func TestComposition_ADecoratorLosesTheContext(t *testing.T) {
	compose(t, func(c *composed) func() {
		c.router.AddPlugin(c.pipeline.Plugin)
		c.router.AddMiddleware(c.pipeline.Middleware)
		var attempts []int
		c.router.AddConsumerHandler("handler", "orders", forgetful{c.broker.Subscriber()}, func(m *message.Message) error {
			attempt, _ := middleware.AttemptFrom(m.Context())
			attempts = append(attempts, attempt.Number)
			return errAlways
		})
		require.NoError(c, c.broker.Publisher().Publish("orders", message.NewMessage("1", nil)))
		return func() { require.Equal(c, []int{1, 2, 3}, attempts) }
	})
}

// forgetful is a decorator that loses the contexts of messages.
type forgetful struct{ message.Subscriber }

func (f forgetful) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	in, err := f.Subscriber.Subscribe(ctx, topic)
	if err != nil {
		return nil, err
	}
	out := make(chan *message.Message)
	go func() {
		defer close(out)
		for m := range in {
			changed := m.Copy()
			out <- changed
			select {
			case <-changed.Acked():
				m.Ack()
			case <-changed.Nacked():
				m.Nack()
			}
		}
	}()
	return out, nil
}

// A forwarder publishes the messages of an outbox, and each is retried where it is consumed.
func TestComponents_Forwarder(t *testing.T) {
	compose(t, func(c *composed) func() {
		f, err := forwarder.NewForwarder(c.broker.Subscriber(), c.broker.Publisher(), watermill.NopLogger{}, forwarder.Config{
			ForwarderTopic: "outbox", Router: c.router, // with its pipeline; a second one is refused
		})
		require.NoError(c, err)
		_ = f // the router runs it
		c.router.AddMiddleware(c.pipeline.Middleware)
		runs := c.failing("orders")
		outbox := forwarder.NewPublisher(c.broker.Publisher(), forwarder.PublisherConfig{ForwarderTopic: "outbox"})
		require.NoError(c, outbox.Publish("orders", message.NewMessage("1", []byte("order"))))
		// A message that it cannot unwrap is dead-lettered, not looped.
		require.NoError(c, c.broker.Publisher().Publish("outbox",
			message.NewMessage("2", []byte("no envelope of a forwarder"))))
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

// commands adds a handler of commands, and returns the bus for them.
func (c *composed) commands(handler cqrs.CommandHandler) *cqrs.CommandBus {
	marshaler := cqrs.JSONMarshaler{}
	bus, err := cqrs.NewCommandBusWithConfig(c.broker.Publisher(), cqrs.CommandBusConfig{
		GeneratePublishTopic: func(cqrs.CommandBusGeneratePublishTopicParams) (string, error) { return "commands", nil },
		Marshaler:            marshaler,
	})
	require.NoError(c, err)
	processor, err := cqrs.NewCommandProcessorWithConfig(c.router, cqrs.CommandProcessorConfig{
		GenerateSubscribeTopic: func(cqrs.CommandProcessorGenerateSubscribeTopicParams) (string, error) {
			return "commands", nil
		},
		SubscriberConstructor: func(cqrs.CommandProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return c.broker.Subscriber(), nil
		},
		Marshaler: marshaler,
	})
	require.NoError(c, err)
	require.NoError(c, processor.AddHandlers(handler))
	return bus
}

// A command that fails is retried by its own handler, and finally dead-lettered.
func TestComponents_CQRS(t *testing.T) {
	compose(t, func(c *composed) func() {
		c.router.AddMiddleware(c.pipeline.Middleware)
		var runs atomic.Int32
		bus := c.commands(cqrs.NewCommandHandler("place", func(context.Context, *placeOrder) error {
			runs.Add(1)
			return errAlways
		}))
		require.NoError(c, bus.Send(c.Context(), &placeOrder{ID: "1"}))
		return func() {
			require.EqualValues(c, 3, runs.Load())
			require.Len(c, c.broker.Peek("commands_dlq", ""), 1)
		}
	})
}

// A requeuer sends dead letters back with their retry count, so that each gets one more run.
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

// The delay of Watermill's component applies to the first delivery, not to retries.
func TestComponents_Delay(t *testing.T) {
	compose(t, func(c *composed) func() {
		c.router.AddMiddleware(c.pipeline.Middleware)
		start, runs := time.Now(), []time.Duration{}
		c.router.AddConsumerHandler("handler", "reminders", c.broker.Subscriber(), func(*message.Message) error {
			runs = append(runs, time.Since(start))
			return errAlways
		})
		delayed, err := delay.NewPublisher(c.broker.Publisher(), delay.PublisherConfig{})
		require.NoError(c, err)
		m := message.NewMessage("1", nil)
		m.SetContext(delay.WithContext(c.Context(), delay.For(10*time.Minute)))
		require.NoError(c, delayed.Publish("reminders", m))
		return func() {
			require.Equal(c, []time.Duration{10 * time.Minute, 11 * time.Minute, 12 * time.Minute}, runs)
			require.Len(c, c.broker.Peek("reminders_dlq", ""), 1)
		}
	})
}

// A request gets a reply after each attempt. With AckCommandErrors the reply is the error, and nothing is retried.
func TestComponents_RequestReply(t *testing.T) {
	for acks, want := range map[bool]struct{ runs, replies, dead int }{
		true: {runs: 1, replies: 1}, false: {runs: 3, replies: 3, dead: 1},
	} {
		compose(t, func(c *composed) func() {
			c.router.AddMiddleware(c.pipeline.Middleware)
			backend, err := requestreply.NewPubSubBackend(requestreply.PubSubBackendConfig{
				Publisher: c.broker.Publisher(), AckCommandErrors: acks,
				SubscriberConstructor: func(requestreply.PubSubBackendSubscribeParams) (message.Subscriber, error) {
					return c.broker.Subscriber(), nil
				},
				GenerateSubscribeTopic: func(requestreply.PubSubBackendSubscribeParams) (string, error) { return "replies", nil },
				GeneratePublishTopic:   func(requestreply.PubSubBackendPublishParams) (string, error) { return "replies", nil },
			}, requestreply.BackendPubsubJSONMarshaler[requestreply.NoResult]{})
			require.NoError(c, err)
			runs := 0
			bus := c.commands(requestreply.NewCommandHandler("place", backend, func(context.Context, *placeOrder) error {
				runs++
				return errAlways
			}))
			ctx, cancel := context.WithCancel(c.Context())
			replies, _, err := requestreply.SendWithReplies[requestreply.NoResult](ctx, bus, backend, &placeOrder{ID: "1"})
			require.NoError(c, err)
			got := 0
			go func() {
				for r := range replies {
					if strings.Contains(r.Error.Error(), errAlways.Error()) { // and at the end that none comes any more
						got++
					}
				}
			}()
			return func() {
				require.Equal(c, want.runs, runs)
				require.Equal(c, want.replies, got)
				require.Len(c, c.broker.Peek("commands_dlq", ""), want.dead)
				cancel()
				synctest.Wait()
			}
		})
	}
}

// Every component that Watermill ships has a row in docs/composition.md.
func TestComponents_AllAreShown(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs", "composition.md"))
	require.NoError(t, err)
	_, table, found := strings.Cut(string(page), "## Components")
	require.True(t, found)
	folder := filepath.Dir(filepath.Dir(sourceOf(t, "github.com/ThreeDotsLabs/watermill/components/cqrs",
		"command_bus.go")))
	components, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.NotEmpty(t, components)
	for _, component := range components {
		require.Contains(t, table, "\n| `"+component.Name()+"` |")
	}
}
