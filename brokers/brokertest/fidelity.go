package brokertest

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

// payloads are ones that a store, an encoding or a careless copy might change.
func payloads() map[string][]byte {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	random := make([]byte, 64<<10)
	_, _ = rand.Read(random) // crypto/rand.Read never fails
	return map[string][]byte{
		"JSON":            []byte(`{"b": 1, "a": 9007199254740993, "a": 1e400, "u": "\ud800"}`),
		"truncated JSON":  []byte(`{"order": {"id": 1, "items": [`),
		"empty":           {},
		"NUL":             {0},
		"every byte":      every,
		"invalid UTF-8":   []byte("\xff\xfe caf\xe9"),
		"CR LF":           []byte("a\r\nb\n\rc"),
		"deep nesting":    bytes.Repeat([]byte("["), 20_000),
		"64 KiB of noise": random,
	}
}

// Dead letters can be reprocessed, byte for byte.
func (w *world) TestPayloads_SurviveRetryAndDeadLetter() {
	b, topic := w.openTopic("orders")
	c := w.consume(b, topic, middleware.Config{MaxAttempts: 2, Backoff: w.steps(time.Second)}, fails)

	want := payloads()
	var batch []*message.Message
	for name, payload := range want {
		batch = append(batch, newMessage(string(payload), "case", name))
	}
	w.publish(b, topic, batch...)
	for _, r := range c.waitRuns(2 * len(batch)) {
		requireSameBytes(w, want, r.Message)
	}
	for _, m := range w.deadLetters(b, topic, len(batch)) {
		requireSameBytes(w, want, m)
	}
}

func requireSameBytes(w *world, want map[string][]byte, m *message.Message) {
	w.Helper()
	name := m.Metadata.Get("case")
	require.Contains(w, want, name)
	require.True(w, bytes.Equal(want[name], m.Payload), "%s: %d bytes were returned as %d: %.80q", name, len(want[name]),
		len(m.Payload), m.Payload)
}

// headers are those of other systems and of Watermill's own components.
var foreignHeaders = map[string]string{
	"correlation_id":     "abc-123",
	"traceparent":        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	"name":               "orders.OrderPlaced",
	"priority":           "high",
	"Content-Type":       "application/json; charset=utf-8",
	"x-tenant":           "ação & naïve ☃",
	"empty":              "",
	"a.key/with:signs ~": "v",
	"long":               strings.Repeat("x", 4000),
}

func (w *world) TestHeaders_SurviveRetryAndDeadLetter() { w.headersSurvive(foreignHeaders) }

// Header values are bytes on AMQP and Kafka; a store with text columns must not change them.
func (w *world) TestHeaders_OfAnyBytesSurvive() {
	w.headersSurvive(map[string]string{
		"latin": "caf\xe9", "nul": "a\x00b", "lines": "a\r\nx-admin: true", "quotes": `"\u0000'; --`,
	})
}

func (w *world) headersSurvive(headers map[string]string) {
	m := newMessage("order")
	for k, v := range headers {
		m.Metadata.Set(k, v)
	}
	for i, m := range w.untilDead(m, 3) {
		for k, v := range headers {
			require.Equal(w, v, m.Metadata[k], "header %q of delivery %d", k, i)
			require.Contains(w, m.Metadata, k)
		}
	}
}

// untilDead publishes m to a handler that fails n times, and returns the dead letter followed by the message of each
// run.
func (w *world) untilDead(m *message.Message, n int) []*message.Message {
	b, topic := w.openTopic("orders")
	c := w.consume(b, topic, middleware.Config{MaxAttempts: n, Backoff: w.steps(0, time.Second)}, fails)
	w.publish(b, topic, m)
	found := append(w.deadLetters(b, topic, 1), mapped(c.seen(), func(r run) *message.Message { return r.Message })...)
	require.Len(w, found, n+1)
	return found
}

// A message has the same id from creation to the dead letter queue.
func (w *world) TestMessageID_IsStableAcrossRetries() {
	m := newMessage("order")
	for _, again := range w.untilDead(m, 4) {
		e, err := envelope.FromMessage(again)
		require.NoError(w, err)
		require.Equal(w, m.UUID, e.MessageID())
		require.Equal(w, m.UUID, again.UUID)
	}
}

// A header of 140 KB kills an AMQP connection, and nears the limit of a Kafka record.
func (w *world) TestErrorText_OfAnySizeIsDeadLettered() {
	b, topic := w.openTopic("orders")
	fail := errors.New(strings.Repeat("é", 100_000))
	c := w.consume(b, topic, middleware.Config{MaxAttempts: 2, Backoff: middleware.None()}, failsOn("bad", fail))
	w.publish(b, topic, newMessage("bad"))
	dead := w.deadLetters(b, topic, 1)[0]
	require.Equal(w, "bad", string(dead.Payload))
	require.LessOrEqual(w, len(dead.Metadata.Get(envelope.KeyErrorMessage)), 1024)

	w.publish(b, topic, newMessage("good"))
	c.wait("the next message", func(runs []run) bool { return runs[len(runs)-1].payload() == "good" })
}

// A program that reads a dead letter from a queue, later and in another process, can send it back to the consumer that
// failed and to no other: its headers identify that consumer, even if the sender had set them.
func (w *world) TestDeadLetters_NameTheirConsumer() {
	billing, mail := w.open(), w.open(group("mail"))
	topic := w.topic("orders")
	var fixed atomic.Bool
	once := middleware.Config{MaxAttempts: 1}
	failing := w.consume(billing, topic, once, failsUntil(&fixed))
	healthy := w.consume(mail, topic, once, succeeds)
	w.publish(mail, topic, newMessage("order", envelope.KeyConsumer, "payments", envelope.KeyTopic, "payments"))

	dead := w.deadLetters(billing, topic, 1)[0]
	origin := failing.waitRuns(1)[0].Origin
	require.Equal(w, topic, dead.Metadata.Get(envelope.KeyTopic))
	require.Equal(w, origin.Consumer, dead.Metadata.Get(envelope.KeyConsumer))
	require.NotEmpty(w, dead.Metadata.Get(envelope.KeyDeadLetterReason))
	if billing.Capabilities().Groups {
		healthy.waitRuns(1)
	}

	fixed.Store(true)
	back := envelope.Origin{
		Broker: origin.Broker, Topic: dead.Metadata.Get(envelope.KeyTopic),
		Consumer: dead.Metadata.Get(envelope.KeyConsumer),
	}
	again := envelope.PrepareRedrive(dead, envelope.Redrive{ID: "1", Count: 1})
	require.NoError(w, w.open(group("operator")).Reschedule(w.Context(), back, again, 0))
	require.Equal(w, "order", failing.exactly(2)[1].payload())
	if billing.Capabilities().Groups {
		require.Len(w, healthy.seen(), 1, "the other consumer gets the message once")
	}
}

// triedSize is the largest message that the cases about the largest messages publish.
const triedSize = 17 << 20

func (w *world) TestLargest_PayloadIsRetriedAndDeadLettered() {
	b := w.open()
	w.largest(b, w.topic("orders"), b.Capabilities().MaxMessageBytes, sizedPayload)
}

func sizedPayload(n int64) *message.Message { return newMessage(strings.Repeat("x", int(n))) }

// A reader of dead letters, such as a collector, may start before there is one. The queue that it creates must have
// room for the largest message.
func (w *world) TestLargest_IsDeadLetteredToAQueueThatWasReadFirst() {
	b, topic := w.openTopic("orders")
	w.read(b, brokers.NameScheme{}.For(topic, defaultGroup).Dead, 0)
	w.largest(b, topic, b.Capabilities().MaxMessageBytes, sizedPayload)
}

func (w *world) TestLargest_HeadersAreRetriedAndDeadLettered() {
	b := w.open()
	w.largest(b, w.topic("orders"), b.Capabilities().MaxHeaderBytes, func(n int64) *message.Message {
		return newMessage("large", "note", strings.Repeat("x", int(n)))
	})
}

// A foreign producer may have stored a message that the broker accepts from it but not from us: it cannot be retried,
// and is dead-lettered to the first sink that has room. Those behind it are handled.
func (w *world) TestLargest_WithoutRoomForARetryIsDeadLettered() {
	b, topic := w.openTopic("orders")
	tooLarge := fmt.Errorf("the message: %w", brokers.ErrTooLarge)
	c := w.consume(b, topic, middleware.Config{
		MaxAttempts: 3, Backoff: w.steps(0),
		Rescheduler: middleware.ReschedulerFunc(
			func(context.Context, envelope.Origin, *message.Message, time.Duration) error {
				return tooLarge
			}),
		DeadLetters: middleware.Sinks{middleware.DeadLetterFunc(func(context.Context, *envelope.DeadLetter) error {
			return tooLarge
		}), b},
	}, failsOn("foreign", errFails))
	w.publish(b, topic, newMessage("foreign"), newMessage("next"))
	require.Equal(w, "foreign", string(w.deadLetters(b, topic, 1)[0].Payload))
	c.exactly(2)
}

// largest publishes the largest message that the broker accepts, to within 64 bytes, to a handler that panics with a
// long reason. Every published message can be retried and dead-lettered, and the message behind it is handled.
func (w *world) largest(b brokers.Broker, topic string, limit int64, sized func(int64) *message.Message) {
	w.Helper()
	w.skipIf(limit == 0 || limit > triedSize, "the broker has no limit, or one too large to test")
	dies := make(chan struct{}, 1)
	c := w.consume(b, topic, middleware.Config{
		MaxAttempts: 2, Backoff: w.steps(0),
		Hooks: middleware.Hooks{OnDeadLetter: func(context.Context, middleware.DeadLetterParams) error {
			dies <- struct{}{}
			return nil
		}},
	}, func(r run) error {
		if r.payload() == "next" {
			return nil
		}
		panic(strings.Repeat("the reason is as long as possible ", 1000)) // plus its stack
	})

	n, p := limit, b.Publisher()
	large := sized(n)
	for p.Publish(topic, large) != nil {
		n -= 64
		require.Greater(w, n, limit-16<<10, "nothing near the limit can be published")
		large = sized(n)
	}
	w.publish(b, topic, newMessage("next"))

	receive(w, dies, "the largest message to be handled or dead-lettered")
	dead := w.deadLetters(b, topic, 1)[0]
	require.Equal(w, large.UUID, dead.UUID)
	require.True(w, bytes.Equal(large.Payload, dead.Payload), "the payload is unchanged") // Equal would print both
	require.Equal(w, large.Metadata.Get("note"), dead.Metadata.Get("note"))
	var attempts []int
	for _, r := range c.waitRuns(3) {
		if r.id() == large.UUID {
			attempts = append(attempts, r.Attempt)
		}
	}
	require.Equal(w, []int{1, 2}, attempts)
}
