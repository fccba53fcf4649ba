package middleware_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

// routing is Watermill's own router on its in-memory pub/sub, with a pipeline.
type routing struct {
	pubSub  *gochannel.GoChannel
	letters []*envelope.DeadLetter
	stop    context.CancelFunc
	stopped chan struct{}
}

func newRouting(t *testing.T, cfg middleware.Config, h message.HandlerFunc) *routing {
	t.Helper()
	r := &routing{
		pubSub:  gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{}),
		stopped: make(chan struct{}),
	}
	cfg.Logger = quiet
	cfg.Rescheduler = middleware.HoldInMemory
	cfg.DeadLetters = middleware.DeadLetterFunc(func(_ context.Context, d *envelope.DeadLetter) error {
		r.letters = append(r.letters, d)
		return nil
	})
	pipeline, err := middleware.New(cfg)
	require.NoError(t, err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	router.AddMiddleware(pipeline.Middleware)
	router.AddHandler("billing", "orders", r.pubSub, "invoices", r.pubSub, h)
	ctx, stop := context.WithCancel(t.Context())
	r.stop = stop
	go func() {
		defer close(r.stopped)
		_ = router.Run(ctx)
	}()
	<-router.Running()
	return r
}

func (r *routing) close(t *testing.T) {
	t.Helper()
	r.stop()
	<-r.stopped
	require.NoError(t, r.pubSub.Close())
}

// The attempt and the poison keys, as filled in by Watermill's router.
func TestRouter_DeadLetterKnowsWhereItFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := middleware.Config{Handlers: map[string]middleware.HandlerConfig{"billing": {MaxAttempts: 2}}}
		runs := 0
		r := newRouting(t, cfg, func(*message.Message) ([]*message.Message, error) { runs++; return nil, errTimeout })
		require.NoError(t, r.pubSub.Publish("orders", order(t)))
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, 2, runs, "the override of the handler's name in the router")
		require.Len(t, r.letters, 1)
		require.Equal(t, "billing", r.letters[0].Handler)
		require.Equal(t, "orders", r.letters[0].Origin.Topic)
		md := r.letters[0].Message.Metadata
		require.Equal(t, "orders", md[envelope.KeyPoisonTopic])
		require.Equal(t, "billing", md[envelope.KeyPoisonHandler])
		require.Equal(t, "gochannel.GoChannel", md[envelope.KeyPoisonSubscriber])
		require.Equal(t, "context deadline exceeded", md[envelope.KeyPoisonReason])
		r.close(t)
	})
}

// Watermill's PoisonQueue dead-letters the message in flight at every router.Close.
func TestRouter_ShutdownDeadLettersNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRouting(t, middleware.Config{MaxAttempts: 1}, func(m *message.Message) ([]*message.Message, error) {
			<-m.Context().Done()
			return nil, m.Context().Err()
		})
		require.NoError(t, r.pubSub.Publish("orders", order(t)))
		time.Sleep(s)
		synctest.Wait()
		r.close(t)
		require.Empty(t, r.letters)
	})
}

func TestRouter_PublishesMessagesOfAHeldRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRouting(t, middleware.Config{}, func(m *message.Message) ([]*message.Message, error) {
			out := message.NewMessage("invoice", nil)
			if a, _ := middleware.AttemptFrom(m.Context()); a.Number < 3 {
				return []*message.Message{out}, errTimeout
			}
			return []*message.Message{out}, nil
		})
		invoices, err := r.pubSub.Subscribe(t.Context(), "invoices")
		require.NoError(t, err)
		require.NoError(t, r.pubSub.Publish("orders", order(t)))
		invoice := <-invoices
		invoice.Ack()
		require.Equal(t, "invoice", invoice.UUID)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Empty(t, invoices, "once, from the attempt that succeeded")
		r.close(t)
	})
}
