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

const s = time.Second

// timeline is the life of a message that always fails.
type timeline struct {
	config     middleware.Config
	delay      time.Duration
	err        error
	want       []time.Duration // when it runs
	retryCount string
	reason     envelope.Reason
}

// The golden timelines of the five systems and their last message, all in virtual time.
func TestPresets_Timelines(t *testing.T) {
	for name, tt := range map[string]timeline{
		"A(5) five runs": {
			middleware.Laravel(5), 0, errors.New("x"),
			[]time.Duration{0, 0, 0, 0, 0},
			"5", envelope.ReasonExhausted,
		},
		"A retries what others find final": {
			middleware.Laravel(2), 0, middleware.HTTPStatus(404, nil),
			[]time.Duration{0, 0},
			"2", envelope.ReasonExhausted,
		},
		"A a marked error is permanent": {
			middleware.Laravel(5), 0, middleware.Permanent(errors.New("x")),
			[]time.Duration{0},
			"1", envelope.ReasonPermanent,
		},
		"B with 10 s": {
			middleware.DelayedBackoff(3, s), 10 * s, errTimeout,
			[]time.Duration{0, 10 * s, 30 * s, 70 * s},
			"4", envelope.ReasonExhausted,
		},
		"B without a delay uses the fallback": {
			middleware.DelayedBackoff(3, s), 0, errTimeout,
			[]time.Duration{0, s, 3 * s, 7 * s},
			"4", envelope.ReasonExhausted,
		},
		"B6 validation goes straight away": {
			middleware.DelayedBackoff(3, s), 10 * s, middleware.HTTPStatus(400, nil),
			[]time.Duration{0},
			"1", envelope.ReasonPermanent,
		},
		"C41 technical: three attempts": {
			middleware.StoreOnly(), 0, errTimeout,
			[]time.Duration{0, s, 3 * s},
			"3",
			envelope.ReasonExhausted,
		},
		"C16 validation is never retried": {
			middleware.StoreOnly(), 0, middleware.Permanent(errors.New("invalid IBAN")),
			[]time.Duration{0},
			"1", envelope.ReasonPermanent,
		},
		"C unknown errors go to the store": {
			middleware.StoreOnly(), 0, errors.New("unhandled"),
			[]time.Duration{0},
			"1",
			envelope.ReasonPermanent,
		},
		"D20 tries 3": {
			middleware.ServiceBus(3, s, 5*s, 60*s), 0, errTimeout,
			[]time.Duration{0, s, 6 * s},
			"3", envelope.ReasonExhausted,
		},
		"D tries 5 of three steps": {
			middleware.ServiceBus(5, s, 5*s, 60*s), 0, errTimeout,
			[]time.Duration{0, s, 6 * s, 66 * s, 126 * s},
			"5", envelope.ReasonExhausted,
		},
		"D without delays": {
			middleware.ServiceBus(2), 0, errTimeout,
			[]time.Duration{0, 0},
			"2",
			envelope.ReasonExhausted,
		},
		"E 5 s": {
			middleware.TTLCycle(3, 5*s), 0, errors.New("x"),
			[]time.Duration{0, 5 * s, 10 * s, 15 * s},
			"4", envelope.ReasonExhausted,
		},
		"E7 10 min": {
			middleware.TTLCycle(3, 10*time.Minute), 0, errors.New("x"),
			[]time.Duration{0, 600 * s, 1200 * s, 1800 * s},
			"4", envelope.ReasonExhausted,
		},
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, tt.check) })
	}
}

func (tt timeline) check(t *testing.T) {
	h := newHarness(t, tt.config, failing(tt.err))
	m := order(t)
	if tt.delay > 0 {
		envelope.SetDelay(m, tt.delay)
		envelope.TakeDelay(m) // the publisher has waited
	}
	id := m.Metadata[envelope.KeyMessageID]
	h.send(m, time.Hour)

	require.Equal(t, tt.want, h.runs)
	require.Equal(t, h.deliveries, h.acked, "always acked, never nacked (D18)")
	letter := h.letter()
	require.Equal(t, tt.reason, letter.Reason)
	require.Equal(t, len(tt.want), letter.Attempts)
	md := letter.Message.Metadata
	require.Equal(t, tt.retryCount, md[envelope.KeyRetryCount])
	require.Equal(t, id, md[envelope.KeyMessageID], "A7")
	require.Equal(t, tt.err.Error(), md[envelope.KeyConsumerError], "D25")
	require.Equal(t, tt.err.Error(), md[envelope.KeyPoisonReason])
	require.Equal(t, "billing-handler", md[envelope.KeyPoisonHandler])
	require.Equal(t, "orders", md[envelope.KeyPoisonTopic])
	require.Equal(t, string(tt.reason), md[envelope.KeyDeadLetterReason])
	require.NotContains(t, md, envelope.KeyDelay, "D25")
	if tt.delay > 0 {
		require.Equal(t, "10000", md[envelope.KeyOriginalDelay], "B4")
	}
	for i, r := range h.rescheduled {
		require.Equal(t, i+1, mustControl(t, r.message).RetryCount, "D18: the counter is the number of failures so far")
	}
}

func mustControl(t testing.TB, m *message.Message) envelope.Control {
	t.Helper()
	c, err := envelope.ReadControl(m)
	require.NoError(t, err)
	return c
}

// Validation, not found, duplicates and the like are logged as a warning and acked.
func TestPresets_ServiceBusSkipsPermanentErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, middleware.ServiceBus(3, s), failing(middleware.HTTPStatus(404, nil)))
		h.send(order(t), time.Minute)
		require.Equal(t, []time.Duration{0}, h.runs)
		require.Empty(t, h.letters)
		require.Equal(t, 1, h.acked)
		require.Contains(t, h.logs.String(), `"level":"WARN","msg":"message skipped"`)
	})
}

// A structured message keeps its body, except error and retry_count, over the whole timeline.
func TestPresets_LaravelRewritesTheBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, middleware.Laravel(2), failing(middleware.RetryAfter(middleware.HTTPStatus(500, nil), 0)))
		const before = `{"message_id":"3f2a","timestamp":"2026-02-28T22:53:42+00:00","version":"1.0","source":"api","queue":"orders",` +
			`"data":{"order_id": 9007199254740993},"metadata":{},"error":null,"retry_count":0}`
		h.send(message.NewMessage("3f2a", []byte(before)), time.Minute)
		//nolint:testifylint // the bytes count, not only what they mean
		require.Equal(t, `{"message_id":"3f2a","timestamp":"2026-02-28T22:53:42+00:00","version":"1.0","source":"api","queue":"orders",`+
			`"data":{"order_id": 9007199254740993},"metadata":{},"error":{"message":"http status `+
			`500","code":"500","trace":""},"retry_count":2}`,
			string(h.letter().Message.Payload))
	})
}

func TestPresets_RecommendedSets(t *testing.T) {
	timeline := func(c middleware.HandlerConfig) []time.Duration {
		return middleware.Timeline(c.Backoff, c.MaxAttempts, 0)
	}
	require.Equal(t, []time.Duration{0, 0, s, 6 * s}, timeline(middleware.FastRetries()))
	require.Equal(t, []time.Duration{0, 5 * s, 35 * s, 335 * s}, timeline(middleware.SteadyRetries()))
	require.Equal(t, []time.Duration{0, 60 * s, 360 * s, 3960 * s}, timeline(middleware.PatientRetries()))
	require.Equal(t, []time.Duration{0, s, 2 * s, 4 * s, 9 * s}, timeline(middleware.TransientRetries()))
	require.Equal(t, []time.Duration{0, 5 * s, 35 * s}, timeline(middleware.ExternalAPIRetries()))
	require.Equal(t, 1, middleware.NoRetries().MaxAttempts)
}

// A separate limit for one handler.
func TestPipeline_HandlerOverrides(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := middleware.ServiceBus(3, s)
		cfg.Handlers = map[string]middleware.HandlerConfig{
			"billing-handler": {MaxAttempts: 2, Backoff: middleware.Constant(7 * s)},
			"other":           {MaxAttempts: 9},
		}
		h := newHarness(t, cfg, failing(errTimeout))
		h.send(order(t), time.Hour)
		require.Equal(t, []time.Duration{0, 7 * s}, h.runs)

		cfg.HandlerName = func(context.Context) string { return "a third" }
		h = newHarness(t, cfg, failing(errTimeout))
		h.send(order(t), time.Hour)
		require.Equal(t, []time.Duration{0, s, 2 * s}, h.runs)
	})
}
