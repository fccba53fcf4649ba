package middleware_test

import (
	"context"
	"maps"
	"reflect"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/middleware"
)

// Every field of HandlerConfig is a field of Config with the same name, so that an override needs no second vocabulary.
func TestConfig_HandlerConfigIsAPartOfIt(t *testing.T) {
	general, override := reflect.TypeFor[middleware.Config](), reflect.TypeFor[middleware.HandlerConfig]()
	for field := range override.Fields() {
		in, ok := general.FieldByName(field.Name)
		require.True(t, ok, field.Name)
		require.Equal(t, field.Type, in.Type, field.Name)
	}
	for field := range general.Fields() {
		require.False(t, field.Anonymous, "a policy needs no separate struct literal")
	}
}

// wired runs a router with a pipeline that overrides one handler's limit by its name.
type wired struct {
	pubSub *gochannel.GoChannel
	router *message.Router
	ended  chan error

	mu  sync.Mutex
	ran map[string]int
}

func (w *wired) count(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ran[what]++
}

func (w *wired) counts() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.ran)
}

func newWired(t *testing.T, override string, plugin bool, handlers ...string) *wired {
	t.Helper()
	w := &wired{
		pubSub: gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{}), ran: map[string]int{},
		ended: make(chan error, 1),
	}
	pipeline, err := middleware.New(middleware.Config{
		DeadLetters: keep, Rescheduler: rescheduleNowhere, Logger: quiet, NackDelay: time.Minute,
		Handlers: map[string]middleware.HandlerConfig{override: {MaxAttempts: 1}},
	})
	require.NoError(t, err)
	w.router, err = message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	w.router.AddMiddleware(func(next message.HandlerFunc) message.HandlerFunc {
		return func(m *message.Message) ([]*message.Message, error) {
			out, err := next(m)
			if err != nil {
				w.count(err.Error())
			}
			return out, err
		}
	}, pipeline.Middleware)
	if plugin {
		w.router.AddPlugin(pipeline.Plugin)
	}
	for _, name := range handlers {
		w.router.AddConsumerHandler(name, name, w.pubSub, func(*message.Message) error { w.count(name); return nil })
	}
	return w
}

func (w *wired) run(ctx context.Context) {
	go func() { w.ended <- w.router.Run(ctx) }()
	<-w.router.Running()
}

func TestPlugin_RefusesUnknownHandlers(t *testing.T) {
	w := newWired(t, "bilings", true, "billing", "mail")
	require.EqualError(t, unwrapAll(w.router.Run(t.Context())),
		`middleware: pipeline does not fit the router: Config.Handlers overrides "bilings", but the handlers are `+
			`"billing", "mail"`)
}

// Config.HandlerName returns other names, which the plugin refused because the router does not know them.
func TestPlugin_WithHandlerName(t *testing.T) {
	pipeline, err := middleware.New(middleware.Config{
		DeadLetters: keep, Rescheduler: rescheduleNowhere,
		HandlerName: func(context.Context) string { return "mail" },
		Handlers:    map[string]middleware.HandlerConfig{"mail": {MaxAttempts: 1}},
	})
	require.NoError(t, err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	require.NoError(t, pipeline.Plugin(router))
}

// unwrapAll removes the router's wrapping.
func unwrapAll(err error) error {
	for {
		inner, ok := err.(interface{ Unwrap() error })
		if !ok || err.Error()[:len("middleware: ")] == "middleware: " {
			return err
		}
		err = inner.Unwrap()
	}
}

// Without the plugin the pipeline learns the handlers' names from their messages. It refuses as soon as an override
// cannot belong to any of them, and no earlier: while one of two handlers has had no message, nothing is proven.
func TestPipeline_RefusesUnknownHandlersAtFirstUse(t *testing.T) {
	const refusal = `middleware: pipeline does not fit the router: Config.Handlers overrides "bilings", but the ` +
		`handlers are "billing", "mail"`
	synctest.Test(t, func(t *testing.T) {
		w := newWired(t, "bilings", false, "billing", "mail")
		ctx, stop := context.WithCancel(t.Context())
		w.run(ctx)
		require.NoError(t, w.pubSub.Publish("billing", order(t)))
		time.Sleep(150 * s)
		synctest.Wait()
		require.Equal(t, map[string]int{"billing": 1}, w.counts(), "the other one may have the name")
		require.NoError(t, w.pubSub.Publish("mail", order(t)))
		time.Sleep(150 * s)
		synctest.Wait()
		require.Equal(t, map[string]int{"billing": 1, refusal: 2}, w.counts(), "refused, paced")
		stop()
		require.NoError(t, <-w.ended)
		require.NoError(t, w.pubSub.Close())
	})
	synctest.Test(t, func(t *testing.T) {
		w := newWired(t, "billing", false, "billing", "mail")
		ctx, stop := context.WithCancel(t.Context())
		w.run(ctx)
		for _, topic := range []string{"mail", "billing", "mail"} {
			require.NoError(t, w.pubSub.Publish(topic, order(t)))
			time.Sleep(150 * s)
			synctest.Wait()
		}
		require.Equal(t, map[string]int{"billing": 1, "mail": 2}, w.counts())
		stop()
		require.NoError(t, <-w.ended)
		require.NoError(t, w.pubSub.Close())
	})
}
