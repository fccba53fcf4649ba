package brokertest

import (
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

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
	}, func(r run) error {
		if r.payload() == "good" {
			return nil
		}
		return errFails
	})

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
