package middleware_test

import (
	"context"
	"errors"
	"fmt"
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

func TestPipeline_SuccessPublishesWhatTheHandlerProduced(t *testing.T) {
	out := message.NewMessage("out", nil)
	labelled := message.NewMessage("labelled", nil)
	labelled.Metadata["correlation_id"] = "own"
	h := newHarness(t, middleware.Config{}, func(m *message.Message) ([]*message.Message, error) {
		return []*message.Message{out, labelled, {UUID: "literal"}, nil}, nil
	})
	m := order(t)
	m.Metadata["correlation_id"] = "abc-123"
	h.sendNow(m)
	require.Equal(t, 1, h.acked)
	require.Len(t, h.published, 4)
	require.Equal(t, "abc-123", out.Metadata["correlation_id"])
	require.Equal(t, "own", labelled.Metadata["correlation_id"])
	require.Equal(t, "abc-123", h.published[2].Metadata["correlation_id"], "a literal without metadata")
	require.Empty(t, h.rescheduled)
	require.Contains(t, h.logs.String(), `"level":"DEBUG","msg":"message handled"`)
}

// Watermill's PoisonQueue publishes the partial output of a handler that failed.
func TestPipeline_FailureThrowsProducedMessagesAway(t *testing.T) {
	for _, err := range []error{errTimeout, middleware.Permanent(errTimeout), middleware.Skip(errTimeout), middleware.Defer(errTimeout, s)} {
		h := newHarness(t, middleware.Config{}, func(*message.Message) ([]*message.Message, error) {
			return []*message.Message{message.NewMessage("partial", nil)}, err
		})
		h.sendNow(order(t))
		require.Empty(t, h.published)
		require.Equal(t, 1, h.acked)
	}
}

func TestPipeline_RetryKeepsTheMessage(t *testing.T) {
	h := newHarness(t, middleware.Config{}, failing(errTimeout))
	m := order(t)
	m.Metadata["foreign"] = "kept"
	m.Metadata["x-death"] = "made by the broker"
	payload := string(m.Payload)
	h.sendNow(m)
	require.Len(t, h.rescheduled, 1)
	r := h.rescheduled[0]
	require.Equal(t, payload, string(r.message.Payload))
	require.Equal(t, "kept", r.message.Metadata["foreign"])
	require.NotContains(t, r.message.Metadata, "x-death")
	require.Equal(t, m.Metadata[envelope.KeyMessageID], r.message.Metadata[envelope.KeyMessageID])
	require.Equal(t, "1", r.message.Metadata[envelope.KeyRetryCount])
	require.Equal(t, "context deadline exceeded", r.message.Metadata[envelope.KeyErrorMessage])
	require.Equal(t, "context.deadlineExceededError", r.message.Metadata[envelope.KeyErrorClass])
	require.Equal(t, *h.origin, r.origin)
	require.Equal(t, s, r.delay)
}

// What is retried and dead-lettered is the message as it was received, whatever the handler did to it.
func TestPipeline_HandlersChangesDoNotLeak(t *testing.T) {
	changes := map[string]func(*message.Message){
		"decrypts in place":      func(m *message.Message) { copy(m.Payload, "XXXXXXXX") },
		"replaces the payload":   func(m *message.Message) { m.Payload = []byte("other") },
		"empties the payload":    func(m *message.Message) { m.Payload = nil },
		"adds a header":          func(m *message.Message) { m.Metadata["secret"] = "x" },
		"changes a header":       func(m *message.Message) { m.Metadata["foreign"] = "changed" },
		"resets the counter":     func(m *message.Message) { m.Metadata[envelope.KeyRetryCount] = "0" },
		"removes all headers":    func(m *message.Message) { clear(m.Metadata) },
		"throws the headers off": func(m *message.Message) { m.Metadata = nil },
		"changes the id":         func(m *message.Message) { m.UUID = "other" },
		"replaces the context":   func(m *message.Message) { ctx, stop := context.WithCancel(m.Context()); stop(); m.SetContext(ctx) },
		"changes nothing":        func(*message.Message) {},
	}
	for name, change := range changes {
		for outcome, err := range map[string]error{"retry": errTimeout, "dead letter": middleware.Permanent(errTimeout), "panic": nil} {
			t.Run(name+", "+outcome, func(t *testing.T) {
				h := newHarness(t, middleware.Config{}, func(m *message.Message) ([]*message.Message, error) {
					change(m)
					if err == nil {
						panic("x")
					}
					return nil, err
				})
				m := message.NewMessage("uuid", []byte("original"))
				m.Metadata["foreign"] = "kept"
				m.Metadata[envelope.KeyRetryCount] = "1"
				h.sendNow(m)
				var got *message.Message
				if len(h.letters) == 1 {
					got = h.letters[0].Message
				} else {
					require.Len(t, h.rescheduled, 1)
					got = h.rescheduled[0].message
				}
				require.Equal(t, "original", string(got.Payload))
				require.Equal(t, "uuid", got.UUID)
				require.Equal(t, "kept", got.Metadata["foreign"])
				require.Equal(t, "2", got.Metadata[envelope.KeyRetryCount])
				require.NotContains(t, got.Metadata, "secret")
			})
		}
	}
}

// D23: panics of every kind are errors with a stack; a handler that ends its goroutine is settled all the same.
func TestPipeline_Panics(t *testing.T) {
	huge := strings.Repeat("x", 1<<20)
	for name, tt := range map[string]struct {
		do   func()
		want string
	}{
		"text":                  {func() { panic("boom") }, "panic: boom"},
		"nil":                   {func() { panic(nil) }, "panic: panic called with nil argument"},
		"runtime error":         {func() { var m *message.Message; _ = m.UUID }, "panic: runtime error: invalid memory address"},
		"huge text":             {func() { panic(huge) }, "panic: xxxxx"},
		"invalid UTF-8":         {func() { panic("a\xffb") }, "panic: a"},
		"error that panics too": {func() { panic((*brokenError)(nil)) }, "panic: *middleware_test.brokenError (its Error method panicked)"},
		"Goexit":                {runtime.Goexit, "handler called runtime.Goexit"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, middleware.Config{HandlerConfig: middleware.HandlerConfig{MaxAttempts: 2}}, func(*message.Message) ([]*message.Message, error) {
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
			require.Equal(t, envelope.ReasonExhausted, h.letter().Reason)
		})
	}
}

func TestPipeline_PanicsThatARuleCallsPermanent(t *testing.T) {
	cfg := middleware.Config{HandlerConfig: middleware.HandlerConfig{Rules: []middleware.Rule{
		middleware.MatchType[*middleware.PanicError](middleware.KindPermanent, "panics are bugs"),
	}}}
	h := newHarness(t, cfg, func(*message.Message) ([]*message.Message, error) { panic("boom") })
	h.sendNow(order(t))
	require.Equal(t, envelope.ReasonPanic, h.letter().Reason)
	require.Equal(t, "panics are bugs", h.letter().Rule)
	require.Contains(t, h.logs.String(), `"level":"ERROR+4","msg":"message dead-lettered"`, "D42: CRITICAL")
	require.Contains(t, h.logs.String(), `"stack":"`)
}

// A crash of the handler's own making must not become a hot loop or a lost message where no broker reschedules.
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

// Hostile counters: one run and no retries, never a reset to 0.
func TestPipeline_UnreadableRetryCount(t *testing.T) {
	for _, text := range []string{"-1", "+3", " 3", "1e99", "abc", "9223372036854775808", "3.7", "NaN", "", "0x10", "1000001"} {
		t.Run(text, func(t *testing.T) {
			h := newHarness(t, middleware.Config{}, failing(errTimeout))
			m := order(t)
			m.Metadata[envelope.KeyRetryCount] = text
			h.sendNow(m)
			require.Len(t, h.runs, 1)
			require.Empty(t, h.rescheduled)
			require.Equal(t, envelope.ReasonExhausted, h.letter().Reason)
			require.Equal(t, text, h.letter().Message.Metadata[envelope.KeyInvalidRetryCount])
			require.Contains(t, h.logs.String(), `"level":"WARN","msg":"message has control headers out of range`)
		})
	}
}

func TestPipeline_CounterAboveTheLimitStillGetsItsRun(t *testing.T) {
	h := newHarness(t, middleware.Config{}, succeed)
	m := order(t)
	m.Metadata[envelope.KeyRetryCount] = "17" // the limit was higher when it was rescheduled
	h.sendNow(m)
	require.Len(t, h.runs, 1)
	require.Empty(t, h.letters)
}

// Hostile delays are clamped and reported, and never overflow.
func TestPipeline_AbsurdOriginalDelay(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"-5": s, "99999999999999999999": envelope.MaxDelay, "soon": s, "1e3": s, "0": s, "2592000000": envelope.MaxDelay,
	} {
		t.Run(text, func(t *testing.T) {
			h := newHarness(t, middleware.Config{HandlerConfig: middleware.HandlerConfig{MaxAttempts: 100}}, failing(errTimeout))
			m := order(t)
			m.Metadata[envelope.KeyOriginalDelay] = text
			m.Metadata[envelope.KeyRetryCount] = "0"
			h.sendNow(m)
			require.LessOrEqual(t, h.rescheduled[0].delay, envelope.MaxDelay)
			require.GreaterOrEqual(t, h.rescheduled[0].delay, time.Duration(0))
			if want == s {
				require.Equal(t, s, h.rescheduled[0].delay)
			}
			m.Metadata[envelope.KeyRetryCount] = "90" // 2^90 overflows every integer
			h.rescheduled = nil
			h.sendNow(m)
			require.Equal(t, envelope.MaxDelay, h.rescheduled[0].delay)
		})
	}
}

// A body that claims to be an envelope and is not readable is dead-lettered with its exact bytes; the handler never sees it.
func TestPipeline_MalformedEnvelope(t *testing.T) {
	for name, payload := range map[string]string{
		"truncated": `{"message_id":"1","timestamp":"2026-02-28T22:53:42+00:00","version":"1.0","source":"a","queue":"o","data":{`,
		"binary":    "\x00\xff\xfe",
	} {
		t.Run(name, func(t *testing.T) {
			for _, cfg := range []middleware.Config{{}, middleware.ServiceBus(3), middleware.Laravel(5)} {
				h := newHarness(t, cfg, failing(errTimeout))
				m := message.NewMessage("u", []byte(payload))
				m.Metadata[envelope.KeyContentType] = envelope.ContentType
				h.sendNow(m)
				require.Empty(t, h.runs)
				require.Equal(t, payload, string(h.letter().Message.Payload))
				require.Equal(t, envelope.ReasonMalformed, h.letter().Reason, "also where permanent errors are skipped or retried")
				require.ErrorIs(t, h.letter().Cause, envelope.ErrMalformed)
				require.Equal(t, 1, h.acked)
				require.Zero(t, h.letter().Attempts)
			}
		})
	}
}

func TestPipeline_ForeignMessagesKeepTheirNewID(t *testing.T) {
	var seen []string
	h := newHarness(t, middleware.Config{}, func(m *message.Message) ([]*message.Message, error) {
		a, _ := middleware.AttemptFrom(m.Context())
		seen = append(seen, a.MessageID)
		return nil, errTimeout
	})
	h.sendNow(message.NewMessage("", []byte("raw"))) // no id anywhere
	h.sendNow(h.rescheduled[0].message)
	require.Len(t, seen, 2)
	require.NotEmpty(t, seen[0])
	require.Equal(t, seen[0], seen[1])

	literal := &message.Message{Payload: []byte("no map")}
	h.sendNow(literal)
	require.Len(t, h.runs, 3)
}

// D16, D21: what the handler can ask about its attempt.
func TestAttemptFrom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen []middleware.Attempt
		h := newHarness(t, middleware.ServiceBus(4, s), func(m *message.Message) ([]*message.Message, error) {
			a, ok := middleware.AttemptFrom(m.Context())
			require.True(t, ok)
			seen = append(seen, a)
			return nil, errTimeout
		})
		m := order(t)
		envelope.SetDelay(m, 10*s)
		envelope.TakeDelay(m)
		h.send(m, time.Minute)
		id := m.Metadata[envelope.KeyMessageID]
		attempt := func(n int, tag middleware.Tag) middleware.Attempt {
			return middleware.Attempt{Number: n, Max: 4, Tag: tag, MessageID: id, OriginalDelay: 10 * s}
		}
		require.Equal(t, []middleware.Attempt{
			attempt(1, middleware.TagFirst), attempt(2, middleware.TagRetry), attempt(3, middleware.TagRetry), attempt(4, middleware.TagLast),
		}, seen)
		require.False(t, seen[2].IsLast())
		require.True(t, seen[3].IsLast())
		require.Equal(t, "attempt 4 of 4", seen[3].String())
	})
	_, ok := middleware.AttemptFrom(t.Context())
	require.False(t, ok)

	h := newHarness(t, middleware.ServiceBus(1), func(m *message.Message) ([]*message.Message, error) {
		a, _ := middleware.AttemptFrom(m.Context())
		require.Equal(t, middleware.TagFirst, a.Tag, "D21: first, though also the last")
		require.True(t, a.IsLast())
		return nil, nil
	})
	h.sendNow(order(t))
}

func TestPipeline_MaxAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := middleware.Config{HandlerConfig: middleware.HandlerConfig{MaxAttempts: 100, Backoff: middleware.Constant(10 * s), MaxAge: 25 * s}}
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

func TestPipeline_MaxAgeDoesNotCountTheFirstDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := middleware.Config{HandlerConfig: middleware.HandlerConfig{MaxAttempts: 2, Backoff: middleware.Constant(10 * s), MaxAge: time.Minute}}
		h := newHarness(t, cfg, failing(errTimeout))
		m := order(t)
		envelope.SetDelay(m, time.Hour)
		envelope.TakeDelay(m)
		time.Sleep(time.Hour) // in the delay queue
		h.send(m, time.Hour)
		require.Equal(t, []time.Duration{0, 10 * s}, h.runs)
	})
}

func TestPipeline_RetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, middleware.Config{}, failing(middleware.HTTPStatus(429, map[string][]string{"Retry-After": {"42"}})))
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

func TestPipeline_DeferCannotGoRoundForEver(t *testing.T) {
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

// Without a rescheduler the message is held unacked and run again here.
func TestPipeline_HoldsInMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var counts []string
		h := newHarness(t, func() middleware.Config {
			c := middleware.DelayedBackoff(3, s)
			c.Rescheduler = inMemory
			return c
		}(), func(m *message.Message) ([]*message.Message, error) {
			counts = append(counts, orZero(m.Metadata[envelope.KeyRetryCount]))
			m.Payload = []byte("spoiled")
			return nil, errTimeout
		})
		h.send(order(t), time.Hour)
		require.Equal(t, []time.Duration{0, s, 3 * s, 7 * s}, h.runs)
		require.Equal(t, []string{"0", "1", "2", "3"}, counts)
		require.Equal(t, 1, h.deliveries)
		require.Equal(t, 1, h.acked)
		require.Equal(t, `{"order":7}`, string(h.letter().Message.Payload))
	})
}

func TestPipeline_HeldMessagesAreGivenBackAtShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, middleware.Config{Rescheduler: inMemory, HandlerConfig: middleware.HandlerConfig{Backoff: middleware.Constant(time.Hour)}}, failing(errTimeout))
		ctx, stop := context.WithCancel(t.Context())
		h.ctx = ctx
		time.AfterFunc(10*s, stop)
		h.send(order(t), time.Minute)
		require.Len(t, h.runs, 1)
		require.Equal(t, 1, h.nacked)
		require.Zero(t, h.acked)
		require.Empty(t, h.letters)
	})
}

// Shutdown costs no attempt and dead-letters nothing, whatever error the cancelled client makes of it.
func TestPipeline_ShutdownDuringTheHandler(t *testing.T) {
	for name, err := range map[string]error{
		"context.Canceled":        context.Canceled,
		"wrapped":                 fmt.Errorf("query: %w", context.Canceled),
		"a driver's own words":    errors.New("pq: canceling statement due to user request"),
		"retryable":               errTimeout,
		"deferred":                middleware.Defer(errTimeout, s),
		"its very last attempt":   errors.New("x"),
		"nothing: it has noticed": nil,
	} {
		t.Run(name, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			h := newHarness(t, middleware.Config{HandlerConfig: middleware.HandlerConfig{MaxAttempts: 1}}, func(m *message.Message) ([]*message.Message, error) {
				stop()
				<-m.Context().Done()
				if err == nil {
					return nil, m.Context().Err()
				}
				return nil, err
			})
			h.ctx = ctx
			h.sendNow(order(t))
			require.Equal(t, 1, h.nacked)
			require.Zero(t, h.acked)
			require.Empty(t, h.letters)
			require.Empty(t, h.rescheduled)
		})
	}
}

func TestPipeline_ShutdownKeepsWhatIsDecided(t *testing.T) {
	for name, tt := range map[string]struct {
		err     error
		letters int
	}{
		"success":   {nil, 0},
		"permanent": {middleware.Permanent(errors.New("invalid")), 1},
		"skip":      {middleware.Skip(errors.New("known")), 0},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			h := newHarness(t, middleware.Config{}, func(*message.Message) ([]*message.Message, error) {
				stop()
				return nil, tt.err
			})
			h.ctx = ctx
			h.sendNow(order(t))
			require.Equal(t, 1, h.acked)
			require.Len(t, h.letters, tt.letters, "published on a context that outlives the message's")
		})
	}
}

func TestPipeline_DoesNotStartAfterShutdown(t *testing.T) {
	p, err := middleware.New(middleware.Config{DeadLetters: keep, Logger: quiet})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	m := order(t)
	m.SetContext(ctx)
	_, err = p.Middleware(func(*message.Message) ([]*message.Message, error) {
		t.Error("the handler was called")
		return nil, nil
	})(m)
	require.ErrorIs(t, err, middleware.ErrGivenBack)
	require.ErrorIs(t, err, context.Canceled, "keeps Watermill's router from logging it")
}

// A deadline that the subscriber has set is no shutdown: taken for one, the message would go round for ever.
func TestPipeline_SubscribersDeadlineCountsAsAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, middleware.Config{}, func(m *message.Message) ([]*message.Message, error) {
			<-m.Context().Done()
			return nil, m.Context().Err()
		})
		ctx, stop := context.WithTimeout(t.Context(), 5*s)
		defer stop()
		h.ctx = ctx
		h.send(order(t), 5*s)
		require.Len(t, h.rescheduled, 1)
		require.Equal(t, 1, h.acked)
	})
}

func TestPipeline_Timeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := middleware.Config{HandlerConfig: middleware.HandlerConfig{Timeout: 3 * s, MaxAttempts: 1}}
		h := newHarness(t, cfg, func(m *message.Message) ([]*message.Message, error) {
			<-m.Context().Done()
			return nil, m.Context().Err()
		})
		start := time.Now()
		h.sendNow(order(t))
		require.Equal(t, 3*s, time.Since(start))
		require.Equal(t, envelope.ReasonExhausted, h.letter().Reason, "retryable, not a shutdown")
		require.Equal(t, "deadline exceeded", h.letter().Rule)

		ignores := newHarness(t, cfg, func(*message.Message) ([]*message.Message, error) {
			time.Sleep(time.Hour)
			return nil, nil
		})
		ignores.sendNow(order(t))
		require.Equal(t, 1, ignores.acked, "a handler that ignores its deadline and succeeds has succeeded")
		require.Len(t, ignores.runs, 1, "and was not run a second time beside itself")
	})
}

func TestPipeline_RestoresTheContext(t *testing.T) {
	p := benchPipeline(t, nil)
	for _, err := range []error{nil, errTimeout} {
		m := order(t)
		ctx := context.WithValue(t.Context(), valueKey{}, 1)
		m.SetContext(ctx)
		_, _ = p.Middleware(failing(err))(m)
		require.Equal(t, ctx, m.Context())
		require.NoError(t, m.Context().Err(), "Watermill's Timeout leaves a cancelled context to outer middlewares")
	}
}

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
func (forgetful) Redriven(context.Context, string, string, time.Time) error {
	return errors.New("store is away")
}

// D14, D15.
func TestPipeline_SystemEventsAndDebugMessages(t *testing.T) {
	var handled []string
	note := func(what string, err error) message.NoPublishHandlerFunc {
		return func(m *message.Message) error {
			handled = append(handled, what)
			return err
		}
	}
	cfg := middleware.Config{
		SystemEvents: map[string]message.NoPublishHandlerFunc{
			"system.ping.1":  note("ping", nil),
			"system.panic.1": func(*message.Message) error { panic("x") },
			"system.exit.1":  func(*message.Message) error { runtime.Goexit(); return nil },
		},
		Debug: note("debug", errors.New("ignored")),
	}
	h := newHarness(t, cfg, func(*message.Message) ([]*message.Message, error) {
		handled = append(handled, "user")
		return nil, nil
	})
	with := func(key, value, payload string) *message.Message {
		m := message.NewMessage("u", []byte(payload))
		m.Metadata[key] = value
		return m
	}
	for _, tt := range []struct {
		m    *message.Message
		want string
	}{
		{with("x-event", "system.ping.1", ""), "ping"},
		{with("name", "system.ping.1", ""), "ping"},
		{with("amqp-type", "system.ping.1", ""), "ping"},
		{with("x-event", "system.panic.1", ""), ""},
		{with("x-event", "system.exit.1", ""), ""},
		{with("x-event", "invoice.created.1", ""), "user"},
		{with("system.is_debug", "true", ""), "debug"},
		{with("system.is_debug", "false", `{"system":{"is_debug":true}}`), "user"},
		{with("x", "y", `{"system":{"is_debug":true},"payload":{}}`), "debug"},
		{with("x", "y", `{"system":{"is_debug":1}}`), "debug"},
		{with("x", "y", `{"system":{"is_debug":"true"}}`), "debug"},
		{with("x", "y", `{"system":{"is_debug":false}}`), "user"},
		{with("x", "y", `{"text":"\"is_debug\""}`), "user"},
		{with("x", "y", `{"is_debug":true`), "user"},
	} {
		handled = nil
		acked := h.acked
		h.sendNow(tt.m)
		require.Equal(t, acked+1, h.acked, "acked, not retried: %v %s", tt.m.Metadata, tt.m.Payload)
		var want []string
		if tt.want != "" {
			want = []string{tt.want}
		}
		require.Equal(t, want, handled, "%v %s", tt.m.Metadata, tt.m.Payload)
	}
	require.Empty(t, h.rescheduled)
	require.Empty(t, h.letters)
}

func TestPipeline_OnUnknown(t *testing.T) {
	for outcome, check := range map[middleware.Outcome]func(*harness){
		middleware.OutcomeRetry:      func(h *harness) { require.Len(t, h.rescheduled, 1) },
		middleware.OutcomeDeadLetter: func(h *harness) { require.Equal(t, envelope.ReasonPermanent, h.letter().Reason) },
		middleware.OutcomeSkip:       func(h *harness) { require.Empty(t, h.letters); require.Empty(t, h.rescheduled) },
	} {
		h := newHarness(t, middleware.Config{HandlerConfig: middleware.HandlerConfig{OnUnknown: outcome}}, failing(errors.New("no idea")))
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

// B9, D42.
func TestPipeline_LogsEveryDecision(t *testing.T) {
	cfg := middleware.DelayedBackoff(3, s)
	h := newHarness(t, cfg, failing(fmt.Errorf("line one\nline two: %w", errTimeout)))
	h.origin.Exchange, h.origin.RoutingKey = "shop.bus", "order.reminder"
	m := order(t)
	envelope.SetDelay(m, 10*s)
	envelope.TakeDelay(m)
	h.sendNow(m)
	for _, field := range []string{
		`"level":"ERROR"`, `"msg":"attempt failed, retry scheduled"`, `"handler":"billing-handler"`, `"topic":"orders"`,
		`"exchange":"shop.bus"`, `"routing_key":"order.reminder"`, `"message_id":"` + m.Metadata[envelope.KeyMessageID],
		`"attempt":1`, `"max_attempts":4`, `"retry_count":0`, `"original_delay":10000000000`, `"delay":10000000000`,
		`"outcome":"retry"`, `"rule":"deadline exceeded"`, `"error":"line one\\nline two`, `"headers":{`, `"content":"{\"order\":7}"`,
	} {
		require.Contains(t, strings.ReplaceAll(h.logs.String(), `\\\"`, `\"`), field)
	}
}
