package middleware_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

// The message is retried and dead-lettered as it was received, whatever the handler did to it.
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
		"replaces the context": func(m *message.Message) {
			ctx, stop := context.WithCancel(m.Context())
			stop()
			m.SetContext(ctx)
		},
		"changes nothing": func(*message.Message) {},
	}
	for name, change := range changes {
		for outcome, err := range map[string]error{
			"retry": errTimeout, "dead letter": middleware.Permanent(errTimeout),
			"panic": nil,
		} {
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

// Hostile counters: one run and no retries, never a reset to 0.
func TestPipeline_UnreadableRetryCount(t *testing.T) {
	for _, text := range []string{
		"-1", "+3", " 3", "1e99", "abc", "9223372036854775808", "3.7", "NaN", "", "0x10",
		"1000001",
	} {
		t.Run(text, func(t *testing.T) {
			h := newHarness(t, middleware.Config{}, failing(errTimeout))
			m := order(t)
			m.Metadata[envelope.KeyRetryCount] = text
			h.sendNow(m)
			require.Len(t, h.runs, 1)
			require.Empty(t, h.rescheduled)
			require.Equal(t, envelope.ReasonExhausted, h.letter().Reason)
			require.Equal(t, text, h.letter().Message.Metadata[envelope.KeyInvalidRetryCount])
			require.Contains(t, h.logs.String(), `"level":"WARN","msg":"message has invalid control headers`)
		})
	}
}

// The line names what is invalid: it named Watermill's header for ours, and an empty one for a counter in the body.
func TestPipeline_LogsWhatIsInvalid(t *testing.T) {
	const body = `{"message_id":"1","timestamp":"2026-02-28T22:53:42+00:00","version":"1.0","source":"a","queue":"o",` +
		`"data":{},"retry_count":-7}`
	original := foreign("", envelope.KeyOriginalDelay, "abc", envelope.KeyDelay, "5")
	for want, m := range map[string]*message.Message{
		`"x-delay":"abc","original_delay":0`:                                      foreign("", envelope.KeyDelay, "abc"),
		`"x-original-delay":"abc","original_delay":0`:                             original,
		`"_watermill_delayed_for":"abc","original_delay":0`:                       foreign("", envelope.KeyWatermillDelayedFor, "abc"),
		`"x-retry-count":"abc","retries":"none`:                                   foreign("", envelope.KeyRetryCount, "abc"),
		`"message_id":"1","retry_count":"-7","retries":"none`:                     foreign(body),
		`"message_id":"1","retry_count":"-7","retries":"none: an unknown counter`: foreign(body, envelope.KeyRetryCount, "3"),
	} {
		h := newHarness(t, middleware.Config{}, succeed)
		h.sendNow(m)
		require.Contains(t, h.logs.String(), want)
	}
}

// foreign is a message of another producer, with these headers.
func foreign(payload string, headers ...string) *message.Message {
	m := message.NewMessage("1", []byte(payload))
	for i := 0; i < len(headers); i += 2 {
		m.Metadata[headers[i]] = headers[i+1]
	}
	return m
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
			h := newHarness(t, middleware.Config{MaxAttempts: 100}, failing(errTimeout))
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

// A body that claims to be an envelope and cannot be read is dead-lettered with its exact bytes; the handler never sees
// it.
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
