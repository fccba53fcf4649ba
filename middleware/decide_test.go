package middleware_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

func TestPipeline_MaxAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := middleware.Config{MaxAttempts: 100, Backoff: middleware.Constant(10 * s), MaxAge: 25 * s}
		h := newHarness(t, cfg, failing(errTimeout))
		h.send(order(t), time.Hour)
		require.Equal(t, []time.Duration{0, 10 * s, 20 * s}, h.runs)
		require.Equal(t, envelope.ReasonExpired, h.letter().Reason)
		var expired *middleware.ExpiredError
		require.ErrorAs(t, h.letter().Cause, &expired)
		require.ErrorIs(t, h.letter().Cause, middleware.ErrExpired)
		require.ErrorIs(t, h.letter().Cause, errTimeout)
		require.Equal(t, 25*s, expired.Limit)
		require.Equal(t, "context deadline exceeded", h.letter().Err.Message, "A19: the last error is the handler's")
	})
}

// Without a readable timestamp, a message is as old as its first failure: the origin has the time of the retry.
func TestPipeline_MaxAgeCountsFromTheFirstFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, middleware.Config{MaxAttempts: 9, MaxAge: time.Hour}, failing(errTimeout))
		h.origin.Timestamp = time.Now().Add(-time.Minute)
		m := message.NewMessage("1", []byte("{}"))
		m.Metadata.Set(envelope.KeyFirstFailure, time.Now().Add(-48*time.Hour).Format(time.RFC3339))
		h.sendNow(m)
		require.Equal(t, envelope.ReasonExpired, h.letter().Reason)
	})
}

func TestPipeline_MaxAgeDoesNotCountTheFirstDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := middleware.Config{MaxAttempts: 2, Backoff: middleware.Constant(10 * s), MaxAge: time.Minute}
		h := newHarness(t, cfg, failing(errTimeout))
		m := order(t)
		envelope.SetDelay(m, time.Hour)
		envelope.TakeDelay(m)
		time.Sleep(time.Hour) // in the delay queue
		synctest.Wait()
		h.send(m, time.Hour)
		require.Equal(t, []time.Duration{0, 10 * s}, h.runs)
	})
}

// A message that is redriven is older than the limit for which it has died: its first failure was its last.
func TestPipeline_MaxAgeCountsFromTheRedrive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := middleware.Config{MaxAttempts: 100, Backoff: middleware.Constant(10 * s), MaxAge: 25 * s}
		h := newHarness(t, cfg, failing(errTimeout))
		h.origin.Timestamp = time.Now().Add(-time.Hour)
		old := order(t, envelope.CreatedAt(h.origin.Timestamp))
		old.Metadata[envelope.KeyOriginalDelay] = "600000"
		h.send(envelope.PrepareRedrive(old, envelope.Redrive{ID: "9", Count: 1}), time.Hour)
		require.Equal(t, []time.Duration{0, 10 * s, 20 * s}, h.runs)
		require.Equal(t, envelope.ReasonExpired, h.letter().Reason)
	})
}

func TestPipeline_RetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, middleware.Config{},
			failing(middleware.HTTPStatus(429, map[string][]string{"Retry-After": {"42"}})))
		h.send(order(t), time.Hour)
		require.Equal(t, []time.Duration{0, 42 * s, 84 * s, 126 * s}, h.runs)
		require.Equal(t, "429", h.letter().Err.Code)
	})
}

func TestPipeline_Defer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		h := newHarness(t, middleware.Config{}, func(*message.Message) ([]*message.Message, error) {
			if n++; n <= 10 {
				return nil, middleware.Defer(middleware.ErrNotYet, 7*s)
			}
			return nil, nil
		})
		h.send(order(t), time.Hour)
		require.Len(t, h.runs, 11, "more often than there are attempts")
		require.Equal(t, 70*s, h.runs[10])
		for _, r := range h.rescheduled {
			require.Equal(t, "0", orZero(r.message.Metadata[envelope.KeyRetryCount]), "no attempt is consumed")
		}
		require.Empty(t, h.letters)
	})
}

func orZero(text string) string {
	if text == "" {
		return "0"
	}
	return text
}

func TestPipeline_DeferralsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, middleware.Config{MaxDeferAge: time.Minute}, failing(middleware.Defer(middleware.ErrNotYet, 25*s)))
		h.send(order(t), time.Hour)
		require.Equal(t, []time.Duration{0, 25 * s, 50 * s, 75 * s}, h.runs)
		require.Equal(t, envelope.ReasonExpired, h.letter().Reason)
	})
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, middleware.Config{MaxDeferAge: time.Minute}, failing(middleware.Defer(middleware.ErrNotYet, 0)))
		h.send(order(t), time.Second)
		require.LessOrEqual(t, h.deliveries, 11, "no hot loop")
	})
}

// A time in the future, forged or from a clock that is ahead, counts as now: the deferrals still end.
func TestPipeline_DeferredSinceTheFutureEndsToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, middleware.Config{MaxDeferAge: time.Minute}, failing(middleware.Defer(middleware.ErrNotYet, 25*s)))
		m := order(t)
		m.Metadata.Set(envelope.KeyDeferredSince, time.Now().AddDate(100, 0, 0).Format(time.RFC3339Nano))
		h.send(m, time.Hour)
		require.Equal(t, envelope.ReasonExpired, h.letter().Reason)
	})
}

func TestPipeline_OnUnknown(t *testing.T) {
	for outcome, check := range map[middleware.Outcome]func(*harness){
		middleware.OutcomeRetry:      func(h *harness) { require.Len(t, h.rescheduled, 1) },
		middleware.OutcomeDeadLetter: func(h *harness) { require.Equal(t, envelope.ReasonPermanent, h.letter().Reason) },
		middleware.OutcomeSkip:       func(h *harness) { require.Empty(t, h.letters); require.Empty(t, h.rescheduled) },
	} {
		h := newHarness(t, middleware.Config{OnUnknown: outcome}, failing(errors.New("no idea")))
		h.sendNow(order(t))
		check(h)
		require.Equal(t, 1, h.acked)
	}
}

func TestPipeline_Decide(t *testing.T) {
	p := benchPipeline(t, nil)
	m := order(t)
	d := p.Decide(m, errTimeout)
	require.Equal(t, middleware.OutcomeRetry, d.Outcome)
	require.Equal(t, s, d.Delay)
	require.Equal(t, 1, d.Attempt.Number)

	m.Metadata[envelope.KeyRetryCount] = "3"
	d = p.Decide(m, errTimeout)
	require.Equal(t, middleware.OutcomeDeadLetter, d.Outcome)
	require.ErrorIs(t, d.Err, middleware.ErrExhausted)
	require.Equal(t, "gave up after 4 attempts: context deadline exceeded", d.Err.Error())

	m = message.NewMessage("u", []byte("{"))
	m.Metadata[envelope.KeyContentType] = envelope.ContentType
	require.Equal(t, envelope.ReasonMalformed, p.Decide(m, errTimeout).Reason)
}

func TestPipeline_BackoffThatPanics(t *testing.T) {
	b := middleware.BackoffFunc(func(int, time.Duration) time.Duration { panic("policy bug") })
	h := newHarness(t, middleware.Config{Backoff: b}, failing(errTimeout))
	h.sendNow(order(t))
	require.Equal(t, s, h.rescheduled[0].delay)
}
