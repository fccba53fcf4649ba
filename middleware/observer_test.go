package middleware_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/middleware"
)

func panickyName(context.Context) string { panic("no name") }

// diary records every event.
type diary struct{ lines []string }

func (d *diary) add(format string, args ...any) {
	d.lines = append(d.lines, fmt.Sprintf(format, args...))
}

func (d *diary) Started(ctx context.Context, e middleware.Started) context.Context {
	d.add("started %s %s %s %d bytes", e.Handler, e.Origin.Topic, e.Attempt.Tag, e.Payload)
	return context.WithValue(ctx, valueKey{}, "span")
}

func (d *diary) Finished(_ context.Context, e middleware.Finished) {
	d.add("finished %s %s %s", e.Outcome, e.Attempt.Tag, e.Duration)
}

func (d *diary) RetryScheduled(_ context.Context, e middleware.RetryScheduled) {
	d.add("scheduled %s %s", e.Decision.Outcome, e.Decision.Delay)
}

func (d *diary) DeadLettered(_ context.Context, e middleware.DeadLettered) {
	d.add("dead %s", e.DeadLetter.Reason)
}

func (d *diary) PublishFailed(_ context.Context, e middleware.PublishFailed) {
	d.add("publish failed %s try %d", e.Outcome, e.Try)
}

func (d *diary) BreakerChanged(_ context.Context, e middleware.BreakerChanged) {
	d.add("breaker %s %s %s", e.Key, e.From, e.To)
}

func TestObserver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &diary{}
		cfg := middleware.ServiceBus(2, 5*s)
		cfg.Observer = d
		cfg.Breaker = &middleware.Breaker{Failures: 2}
		var err error
		h := newHarness(t, cfg, func(m *message.Message) ([]*message.Message, error) {
			require.Equal(t, "span", m.Context().Value(valueKey{}), "the handler's context is the observer's")
			time.Sleep(s)
			return nil, err
		})
		h.send(order(t), 10*s)
		err = errTimeout
		h.reschedules.n = 1
		h.send(order(t), time.Minute)
		h.send(order(t), 3*s)
		require.Equal(t, []string{
			"started billing-handler orders first 11 bytes", "finished success first 1s",
			"started billing-handler orders first 11 bytes", "publish failed retry try 1", "scheduled retry 5s",
			"finished retry first 1s",
			"started billing-handler orders last 11 bytes", "breaker billing-handler closed open", "dead exhausted",
			"finished dead_letter last 1s",
			"scheduled defer 7.1s", "finished defer first 0s",
		}, d.lines)
		h.pipelineStop(t)
	})
}

type panicky struct{ middleware.NopObserver }

func (panicky) Started(context.Context, middleware.Started) context.Context { panic("metrics bug") }
func (panicky) Finished(context.Context, middleware.Finished)               { panic("metrics bug") }
func (panicky) DeadLettered(context.Context, middleware.DeadLettered)       { panic("metrics bug") }

func TestObserver_PanicsChangeNothing(t *testing.T) {
	h := newHarness(t, middleware.Config{Observer: panicky{}}, failing(middleware.Permanent(errTimeout)))
	h.sendNow(order(t))
	require.Len(t, h.runs, 1)
	require.Len(t, h.letters, 1)
	require.Equal(t, 1, h.acked)
	require.Contains(t, h.logs.String(), "observer panicked")
}
