package middleware

import (
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
)

// The counts are read one after the other, and in between a handler may learn its name.
func TestCheckNames_WhileAHandlerLearnsItsName(t *testing.T) {
	p := &Pipeline{handlers: map[string]*policy{"billing": {}}}
	p.names.missing.Store(1) // as it was just before
	p.names.named = map[string]bool{"billing": true}
	require.NoError(t, p.checkNames())

	p.names.named = map[string]bool{"mail": true}
	require.ErrorIs(t, p.checkNames(), ErrMiswired)
	p.names.unnamed.Store(1)
	require.NoError(t, p.checkNames(), "the other handler may be billing")
}

// The surroundings of a handler are checked at its first message only, also if the program names the handlers.
func TestExamine_EndsWithTheFirstMessage(t *testing.T) {
	for name, naming := range map[string]func(context.Context) string{
		"handlers named by the router":  nil,
		"handlers named by the program": func(context.Context) string { return "billing" },
	} {
		t.Run(name, func(t *testing.T) {
			p, err := New(Config{
				DeadLetters: DeadLetterFunc(func(context.Context, *envelope.DeadLetter) error { return nil }),
				Rescheduler: HoldInMemory, HandlerName: naming, Handlers: map[string]HandlerConfig{"billing": {MaxAttempts: 1}},
			})
			require.NoError(t, err)
			router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
			require.NoError(t, err)
			fine := make(chan bool, 1)
			router.AddMiddleware(func(next message.HandlerFunc) message.HandlerFunc {
				s := p.wrap(next)
				return func(m *message.Message) ([]*message.Message, error) {
					err := p.examine(m, s)
					fine <- s.fine.Load()
					return nil, err
				}
			})
			pubSub := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
			router.AddConsumerHandler("billing", "billing", pubSub, func(*message.Message) error { return nil })
			ended := make(chan error, 1)
			go func() { ended <- router.Run(t.Context()) }()
			<-router.Running()
			require.NoError(t, pubSub.Publish("billing", message.NewMessage("1", nil)))
			require.True(t, <-fine)
			require.NoError(t, router.Close())
			require.NoError(t, <-ended)
		})
	}
}
