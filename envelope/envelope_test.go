package envelope_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
)

// An envelope is immutable, whatever is done with it or with the values it returns.
func TestEnvelope_IsImmutable(t *testing.T) {
	for _, mode := range []envelope.Mode{envelope.Binary, envelope.Structured} {
		t.Run(mode.String(), func(t *testing.T) {
			source := newOrder(t, envelope.InMode(mode))
			m := render(t, source)
			e, err := envelope.FromMessage(m)
			require.NoError(t, err)
			want := render(t, e)

			m.Payload[3], m.Metadata["tenant"] = 'X', "changed"
			e.Data()[3] = 'X'
			e.Metadata()["tenant"] = "changed"
			render(t, e).Payload[3] = 'X'
			render(t, e).Metadata["tenant"] = "changed"
			if err := e.WithError(envelope.Error{Message: "x"}).Err(); err != nil {
				err.Message = "changed"
			}
			e.WithIncrementedRetry()

			got := render(t, e)
			require.True(t, want.Equals(got))
			require.Equal(t, string(render(t, source).Payload), string(got.Payload))
		})
	}
}

func TestEnvelope_WithMethods(t *testing.T) {
	for _, mode := range []envelope.Mode{envelope.Binary, envelope.Structured} {
		t.Run(mode.String(), func(t *testing.T) {
			e := newOrder(t, envelope.InMode(mode))
			changed, err := envelope.FromMessage(render(t,
				e.WithIncrementedRetry().WithError(envelope.Error{Message: "m", Code: "c"})))
			require.NoError(t, err)
			require.Equal(t, mode, changed.Mode())
			require.Equal(t, e.MessageID(), changed.MessageID())
			require.Equal(t, e.Timestamp(), changed.Timestamp())
			require.Equal(t, 1, changed.RetryCount())
			require.Equal(t, &envelope.Error{Message: "m", Code: "c"}, changed.Err())
			require.Equal(t, map[string]string{"priority": "high", "correlation_id": "abc-123"}, changed.Metadata())
			require.Equal(t, e.Data(), changed.Data())
		})
	}
}

// The factory reports every fault at once.
func TestNew_Faults(t *testing.T) {
	_, err := envelope.New("a\nb", "", make(chan int), map[string]string{envelope.KeyRetryCount: "0"}, envelope.ID(""),
		envelope.InMode(7))
	for _, want := range []string{
		"queue is empty", "source cannot travel", "data: json", `"x-retry-count" belongs`,
		"the id is empty", "Mode(7) is not a mode",
	} {
		require.ErrorContains(t, err, want)
	}
}

func TestNew_Defaults(t *testing.T) {
	began := time.Now()
	e, err := envelope.New("checkout", "orders", map[string]int{"n": 1}, nil, envelope.Delay(10*time.Second),
		envelope.EventNamed("order.created"))
	require.NoError(t, err)
	id, err := uuid.Parse(e.MessageID())
	require.NoError(t, err)
	require.Equal(t, uuid.Version(7), id.Version())
	require.WithinRange(t, e.Timestamp(), began.Add(-time.Second), time.Now())
	require.Equal(t, "1.0", e.Version())
	require.Equal(t, `{"n":1}`, string(e.Data()))
	require.Equal(t, "order.created", e.Event())
	m := render(t, e)
	require.Equal(t, e.MessageID(), m.UUID)
	require.Equal(t, "10000", m.Metadata[envelope.KeyDelay])
	require.NotContains(t, m.Metadata, envelope.KeyRetryCount, "absent means 0 (D16)")
}

func TestFromMessage_Foreign(t *testing.T) {
	created := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	m := message.NewMessage("uuid-1", []byte("plain text"))
	m.Metadata = message.Metadata{
		"tenant": "a", envelope.KeyAMQPType: "invoice.created", envelope.KeyAMQPAppID: "billing",
		envelope.KeyAMQPTimestamp: "2026-01-02T03:04:05Z", envelope.KeyAMQPCorrelationID: "corr-1",
	}
	m.SetContext(envelope.WithOrigin(t.Context(), &envelope.Origin{Topic: "invoices", RoutingKey: "invoice.#"}))
	e, err := envelope.FromMessage(m)
	require.NoError(t, err)
	require.Equal(t, "uuid-1", e.MessageID())
	require.Equal(t, created, e.Timestamp().UTC())
	require.Equal(t, "billing", e.Source())
	require.Equal(t, "invoices", e.Queue())
	require.Equal(t, "invoice.created", e.Event())
	require.Equal(t, "corr-1", e.CorrelationID())
	require.Equal(t, map[string]string{"tenant": "a"}, e.Metadata())
	require.Zero(t, e.RetryCount())
	require.Nil(t, e.Err())
	require.True(t, e.FirstFailure().IsZero())
	origin, ok := e.Origin()
	require.True(t, ok)
	require.Equal(t, "invoices", origin.Topic)
}

func TestEventName_Order(t *testing.T) {
	m := message.NewMessage("", nil)
	m.SetContext(envelope.WithOrigin(t.Context(), &envelope.Origin{RoutingKey: "from.origin"}))
	require.Equal(t, "from.origin", envelope.EventName(m))
	for _, step := range []struct{ key, value string }{
		{envelope.KeyRoutingKey, "r"},
		{envelope.KeyAMQPType, "t"},
		{"ce_type", "c"},
		{envelope.KeyCQRSName, "n"},
		{envelope.KeyEvent, "e"},
	} {
		m.Metadata[step.key] = step.value
		require.Equal(t, step.value, envelope.EventName(m))
	}
}

func TestIdentify_Order(t *testing.T) {
	m := message.NewMessage("", []byte("x"))
	require.Empty(t, envelope.Identify(m))
	origin := &envelope.Origin{Broker: "kafka", Topic: "orders", Position: "3/1042"}
	m.SetContext(envelope.WithOrigin(t.Context(), origin))
	require.Equal(t, envelope.StableID(origin), envelope.Identify(m))
	m.UUID = "uuid-1"
	require.Equal(t, "uuid-1", envelope.Identify(m))
	m.Metadata["ce_id"] = "ce-1"
	require.Equal(t, "ce-1", envelope.Identify(m))
	m.Metadata[envelope.KeyAMQPMessageID] = "amqp-1"
	require.Equal(t, "amqp-1", envelope.Identify(m))
	m.Metadata[envelope.KeyMessageID] = "id-1"
	require.Equal(t, "id-1", envelope.Identify(m))

	structured := structuredMessage([]byte(envelopeBody(`1`, `{}`)))
	structured.UUID = "uuid-1"
	require.Equal(t, "id-1", envelope.Identify(structured))
}

func TestIdentify_UncarriableIDs(t *testing.T) {
	seen := map[string]bool{}
	for _, id := range []string{"a\r\nb", "\x00", "\xff", string(make([]byte, 300)), "\u0085"} {
		m := message.NewMessage(id, nil)
		got := envelope.Identify(m)
		_, err := uuid.Parse(got)
		require.NoError(t, err)
		require.Equal(t, got, envelope.Identify(m), "the same each time")
		require.False(t, seen[got], "different ids stay different")
		seen[got] = true
	}
	require.Equal(t, "pedido-não-é-ASCII", envelope.Identify(message.NewMessage("pedido-não-é-ASCII", nil)))
}

func TestStableID(t *testing.T) {
	a := envelope.Origin{Broker: "kafka", Topic: "orders", Position: "3/1042"}
	id, err := uuid.Parse(envelope.StableID(&a))
	require.NoError(t, err)
	require.Equal(t, uuid.Version(5), id.Version())
	for _, b := range []envelope.Origin{
		{Broker: "kafka", Topic: "orders", Position: "3/1043"},
		{Broker: "kafka", Topic: "orders2", Position: "3/1042"},
		{Broker: "kafka", Topic: "order", Position: "s3/1042"},
		{Broker: "postgres", Topic: "orders", Position: "3/1042"},
	} {
		require.NotEqual(t, envelope.StableID(&a), envelope.StableID(&b))
	}
	require.Empty(t, envelope.StableID(nil))
	require.Empty(t, envelope.StableID(&envelope.Origin{Broker: "mem", Topic: "orders"}))
}

func TestOriginFrom_None(t *testing.T) {
	_, ok := envelope.OriginFrom(t.Context())
	require.False(t, ok)
	_, ok = envelope.OriginFrom(envelope.WithOrigin(t.Context(), nil))
	require.False(t, ok)
}

func TestKeys(t *testing.T) {
	for _, key := range []string{
		"x-death", "x-delivery-count", "x-acquired-count", "x-first-death-exchange",
		"x-last-death-queue",
	} {
		require.True(t, envelope.IsBrokerMade(key), key)
		require.True(t, envelope.IsOurs(key), key)
	}
	for _, key := range []string{
		envelope.KeyRetryCount, "amqp-priority", envelope.KeyCorrelationID,
		envelope.KeyPoisonReason,
	} {
		require.False(t, envelope.IsBrokerMade(key), key)
		require.True(t, envelope.IsOurs(key), key)
	}
	for _, key := range []string{"tenant", "", "x-tenant", "X-Retry-Count", "priority", "x-deaths"} {
		require.False(t, envelope.IsOurs(key), key)
	}
}

type order struct {
	ID int `json:"id"`
}

func TestHandle(t *testing.T) {
	var got []order
	handler := envelope.Handle(func(_ context.Context, o order) error {
		got = append(got, o)
		return nil
	})
	require.NoError(t, handler(message.NewMessage("u", []byte(`{"id":1}`))))
	require.NoError(t, handler(structuredMessage([]byte(envelopeBody(`{"id":2}`, `{}`)))))
	require.Equal(t, []order{{1}, {2}}, got)

	boom := errors.New("boom")
	require.ErrorIs(t, envelope.Handle(func(context.Context, order) error {
		return boom
	})(message.NewMessage("u", []byte(`{}`))), boom)
	require.Panics(t, func() { envelope.Handle[order](nil) })
}

// Data that does not decode is a permanent error: the same bytes will not decode next time.
func TestHandle_DataErrorIsPermanent(t *testing.T) {
	handler := envelope.Handle(func(context.Context, order) error { return nil })
	for _, m := range []*message.Message{
		message.NewMessage("u", []byte(`{"id":`)), message.NewMessage("u", []byte(`{"id":"x"}`)),
		message.NewMessage("u", nil),
		structuredMessage([]byte(envelopeBody(`{"id":[]}`, `{}`))), structuredMessage([]byte(envelopeBody(`{"id":`, `{}`))),
	} {
		err := handler(m)
		var permanent interface{ Permanent() bool }
		require.ErrorAs(t, err, &permanent)
		require.True(t, permanent.Permanent())
		require.ErrorContains(t, err, "data is not a envelope_test.order")
	}
	var syntax *json.SyntaxError
	require.ErrorAs(t, handler(message.NewMessage("u", []byte(`{"id"}`))), &syntax)
	require.ErrorIs(t, handler(structuredMessage([]byte(envelopeBody(`{"id":`, `{}`)))), envelope.ErrMalformed)
}

func TestData_RawTypes(t *testing.T) {
	e, err := envelope.New("s", "q", []byte("\x00\xff"), nil)
	require.NoError(t, err)
	b, err := envelope.Data[[]byte](e)
	require.NoError(t, err)
	require.Equal(t, []byte("\x00\xff"), b)
	raw, err := envelope.Data[json.RawMessage](e)
	require.NoError(t, err)
	require.Equal(t, "\x00\xff", string(raw))
	_, err = envelope.Data[string](e)
	require.Error(t, err)

	marked, err := envelope.FromMessage(message.NewMessage("1", []byte("\xef\xbb\xbf{\"order\":7}"))) // as .NET writes it
	require.NoError(t, err)
	order, err := envelope.Data[map[string]int](marked)
	require.NoError(t, err)
	require.Equal(t, 7, order["order"])
}

func TestDeadLetter_EnvelopeOfNothing(t *testing.T) {
	var d envelope.DeadLetter
	require.Empty(t, d.Envelope().MessageID())
	require.Empty(t, d.Envelope().Data())
}
