package envelope_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
)

var failedAt = time.Date(2026, 3, 1, 12, 0, 0, 5, time.UTC)

func TestRecordFailure_Binary(t *testing.T) {
	m := message.NewMessage("uuid-1", []byte("\x00 any bytes"))
	m.Metadata = message.Metadata{
		envelope.KeyMessageID: "id-1", envelope.KeyVersion: "1.0", envelope.KeyTimestamp: "2026-02-28T22:53:42+00:00",
		envelope.KeyQueue:      "orders",
		envelope.KeyRetryCount: "1", envelope.KeyFirstFailure: "2026-03-01T11:00:00Z", envelope.KeyOriginalDelay: "10000",
		envelope.KeyDeferredSince: "2026-03-01T11:30:00Z", envelope.KeyNotBefore: "1", envelope.KeyDelay: "5",
		"tenant":  "a\xff",
		"x-death": "[...]", "x-delivery-count": "3", "x-first-death-queue": "q", "x-last-death-reason": "expired",
		"x-acquired-count": "1",
	}
	failed := envelope.RecordFailure(m, envelope.Failure{
		Err: envelope.Error{Message: "line 1\nC:\\temp", Code: "500", Trace: "a\n\tb"}, Class: "*net.OpError", At: failedAt,
		Retry: 2,
	})
	require.Equal(t, "uuid-1", failed.UUID)
	require.Equal(t, m.Payload, failed.Payload)
	require.Equal(t, message.Metadata{
		envelope.KeyMessageID: "id-1", envelope.KeyVersion: "1.0", envelope.KeyTimestamp: "2026-02-28T22:53:42+00:00",
		envelope.KeyQueue:      "orders",
		envelope.KeyRetryCount: "2", envelope.KeyFirstFailure: "2026-03-01T11:00:00Z", envelope.KeyOriginalDelay: "10000",
		"tenant":                 "a\xff",
		envelope.KeyErrorMessage: `line 1\nC:\\temp`, envelope.KeyErrorCode: "500", envelope.KeyErrorTrace: `a\n\tb`,
		envelope.KeyErrorClass: "*net.OpError",
	}, failed.Metadata)
	require.Equal(t, "1", m.Metadata[envelope.KeyRetryCount], "the original is not touched")

	e, err := envelope.FromMessage(failed)
	require.NoError(t, err)
	require.Equal(t, &envelope.Error{Message: "line 1\nC:\\temp", Code: "500", Trace: "a\n\tb"}, e.Err())
}

// Only the last error is kept, even if it has fewer fields than the one before.
func TestRecordFailure_OnlyTheLastError(t *testing.T) {
	for _, m := range []*message.Message{
		message.NewMessage("u", []byte("x")),
		structuredMessage([]byte(envelopeBody(`1`, `{}`))),
	} {
		first := envelope.RecordFailure(m,
			envelope.Failure{Err: envelope.Error{Message: "first", Code: "1", Trace: "t"}, Class: "C", Retry: 1})
		second := envelope.RecordFailure(first, envelope.Failure{Err: envelope.Error{Message: "second"}, Retry: 2})
		e, err := envelope.FromMessage(second)
		require.NoError(t, err)
		require.Equal(t, &envelope.Error{Message: "second"}, e.Err())
		require.Equal(t, 2, e.RetryCount())
		require.NotContains(t, second.Metadata, envelope.KeyErrorClass)
		require.Equal(t, first.Metadata[envelope.KeyFirstFailure], second.Metadata[envelope.KeyFirstFailure])
	}
}

// A foreign message gets an identity at its first failure and keeps it.
func TestRecordFailure_ForeignMessageKeepsItsNewIdentity(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	m := message.NewMessage("", []byte("x"))
	m.SetContext(envelope.WithOrigin(t.Context(),
		&envelope.Origin{Broker: "kafka", Topic: "orders", Position: "3/1042", Timestamp: at}))
	failed := envelope.RecordFailure(m, envelope.Failure{At: failedAt, Retry: 1})
	again := envelope.RecordFailure(m, envelope.Failure{At: failedAt, Retry: 1})
	require.Equal(t, failed.Metadata, again.Metadata, "a redelivery gets the same id")

	later := envelope.RecordFailure(failed, envelope.Failure{At: failedAt.Add(time.Hour), Retry: 2})
	e, err := envelope.FromMessage(later)
	require.NoError(t, err)
	require.Equal(t, envelope.StableID(&envelope.Origin{Broker: "kafka", Topic: "orders", Position: "3/1042"}),
		e.MessageID())
	require.Equal(t, at, e.Timestamp().UTC())
	require.Equal(t, "orders", e.Queue())
	require.Equal(t, failedAt, e.FirstFailure())
}

func TestRecordFailure_DeadLetter(t *testing.T) {
	m := message.NewMessage("u", []byte("x"))
	failed := envelope.RecordFailure(m, envelope.Failure{
		Err: envelope.Error{Message: "invalid\r\nCPF"}, At: failedAt, Retry: 3,
		Reason: envelope.ReasonPermanent, Rule: "errors.As *ValidationError", Topic: "orders", Handler: "orders-handler",
		Subscriber: "mem",
	})
	for key, want := range map[string]string{
		envelope.KeyDeadLetterReason: "permanent", envelope.KeyDeadLetterRule: "errors.As *ValidationError",
		envelope.KeyConsumerError: `invalid\r\nCPF`, envelope.KeyPoisonReason: `invalid\r\nCPF`,
		envelope.KeyPoisonTopic:   "orders",
		envelope.KeyPoisonHandler: "orders-handler", envelope.KeyPoisonSubscriber: "mem", envelope.KeyRetryCount: "3",
	} {
		require.Equal(t, want, failed.Metadata[key], key)
	}
}

// An unreadable counter remains visible after it is replaced.
func TestRecordFailure_InvalidRetryCountIsKept(t *testing.T) {
	binary := withHeaders(message.Metadata{envelope.KeyRetryCount: "-1"})
	structured := structuredMessage([]byte(strings.Replace(envelopeBody(`1`, `{}`), `"retry_count":0`, `"retry_count":-1`,
		1)))
	for _, m := range []*message.Message{binary, structured} {
		failed := envelope.RecordFailure(m, envelope.Failure{Retry: 1})
		require.Equal(t, "-1", failed.Metadata[envelope.KeyInvalidRetryCount])
		c, err := envelope.ReadControl(failed)
		require.NoError(t, err)
		require.Equal(t, 1, c.RetryCount)
		require.False(t, c.RetryCountInvalid)
	}
}

func TestRecordFailure_RetryOutOfRange(t *testing.T) {
	m := message.NewMessage("u", nil)
	require.Equal(t, "0", envelope.RecordFailure(m, envelope.Failure{Retry: -1}).Metadata[envelope.KeyRetryCount])
	failed := envelope.RecordFailure(m, envelope.Failure{Retry: envelope.MaxRetryCount + 5})
	require.Equal(t, "1000000", failed.Metadata[envelope.KeyRetryCount])
}

// Our headers together stay below MaxHeaders, are UTF-8 on one line, and mark where they were cut.
func TestRecordFailure_TextsAreBounded(t *testing.T) {
	for name, text := range map[string]string{
		"ASCII": "a", "two bytes": "é", "three bytes": "€", "four bytes": "😀", "invalid": "\xff",
		"alternately invalid": "a\xff",
		"half a rune":         "\xe2\x82", "new lines": "\n", "NUL": "\x00", "backslashes": `\`,
		"replacement characters": "\ufffd",
	} {
		for _, size := range []int{1, 255, 256, 1023, 1024, 1025, 4096, 4097, 1 << 20} {
			long := strings.Repeat(text, size/len(text)+1)
			m := message.NewMessage(long, []byte("x"))
			m.SetContext(envelope.WithOrigin(t.Context(), &envelope.Origin{Topic: long}))
			failed := envelope.RecordFailure(m, envelope.Failure{
				Err: envelope.Error{Message: long, Code: long, Trace: long}, Class: long, Retry: 1,
				Reason: envelope.Reason(long), Rule: long, Handler: long, Topic: long, Subscriber: long,
			})
			total := 0
			for key, value := range failed.Metadata {
				total += len(key) + len(value)
				require.True(t, utf8.ValidString(value), "%s %s %d", name, key, size)
				require.NotContains(t, value, "\n", key)
				require.NotContains(t, value, "\r", key)
				require.NotContains(t, value, "\x00", key)
			}
			require.LessOrEqual(t, total, envelope.MaxHeaders)
			require.LessOrEqual(t, len(failed.Metadata[envelope.KeyErrorMessage]), envelope.MaxErrorMessage)
			require.LessOrEqual(t, len(failed.Metadata[envelope.KeyErrorTrace]), envelope.MaxErrorTrace)
			if size > envelope.MaxErrorTrace {
				require.Contains(t, failed.Metadata[envelope.KeyErrorMessage], "...", name)
				require.Contains(t, failed.Metadata[envelope.KeyErrorTrace], "...", name)
				require.Contains(t, failed.Metadata[envelope.KeyErrorClass], "...", name)
			}

			body := envelopeBody(`1`, `{}`)
			structured := envelope.RecordFailure(structuredMessage([]byte(body)), envelope.Failure{
				Err: envelope.Error{Message: long, Code: long, Trace: long}, Class: long, Retry: 1,
				Reason: envelope.Reason(long), Rule: long, Handler: long, Topic: long, Subscriber: long,
			})
			e, err := envelope.FromMessage(structured)
			require.NoError(t, err)
			total = len(structured.Payload) - len(body)
			for key, value := range structured.Metadata {
				total += len(key) + len(value)
			}
			const headroom = 20 << 10 // driver.Headroom, by which a broker lets a retry be larger than the first publication
			require.Less(t, total, headroom, "%s %d", name, size)
			require.LessOrEqual(t, len(e.Err().Message), envelope.MaxErrorMessage)
			require.LessOrEqual(t, len(e.Err().Trace), envelope.MaxErrorTrace)
		}
	}
}

func TestRecordDeferral(t *testing.T) {
	for _, m := range []*message.Message{
		message.NewMessage("u", []byte("x")),
		structuredMessage([]byte(envelopeBody(`1`, `{}`))),
	} {
		first := envelope.RecordDeferral(m, failedAt)
		second := envelope.RecordDeferral(first, failedAt.Add(time.Minute))
		since, ok := envelope.DeferredSince(second)
		require.True(t, ok)
		require.Equal(t, failedAt, since, "the row began with the first")
		c, err := envelope.ReadControl(second)
		require.NoError(t, err)
		require.Zero(t, c.RetryCount, "no attempt is consumed")
		require.Equal(t, m.Payload, second.Payload)

		failed := envelope.RecordFailure(second, envelope.Failure{Retry: 1})
		_, ok = envelope.DeferredSince(failed)
		require.False(t, ok, "an attempt ends the row")
	}
}

func TestPrepareRedrive(t *testing.T) {
	for _, m := range []*message.Message{
		message.NewMessage("u", []byte("x")),
		structuredMessage([]byte(envelopeBody(`1`, `{"tenant":"a"}`))),
	} {
		envelope.SetDelay(m, 10*time.Second)
		_, asked := envelope.TakeDelay(m)
		require.True(t, asked)
		dead := envelope.RecordFailure(m,
			envelope.Failure{Err: envelope.Error{Message: "boom"}, Retry: 4, Reason: envelope.ReasonExhausted})
		before, err := envelope.FromMessage(dead)
		require.NoError(t, err)

		again := envelope.PrepareRedrive(dead, envelope.Redrive{ID: "17", Count: 2, Run: "run-1"})
		c, err := envelope.ReadControl(again)
		require.NoError(t, err)
		require.Equal(t, "17", c.RedriveID)
		require.Equal(t, before.MessageID(), c.MessageID)
		require.Zero(t, c.RetryCount)
		require.Equal(t, 10*time.Second, c.OriginalDelay)
		require.Equal(t, 2, envelope.RedriveCount(again))
		require.Equal(t, "run-1", again.Metadata[envelope.KeyRedriveRun])
		_, failed := envelope.FirstFailure(again)
		require.False(t, failed)
		for _, key := range []string{
			envelope.KeyDeadLetterReason, envelope.KeyConsumerError, envelope.KeyPoisonReason,
			envelope.KeyPoisonTopic,
		} {
			require.NotContains(t, again.Metadata, key)
		}
		after, err := envelope.FromMessage(again)
		require.NoError(t, err)
		require.Equal(t, before.Data(), after.Data())
		require.Equal(t, before.Metadata(), after.Metadata())
	}
}

func TestRedriveCount_Unreadable(t *testing.T) {
	require.Zero(t, envelope.RedriveCount(withHeaders(message.Metadata{envelope.KeyRedriveCount: "-3"})))
	require.Zero(t, envelope.RedriveCount(withHeaders(nil)))
}

// A message that a handler derives from its own starts without attempts, in either mode; a counter that the handler has
// set itself stays.
func TestStartOver(t *testing.T) {
	binary := message.NewMessage("u", []byte("x"))
	binary.Metadata = message.Metadata{"tenant": "a", envelope.KeyOriginalDelay: "10000"}
	structured := structuredMessage([]byte(envelopeBody(`1`, `{"tenant":"a"}`)))
	for name, m := range map[string]*message.Message{"binary": binary, "structured": structured} {
		t.Run(name, func(t *testing.T) {
			failed := envelope.RecordFailure(envelope.RecordDeferral(m, failedAt),
				envelope.Failure{Err: envelope.Error{Message: "e", Code: "1", Trace: "t"}, Class: "C", Retry: 2})
			failed = envelope.RecordDeferral(failed, failedAt)
			failed.Metadata[envelope.KeyRedriveID], failed.Metadata[envelope.KeyRedriveCount] = "9", "1"
			control, err := envelope.ReadControl(failed)
			require.NoError(t, err)
			require.Equal(t, []int{2, 1}, []int{control.RetryCount, control.RedriveCount})

			again := failed.Copy()
			envelope.StartOver(again, &control)
			now, err := envelope.ReadControl(again)
			require.NoError(t, err)
			require.Equal(t, envelope.Control{
				Mode: control.Mode, MessageID: control.MessageID,
				OriginalDelay: control.OriginalDelay,
			}, now)
			_, deferred := envelope.DeferredSince(again)
			_, hasFailed := envelope.FirstFailure(again)
			require.False(t, deferred || hasFailed)
			e, err := envelope.FromMessage(again)
			require.NoError(t, err)
			require.Nil(t, e.Err())
			require.NotEmpty(t, failed.Metadata[envelope.KeyRedriveID], "a map that others may share is not changed")

			kept, later := failed.Copy(), control // kept by a guard since an earlier attempt
			later.RetryCount++
			envelope.StartOver(kept, &later)
			now, err = envelope.ReadControl(kept)
			require.NoError(t, err)
			require.Zero(t, now.RetryCount)

			other := m.Copy()
			other.Metadata[envelope.KeyErrorMessage] = "of a report"
			bytes, headers := slices.Clone(other.Payload), maps.Clone(other.Metadata)
			envelope.StartOver(other, &control)
			require.Equal(t, bytes, other.Payload)
			require.Equal(t, headers, other.Metadata)

			counting := envelope.RecordFailure(failed, envelope.Failure{Retry: 3})
			envelope.StartOver(counting, &control)
			now, err = envelope.ReadControl(counting)
			require.NoError(t, err)
			require.Equal(t, 3, now.RetryCount)
		})
	}

	m := message.NewMessage("u", []byte("x"))
	m.Metadata[envelope.KeyRetryCount] = "many"
	control, err := envelope.ReadControl(m)
	require.NoError(t, err)
	envelope.StartOver(m, &control)
	require.Empty(t, m.Metadata)
}

// A message without an id is identified by its position, which every retry and redrive changes.
func TestNextDelivery_KeepsTheIDOfItsPosition(t *testing.T) {
	at := func(m *message.Message, id string) *message.Message {
		m = m.Copy()
		m.SetContext(envelope.WithOrigin(t.Context(), &envelope.Origin{Broker: "kafka", Topic: "orders", Position: id}))
		return m
	}
	const body = `{"message_id":%s,"timestamp":"","version":"1.0","source":"","queue":"orders","data":%s}`
	for payloadName, payload := range map[string]string{
		"binary":        "x",
		"empty id":      fmt.Sprintf(body, `""`, "1"),
		"id is null":    fmt.Sprintf(body, "null", "1"),
		"malformed":     fmt.Sprintf(body, "{}", "1"),
		"not even JSON": fmt.Sprintf(body, `""`, ""),
	} {
		for name, next := range map[string]func(m *message.Message) *message.Message{
			"failure": func(m *message.Message) *message.Message {
				return envelope.RecordFailure(m, envelope.Failure{Retry: 1})
			},
			"deferral": func(m *message.Message) *message.Message { return envelope.RecordDeferral(m, time.Now()) },
			"redrive": func(m *message.Message) *message.Message {
				dead := envelope.RecordFailure(m, envelope.Failure{Retry: 1, Reason: envelope.ReasonExhausted})
				return envelope.PrepareRedrive(dead, envelope.Redrive{ID: "e", Count: 1})
			},
		} {
			t.Run(name+"/"+payloadName, func(t *testing.T) {
				first := at(message.NewMessage("", []byte(payload)), "0-1")
				id := envelope.Identify(first)
				require.NotEmpty(t, id)
				second := at(next(first), "1-7")
				require.Equal(t, id, envelope.Identify(second))
				require.Equal(t, id, envelope.Identify(at(next(second), "1-8")))
			})
		}
	}
}
