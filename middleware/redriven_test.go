package middleware_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

// DESIGN 7: a redriven message closes its entry by its outcome.
func TestPipeline_Redriven(t *testing.T) {
	redriven := func() *message.Message {
		m := order(t, envelope.ID("the-id"))
		m.Metadata[envelope.KeyRedriveID] = "entry-9"
		return m
	}
	h := newHarness(t, middleware.Config{}, succeed)
	h.sendNow(redriven())
	h.sendNow(order(t))
	require.Equal(t, []string{"entry-9 the-id"}, h.redriven, "told once, and only of redriven messages")

	h = newHarness(t, middleware.Config{}, failing(middleware.Skip(errTimeout)))
	h.sendNow(redriven())
	require.Equal(t, []string{"entry-9 the-id"}, h.redriven, "a skipped message is done with too")

	h = newHarness(t, middleware.Config{}, failing(middleware.Permanent(errTimeout)))
	h.sendNow(redriven())
	require.Empty(t, h.redriven)
	require.Equal(t, "entry-9", h.letter().Message.Metadata[envelope.KeyRedriveID], "a new death names its entry")
}

func TestPipeline_RedriveThatCannotBeTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, middleware.Config{DeadLetters: middleware.Sinks{keep, forgetful{}}}, succeed)
		m := order(t)
		m.Metadata[envelope.KeyRedriveID] = "entry-9"
		h.sendNow(m)
		require.Equal(t, 1, h.acked, "running it again would be worse")
		require.Contains(t, h.logs.String(), "could not be told")
	})
}

type forgetful struct{}

func (forgetful) DeadLetter(context.Context, *envelope.DeadLetter) error { return nil }

func (forgetful) Redriven(context.Context, envelope.Redriven) error {
	return errors.New("store is away")
}
