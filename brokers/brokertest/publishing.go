package brokertest

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

// newMessage returns a message with these headers, in pairs of key and value.
func newMessage(payload string, headers ...string) *message.Message {
	m := message.NewMessage(watermill.NewUUID(), []byte(payload))
	for pair := range slices.Chunk(headers, 2) {
		m.Metadata.Set(pair[0], pair[1])
	}
	return m
}

// delayed returns a message with a first-delivery delay.
func delayed(payload string, d time.Duration) *message.Message {
	m := newMessage(payload)
	envelope.SetDelay(m, d)
	return m
}

func batchOf(n int, payload string) []*message.Message {
	batch := make([]*message.Message, n)
	for i := range batch {
		batch[i] = newMessage(payload)
	}
	return batch
}

// batch returns n messages whose payloads end in the digits 0 to 9 in turn.
func (w *world) batch(n int) []*message.Message {
	batch := make([]*message.Message, n)
	for i := range batch {
		batch[i] = newMessage(strconv.Itoa(i))
	}
	return batch
}

func (w *world) TestPublish_CopiesItsMessages() {
	b, topic := w.openTopic("orders")
	gate, open := w.gate()
	c := w.consume(b, topic, middleware.Config{Backoff: middleware.None()}, failsIf(func(r run) bool {
		<-gate
		return r.Attempt == 1
	}))
	m := newMessage("as published", "k", "as published")
	w.publish(b, topic, m)
	m.Payload[0] = 'X'
	m.Metadata.Set("k", "changed")
	open()
	for _, r := range c.waitRuns(2) {
		require.Equal(w, "as published", r.payload())
		require.Equal(w, "as published", r.Message.Metadata.Get("k"))
	}
}

func (w *world) TestPublish_IsSafeForConcurrentUse() {
	b, topic := w.openTopic("orders", concurrency(8))
	c := w.consume(b, topic, middleware.Config{}, succeeds)

	const publishers, each = 16, 10
	p := b.Publisher()
	batches := make([][]*message.Message, publishers)
	var publishing sync.WaitGroup
	for i := range batches {
		batches[i] = w.batch(each)
		publishing.Go(func() { assert.NoError(w, p.Publish(topic, batches[i]...)) })
	}
	publishing.Wait()
	require.ElementsMatch(w, ids(slices.Concat(batches...)), runIDs(c.exactly(publishers*each)))
}

// Every message that Publish did not refuse is delivered to a later consumer.
func (w *world) TestPublish_WithoutAConsumerStoresOrRefuses() {
	b, topic := w.openTopic("orders")
	if err := b.Publisher().Publish(topic, newMessage("early")); err != nil {
		require.ErrorIs(w, err, brokers.ErrUnroutable)
		return
	}
	c := w.consume(b, topic, middleware.Config{}, succeeds)
	require.Equal(w, "early", c.waitRuns(1)[0].payload())
}

func (w *world) TestPublish_OfATooLargeMessageIsRefused() {
	b := w.open()
	limit := b.Capabilities().MaxMessageBytes
	w.skipIf(limit == 0 || limit > 64<<20, "the broker has no limit, or one too large to test")
	topic := w.topic("orders")
	c := w.consume(b, topic, middleware.Config{}, succeeds)
	large := message.NewMessage("large", make([]byte, limit+1))
	require.ErrorIs(w, b.Publisher().Publish(topic, large), brokers.ErrTooLarge)
	require.ErrorIs(w, brokers.Require(b, brokers.Needs{MessageBytes: limit + 1}), brokers.ErrUnsupported)

	w.publish(b, topic, newMessage("next"))
	runs := c.waitRuns(1)
	require.Equal(w, "next", runs[0].payload())
	require.ErrorIs(w, b.Reschedule(w.Context(), runs[0].Origin, large, time.Second), brokers.ErrTooLarge)
}

func (w *world) TestPublish_OfNoMessagesSucceeds() {
	require.NoError(w, w.open().Publisher().Publish(w.topic("orders")))
}

// A router publishes a handler's messages after the pipeline has returned. If that fails, the attempt has failed: it is
// counted, retried and dead-lettered, and never reported as a success.
func (w *world) TestProduced_UnpublishableMessageFailsTheAttempt() {
	b, topic := w.openTopic("orders")
	closed := w.open()
	refusing := closed.Publisher()
	require.NoError(w, closed.Close())
	succeeded := make(chan struct{}, 100)
	c := w.newConsumer(b, middleware.Config{
		MaxAttempts: 3, Backoff: w.steps(time.Second),
		Observer: finished{successes: succeeded},
	})
	c.router.AddHandler("handler", topic, b.Subscriber(), w.topic("invoices"), refusing,
		func(m *message.Message) ([]*message.Message, error) {
			c.record(m)
			return []*message.Message{newMessage("invoice"), newMessage("receipt")}, nil
		})
	c.start()
	w.publish(b, topic, newMessage("order"))

	require.Equal(w, "order", string(w.deadLetters(b, topic, 1)[0].Payload))
	for i, r := range c.exactly(3) {
		require.Equal(w, i+1, r.Attempt)
	}
	require.Empty(w, succeeded)
}

// A handler may return its message, a copy of it, or another with its headers. The next consumer has all its attempts
// left, no matter how many the handler has used.
func (w *world) TestProduced_CopiesStartAtTheFirstAttempt() {
	b := w.open()
	topic, next := w.topic("orders"), w.topic("enriched")
	cfg := middleware.Config{MaxAttempts: 3, Backoff: w.steps(100 * time.Millisecond)}
	second := w.consume(b, next, cfg, failsBefore(2))
	first := w.newConsumer(b, cfg)
	first.router.AddHandler("handler", topic, b.Subscriber(), next, b.Publisher(),
		func(m *message.Message) ([]*message.Message, error) {
			if first.record(m).Attempt < 3 {
				return nil, errFails
			}
			headers := newMessage("headers")
			headers.Metadata = m.Metadata
			return []*message.Message{m.Copy(), headers, m}, nil
		})
	first.start()
	w.publish(b, topic, newMessage("order"))

	attempts := map[int]int{}
	for _, r := range second.exactly(6) {
		attempts[r.Attempt]++
		if r.Attempt == 1 {
			for _, key := range []string{envelope.KeyErrorMessage, envelope.KeyFirstFailure} {
				require.NotContains(w, r.Message.Metadata, key)
			}
		}
	}
	require.Equal(w, map[int]int{1: 3, 2: 3}, attempts)
	require.Len(w, first.seen(), 3)
}

// finished counts the successes reported by a pipeline.
type finished struct {
	middleware.NopObserver

	successes chan struct{}
}

// Finished implements middleware.Observer.
func (f finished) Finished(_ context.Context, e middleware.Finished) {
	if e.Outcome == middleware.OutcomeSuccess {
		f.successes <- struct{}{}
	}
}

// hostile are headers with which a sender could make a message loop forever, misroute it, or break the connection.
var hostile = map[string]map[string]string{
	"negative count":      {envelope.KeyRetryCount: "-1"},
	"signed count":        {envelope.KeyRetryCount: "+3"},
	"spaced count":        {envelope.KeyRetryCount: " 3"},
	"huge count":          {envelope.KeyRetryCount: "1e99"},
	"text count":          {envelope.KeyRetryCount: "abc"},
	"overflowing count":   {envelope.KeyRetryCount: "9223372036854775808"},
	"fractional count":    {envelope.KeyRetryCount: "3.7"},
	"NaN count":           {envelope.KeyRetryCount: "NaN"},
	"text delay":          {envelope.KeyDelay: "abc"},
	"negative delay":      {envelope.KeyDelay: "-5"},
	"text original delay": {envelope.KeyOriginalDelay: "soon"},
	"huge original delay": {envelope.KeyOriginalDelay: "99999999999999999999"},
	"Watermill's delay":   {envelope.KeyWatermillDelayedFor: "never", envelope.KeyWatermillDelayedUntil: "never"},
	"text not-before":     {envelope.KeyNotBefore: "tomorrow"},
	"past not-before":     {envelope.KeyNotBefore: "0"},
	"future not-before":   {envelope.KeyNotBefore: "4102444800000"}, // the year 2100
	"future deferral":     {envelope.KeyDeferredSince: "2100-01-01T00:00:00Z"},
	"another consumer":    {envelope.KeyConsumer: "payments", envelope.KeyTopic: "payments"},
	"misrouting":          {"CC": "payments", "BCC": "payments", "user_id": "root", "expiration": "1"},
	"broker-made": {
		"x-death": "[]", "x-first-death-queue": "payments", "x-delivery-count": "99", "x-acquired-count": "99",
	},
	"claims to be an entry": {envelope.KeyRedriveID: strings.Repeat("9", 300), envelope.KeyRedriveCount: "-1"},
	"a key of 200 bytes":    {strings.Repeat("k", 200): "v"},
	"lines":                 {"x-note": "a\r\nx-retry-count: 0"},
	"Watermill's poison":    {envelope.KeyPoisonReason: "x", envelope.KeyPoisonTopic: "payments"},
	"unknown version":       {envelope.KeyVersion: "99.0-\x01"},
	"unreadable times": {
		envelope.KeyTimestamp: "yesterday", envelope.KeyFirstFailure: "later", envelope.KeyDeferredSince: "?",
	},
	"types of other headers": {envelope.KeyHeaderTypes: "{not JSON"},
}

// Every hostile message is dead-lettered after a bounded number of runs, with its payload, and the messages behind it
// are handled.
func (w *world) TestHostileHeaders_EndInTheDeadLetters() {
	b, topic := w.openTopic("orders")
	const attempts = 3
	c := w.consume(b, topic, middleware.Config{
		MaxAttempts: attempts,
		Backoff:     middleware.WithCap(middleware.FromOriginalDelay(w.scaled(time.Second)), w.scaled(2*time.Second)),
	}, failsIf(func(r run) bool { return r.payload() != "good" }))

	var batch []*message.Message
	for name, headers := range hostile {
		m := newMessage(name)
		for k, v := range headers {
			m.Metadata.Set(k, v)
		}
		batch = append(batch, m)
	}
	w.publish(b, topic, batch...)
	w.publish(b, topic, newMessage("good"))

	dead := w.deadLetters(b, topic, len(hostile))
	c.wait("the good message", func(runs []run) bool {
		return slices.ContainsFunc(runs, func(r run) bool { return r.payload() == "good" })
	})
	found := map[string]int{}
	for _, m := range dead {
		found[string(m.Payload)]++
	}
	times := map[string]int{}
	for _, r := range c.seen() {
		times[r.payload()]++
	}
	for name := range hostile {
		require.Equal(w, 1, found[name], "dead letters of %q", name)
		require.LessOrEqual(w, times[name], attempts, "runs of %q", name)
	}
}

// malformed are bodies that claim to be envelopes but are not.
var malformed = map[string]string{
	"empty":         "",
	"truncated":     `{"message_id": "1", "data": {"order": `,
	"not an object": `[1, 2, 3]`,
	"binary":        "\x00\xff\xfe",
	"deep":          strings.Repeat(`{"data":`, 20_000),
}

// They reach no handler, are not redelivered forever, and are dead-lettered unchanged.
func (w *world) TestMalformedEnvelopes_AreDeadLetteredUnchanged() {
	b, topic := w.openTopic("orders")
	c := w.consume(b, topic, middleware.Config{}, succeeds)
	var batch []*message.Message
	for name, body := range malformed {
		batch = append(batch, newMessage(body, envelope.KeyContentType, envelope.ContentType, "case", name))
	}
	w.publish(b, topic, batch...)
	w.publish(b, topic, newMessage("good"))

	for _, m := range w.deadLetters(b, topic, len(batch)) {
		name := m.Metadata.Get("case")
		require.Contains(w, malformed, name)
		require.Equal(w, malformed[name], string(m.Payload), "bytes of the %s body", name)
		require.Equal(w, string(envelope.ReasonMalformed), m.Metadata.Get(envelope.KeyDeadLetterReason))
	}
	require.Equal(w, "good", c.waitRuns(1)[0].payload())
}

// A foreign producer that copies the headers of a retry, and marks its messages as suspects, has all of them handled at
// once: none is a copy of that retry, and none waits until it can run alone.
func (w *world) TestForeign_MarksOfTheEngineAreIgnored() {
	w.skipIf(w.backend.Foreign == nil, "no foreign producer can publish")
	const n = 4
	b, atOnce := w.openFor(n)
	topic := w.topic("orders")
	gate, open := w.gate()
	c := w.consume(b, topic, middleware.Config{}, waitsFor(gate))
	for range n {
		m := message.NewMessage("copied", []byte("order"))
		m.Metadata.Set(envelope.KeyStage, "r"+strings.Repeat("A", 20))
		m.Metadata.Set(envelope.KeySuspect, "0!")
		require.NoError(w, w.backend.Foreign(w.T, topic, m))
	}
	c.waitRuns(atOnce)
	open()
	c.waitRuns(n)
}

// A foreign producer may store a message that is a little larger than ours may be. It is handled, and dead-lettered if
// that fails, whether or not it can be retried.
func (w *world) TestForeign_LargeMessagesAreDeadLettered() {
	b, topic := w.openTopic("orders")
	limit := b.Capabilities().MaxMessageBytes
	w.skipIf(w.backend.Foreign == nil || limit == 0 || limit > triedSize,
		"no foreign producer can publish, or the broker has no limit, or one too large to test")
	c := w.consume(b, topic, middleware.Config{MaxAttempts: 2, Backoff: w.steps(0)}, fails)
	m := message.NewMessage("large", make([]byte, limit-512))
	m.Metadata.Set("note", strings.Repeat("n", 1024))
	if err := w.backend.Foreign(w.T, topic, m); err != nil {
		w.Skipf("the broker accepts no message that is larger than ours may be: %v", err)
	}
	require.Equal(w, m.Payload, w.deadLetters(b, topic, 1)[0].Payload)
	c.quiet()
	require.LessOrEqual(w, len(c.seen()), 2)
}
