package rabbitmq_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/middleware"
)

var errDown = errors.New("the payment service is down")

// storeTimeout is the publish timeout of tests about something else: long enough for a busy machine, and short enough
// that a message whose confirm never arrives is published again within our patience.
const storeTimeout = 30 * time.Second

// openBroker opens a broker that the test closes.
func openBroker(t *testing.T, url string, change ...func(*brokers.Config)) *rabbitmq.Broker {
	t.Helper()
	cfg := brokers.Config{
		URL: url, DrainTimeout: 10 * time.Second, PublishTimeout: storeTimeout, Logger: slog.New(slog.DiscardHandler),
	}
	for _, c := range change {
		c(&cfg)
	}
	b, err := brokers.OpenConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b.(*rabbitmq.Broker)
}

func naming(n brokers.NameScheme) func(*brokers.Config) {
	return func(c *brokers.Config) { c.Naming = n }
}

func params(keyValues ...string) func(*brokers.Config) {
	return func(c *brokers.Config) {
		if c.Params == nil {
			c.Params = brokers.Params{}
		}
		for i := 0; i < len(keyValues); i += 2 {
			c.Params[keyValues[i]] = keyValues[i+1]
		}
	}
}

func delays(d ...time.Duration) func(*brokers.Config) {
	return func(c *brokers.Config) { c.Delays = d }
}

func group(name string) func(*brokers.Config) { return func(c *brokers.Config) { c.Group = name } }

// run is one run of a handler.
type run struct {
	at      time.Time
	attempt middleware.Attempt
	message *message.Message
	origin  envelope.Origin
}

// service is a router with one handler behind a pipeline.
type service struct {
	t    *testing.T
	runs chan run
	stop func()
}

// serve starts a handler on topic. It stops at the end of the test, or when stop is called.
func serve(t *testing.T, b brokers.Broker, topic string, cfg middleware.Config, handle func(*message.Message) error,
	opts ...brokers.SubscriberOption,
) *service {
	t.Helper()
	if cfg.Rescheduler == nil {
		cfg.Rescheduler = b
	}
	if cfg.DeadLetters == nil {
		cfg.DeadLetters = b
	}
	cfg.Logger = slog.New(slog.DiscardHandler)
	pipeline, err := middleware.New(cfg)
	require.NoError(t, err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	router.AddMiddleware(pipeline.Middleware)

	s := &service{t: t, runs: make(chan run, 100_000)}
	router.AddConsumerHandler("handler", topic, b.Subscriber(opts...), func(m *message.Message) error {
		r := run{at: time.Now(), message: m.Copy()}
		if a, ok := middleware.AttemptFrom(m.Context()); ok {
			r.attempt = a
		}
		if o, ok := envelope.OriginFrom(m.Context()); ok {
			r.origin = *o
		}
		s.runs <- r
		return handle(m)
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := await.Run(ctx, t, router)
	s.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(s.stop)
	return s
}

// next waits for the next run.
func (s *service) next() run { return s.nextWithin(patience) }

func (s *service) nextWithin(limit time.Duration) run {
	s.t.Helper()
	select {
	case r := <-s.runs:
		return r
	case <-time.After(limit):
		require.FailNow(s.t, "the handler was not called")
		return run{}
	}
}

// schedule waits for n runs and requires that none is earlier than want, on any machine. TestDelays_Accuracy measures
// how exact delays are, compared with those of plain clients.
func (s *service) schedule(want ...time.Duration) []run {
	s.t.Helper()
	runs := make([]run, len(want))
	for i := range runs {
		wait := patience
		if i > 0 {
			wait += want[i] - want[i-1]
		}
		runs[i] = s.nextWithin(wait)
		require.Equal(s.t, i+1, runs[i].attempt.Number)
		if i > 0 {
			require.GreaterOrEqual(s.t, runs[i].at.Sub(runs[i-1].at), want[i]-want[i-1], "run %d was early", i+1)
		}
	}
	return runs
}

// publish stores messages on a separate broker with a long timeout, because the test's own broker may have one that is
// too short for a busy machine.
func publish(t *testing.T, url string, messages ...*message.Message) {
	t.Helper()
	b := openBroker(t, url, naming(brokers.Laravel()), func(c *brokers.Config) { c.PublishTimeout = patience })
	require.NoError(t, b.Publisher().Publish("orders", messages...))
	require.NoError(t, b.Close())
}

func fails(*message.Message) error { return errDown }

func newMessage(payload string) *message.Message {
	return message.NewMessage(watermill.NewUUID(), []byte(payload))
}
