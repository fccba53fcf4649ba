package middleware_test

import (
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

// Panics of every kind become errors with a stack; the message of a handler that ends its goroutine is still settled.
func TestPipeline_Panics(t *testing.T) {
	huge := strings.Repeat("x", 1<<20)
	for name, tt := range map[string]struct {
		do   func()
		want string
	}{
		"text": {func() { panic("boom") }, "panic: boom"},
		"nil":  {func() { panic(nil) }, "panic: panic called with nil argument"},
		"runtime error": {
			func() { var m *message.Message; _ = m.UUID },
			"panic: runtime error: invalid memory address",
		},
		"huge text":     {func() { panic(huge) }, "panic: xxxxx"},
		"invalid UTF-8": {func() { panic("a\xffb") }, "panic: a"},
		"error that panics too": {
			func() { panic((*brokenError)(nil)) },
			"panic: *middleware_test.brokenError (its Error method panicked)",
		},
		"Goexit": {runtime.Goexit, "handler called runtime.Goexit"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, middleware.Config{MaxAttempts: 2}, func(*message.Message) ([]*message.Message, error) {
				tt.do()
				return nil, nil
			})
			h.sendNow(order(t))
			require.Len(t, h.rescheduled, 1)
			require.Equal(t, 1, h.acked)
			md := h.rescheduled[0].message.Metadata
			require.True(t, strings.HasPrefix(md[envelope.KeyErrorMessage], tt.want), "%.200q", md[envelope.KeyErrorMessage])
			require.LessOrEqual(t, len(md[envelope.KeyErrorMessage]), envelope.MaxErrorMessage)
			require.LessOrEqual(t, len(md[envelope.KeyErrorTrace]), envelope.MaxErrorTrace)
			if name != "Goexit" {
				require.Contains(t, md[envelope.KeyErrorTrace], "TestPipeline_Panics", "the stack starts where it happened")
			}
			h.sendNow(h.rescheduled[0].message)
			require.Equal(t, envelope.ReasonPanic, h.letter().Reason)
		})
	}
}

func TestPipeline_PanicsThatARuleCallsPermanent(t *testing.T) {
	cfg := middleware.Config{Rules: []middleware.Rule{
		middleware.MatchType[*middleware.PanicError](middleware.KindPermanent, "panics are bugs"),
	}}
	h := newHarness(t, cfg, func(*message.Message) ([]*message.Message, error) { panic("boom") })
	h.sendNow(order(t))
	require.Equal(t, envelope.ReasonPanic, h.letter().Reason)
	require.Equal(t, "panics are bugs", h.letter().Rule)
	require.Contains(t, h.logs.String(), `"level":"ERROR+4","msg":"message dead-lettered"`, "D42: CRITICAL")
	require.Contains(t, h.logs.String(), `"stack":"`)
}

// A crash caused by the handler must cause neither a hot loop nor a lost message where no broker reschedules.
func TestPipeline_GoexitWithoutRescheduler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, middleware.Config{Rescheduler: inMemory}, func(*message.Message) ([]*message.Message, error) {
			runtime.Goexit()
			return nil, nil
		})
		h.send(order(t), time.Hour)
		require.Len(t, h.runs, 1)
		require.Equal(t, envelope.ReasonPanic, h.letter().Reason)
		require.Equal(t, 1, h.acked)
	})
}

// A deferral that is too large for the broker cannot be held either if the handler has ended its goroutine.
func TestPipeline_GoexitOfALargeMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := middleware.Config{Rules: []middleware.Rule{
			middleware.MatchError(middleware.ErrGoexit, middleware.KindDefer, "later"),
		}}
		h := newHarness(t, cfg, func(*message.Message) ([]*message.Message, error) {
			runtime.Goexit()
			return nil, nil
		})
		h.reschedules.n, h.reschedules.err = -1, envelope.ErrTooLarge
		h.send(order(t), time.Hour)
		require.Len(t, h.runs, 1)
		require.Equal(t, envelope.ReasonPanic, h.letter().Reason)
		require.Zero(t, h.nacked)
	})
}
