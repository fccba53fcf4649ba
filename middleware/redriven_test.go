package middleware_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

// A redriven message closes its entry by its outcome.
func TestPipeline_Redriven(t *testing.T) {
	redriven := func() *message.Message {
		m := order(t, envelope.ID("the-id"))
		m.Metadata[envelope.KeyRedriveID] = "entry-9"
		return m
	}
	h := newHarness(t, middleware.Config{}, succeed)
	h.sendNow(redriven())
	h.sendNow(order(t))
	require.Equal(t, []string{"entry-9 the-id"}, h.redriven, "called once, and only for redriven messages")

	h = newHarness(t, middleware.Config{}, failing(middleware.Skip(errTimeout)))
	h.sendNow(redriven())
	require.Equal(t, []string{"entry-9 the-id"}, h.redriven, "a skipped message is done too")

	h = newHarness(t, middleware.Config{}, failing(middleware.Permanent(errTimeout)))
	h.sendNow(redriven())
	require.Empty(t, h.redriven)
	require.Equal(t, "entry-9", h.letter().Message.Metadata[envelope.KeyRedriveID], "another dead letter names its entry")
}

// The report is about the message as it was received: a handler may change its headers freely.
func TestPipeline_RedrivenWhateverTheHandlerDoes(t *testing.T) {
	for name, change := range map[string]func(*message.Message){
		"removes all headers": func(m *message.Message) { clear(m.Metadata) },
		"has other headers":   func(m *message.Message) { m.Metadata = message.Metadata{envelope.KeyRedriveCount: "7"} },
		"has no headers":      func(m *message.Message) { m.Metadata = nil },
	} {
		for outcome, err := range map[string]error{"success": nil, "skip": middleware.Skip(errTimeout)} {
			t.Run(name+", "+outcome, func(t *testing.T) {
				var told reports
				h := newHarness(t, middleware.Config{DeadLetters: &told}, func(m *message.Message) ([]*message.Message, error) {
					change(m)
					return nil, err
				})
				m := order(t, envelope.ID("the-id"))
				m.Metadata[envelope.KeyRedriveID], m.Metadata[envelope.KeyRedriveCount] = "9", "2"
				h.sendNow(m)
				require.Len(t, told, 1)
				require.Equal(t, []any{"9", 2, "the-id"}, []any{told[0].EntryID, told[0].Number, told[0].MessageID})
			})
		}
	}
}

// reports are the successes of redriven messages.
type reports []envelope.Redriven

func (*reports) DeadLetter(context.Context, *envelope.DeadLetter) error { return nil }

func (r *reports) Redriven(_ context.Context, report envelope.Redriven) error {
	*r = append(*r, report)
	return nil
}

func TestPipeline_RedriveThatCannotBeReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, middleware.Config{DeadLetters: middleware.Sinks{keep, forgetful{}}}, succeed)
		m := order(t)
		m.Metadata[envelope.KeyRedriveID] = "entry-9"
		h.sendNow(m)
		require.Equal(t, 1, h.acked, "running it again would be worse")
		require.Contains(t, h.logs.String(), "could not be updated")
	})
}

type forgetful struct{}

func (forgetful) DeadLetter(context.Context, *envelope.DeadLetter) error { return nil }

func (forgetful) Redriven(context.Context, envelope.Redriven) error {
	return errors.New("store is down")
}

// A second pipeline around the same handler would take a failure that the first one has settled for a success, and
// close the dead letter of a redriven message that has failed again.
func TestPipeline_AddedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := newHarness(t, middleware.Config{}, failing(middleware.Permanent(errTimeout)))
		outer := newHarness(t, middleware.Config{}, func(m *message.Message) ([]*message.Message, error) {
			return inner.handler(m)
		})
		m := order(t, envelope.ID("the-id"))
		m.Metadata[envelope.KeyRedriveID] = "entry-9"
		outer.send(m, time.Minute)
		require.Empty(t, outer.redriven)
		require.Empty(t, inner.runs, "it is refused")
		require.Empty(t, outer.letters, "and not the message's fault")
		require.Empty(t, outer.rescheduled)
		require.Zero(t, outer.count(&outer.acked))
		require.Positive(t, outer.count(&outer.nacked), "paced, until the program is fixed")
		require.Contains(t, inner.logs.String(), "add one pipeline")
	})
}
