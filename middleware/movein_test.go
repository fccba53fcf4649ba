package middleware_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

// A foreign message without an id has one from its first attempt on: in the handler, by either accessor, in the logs,
// in the retries and in the dead letter.
func TestIdentity_OneIDFromTheFirstAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ids := map[string]bool{}
		s := newHarness(t, middleware.Laravel(3), func(m *message.Message) ([]*message.Message, error) {
			a, _ := middleware.AttemptFrom(m.Context())
			e, err := envelope.FromMessage(m)
			require.NoError(t, err)
			for _, id := range []string{a.MessageID, e.MessageID(), envelope.Identify(m), m.UUID} {
				ids[id] = true
			}
			return nil, errors.New("boom")
		})
		s.deliver(message.NewMessage("", []byte(`{"order_id":77}`)))
		time.Sleep(time.Minute) // virtual
		synctest.Wait()
		require.Len(t, s.letters, 1)
		ids[envelope.Identify(s.letters[0].Message)] = true
		ids[s.letters[0].Message.UUID] = true
		require.Len(t, ids, 1)
		require.NotContains(t, ids, "")
		for id := range ids {
			require.Contains(t, s.logs.String(), id)
		}
	})
}

// The correlation id of an envelope is passed on, wherever the message has it.
func TestProduced_CorrelationID(t *testing.T) {
	const body = `{"message_id":"m-1","timestamp":"2026-02-28T22:53:42+00:00","version":"1.0","source":"checkout","queue":"orders",` +
		`"data":{"order_id":77},"metadata":{"correlation_id":"abc-123"},"error":null,"retry_count":0}`
	in := map[string]*message.Message{
		"body":     message.NewMessage("", []byte(body)),
		"header":   message.NewMessage("", []byte("{}")),
		"property": message.NewMessage("", []byte("{}")),
	}
	in["header"].Metadata[envelope.KeyCorrelationID] = "abc-123"
	in["property"].Metadata[envelope.KeyAMQPCorrelationID] = "abc-123"
	for name, m := range in {
		t.Run(name, func(t *testing.T) {
			s := newHarness(t, middleware.Config{}, func(*message.Message) ([]*message.Message, error) {
				return []*message.Message{message.NewMessage("out", nil)}, nil
			})
			out, err := s.handler(m)
			require.NoError(t, err)
			require.Equal(t, "abc-123", out[0].Metadata[envelope.KeyCorrelationID])
		})
	}
}

// Messages of several runs may share their metadata, which must not pass the id of one to another.
func TestProduced_CorrelationIDOfSharedMetadata(t *testing.T) {
	shared := message.Metadata{"source": "shop"}
	s := newHarness(t, middleware.Config{}, func(*message.Message) ([]*message.Message, error) {
		out := message.NewMessage("out", nil)
		out.Metadata = shared
		return []*message.Message{out}, nil
	})
	for _, id := range []string{"first", "second"} {
		m := message.NewMessage(id, []byte("{}"))
		m.Metadata[envelope.KeyCorrelationID] = id
		out, err := s.handler(m)
		require.NoError(t, err)
		require.Equal(t, id, out[0].Metadata[envelope.KeyCorrelationID])
	}
	require.Equal(t, message.Metadata{"source": "shop"}, shared)
}

// Every decision logs exchange and routing key, RabbitMQ's default exchange too, and how the delay was computed.
func TestLog_ExchangeAndBase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHarness(t, middleware.DelayedBackoff(3, 7*time.Second), func(*message.Message) ([]*message.Message, error) {
			return nil, errors.New("boom")
		})
		s.origin.RoutingKey = "order-reminder"
		s.deliver(message.NewMessage("1", []byte("{}")))
		time.Sleep(time.Hour) // virtual
		synctest.Wait()
		logs := s.logs.String()
		require.Contains(t, logs, `"exchange":"","routing_key":"order-reminder"`)
		require.Contains(t, logs, `"delay":14000000000,"base":7000000000`)
	})
}

// announced is a rescheduler that is given the delays and system events in advance.
type announced struct {
	middleware.Rescheduler

	delays []time.Duration
	events []string
}

func (a *announced) Expect(delays []time.Duration, events []string) {
	a.delays, a.events = delays, events
}

func TestNew_AnnouncesWaitsAndSystemEvents(t *testing.T) {
	spread := middleware.WithJitter(middleware.Constant(time.Second), middleware.FullJitter)
	sink := middleware.DeadLetterFunc(func(context.Context, *envelope.DeadLetter) error { return nil })
	for name, c := range map[string]struct {
		cfg    middleware.Config
		delays []time.Duration
		events []string
	}{
		"a TTL cycle": {middleware.TTLCycle(3, 10*time.Minute), []time.Duration{10 * time.Minute}, nil},
		"a bus": {
			middleware.ServiceBus(5, 0, time.Second, time.Minute),
			[]time.Duration{time.Second, time.Minute},
			[]string{"system.ping.1"},
		},
		"delayed backoff": {
			middleware.DelayedBackoff(3, 10*time.Second),
			[]time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second},
			nil,
		},
		"jitter":   {middleware.Config{Backoff: middleware.WithCap(spread, time.Minute)}, nil, nil},
		"no delay": {middleware.Laravel(5), nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			a := &announced{Rescheduler: middleware.ReschedulerFunc(nil)}
			a.Rescheduler = middleware.ReschedulerFunc(
				func(context.Context, envelope.Origin, *message.Message, time.Duration) error { return nil })
			c.cfg.Rescheduler, c.cfg.DeadLetters = a, sink
			_, err := middleware.New(c.cfg)
			require.NoError(t, err)
			require.Equal(t, c.delays, a.delays)
			require.Equal(t, c.events, a.events)
		})
	}
}

func TestEvents_OneHandlerForEach(t *testing.T) {
	var ran []string
	note := func(name string) message.NoPublishHandlerFunc {
		return func(*message.Message) error { ran = append(ran, name); return nil }
	}
	events := middleware.Events{
		"invoice.created": note("exact"), "invoice.*": note("star"), "invoice.#": note("hash"), "*.created": note("created"),
		"#.paid.late": note("late"),
	}
	require.Equal(t, []string{"#.paid.late", "*.created", "invoice.#", "invoice.*", "invoice.created"}, events.Names())
	handle := func(event string) error {
		m := message.NewMessage("1", nil)
		m.Metadata[envelope.KeyEvent] = event
		return events.Handle(m)
	}
	for _, event := range []string{"invoice.created", "invoice.paid", "user.created", "invoice.paid.late"} {
		require.NoError(t, handle(event))
	}
	require.Equal(t, "exact", ran[0])
	require.True(t, slices.Contains([]string{"star", "hash"}, ran[1]))
	require.Equal(t, []string{"created", "late"}, ran[2:])
	err := handle("user.deleted")
	require.ErrorIs(t, err, middleware.ErrNoEventHandler)
	require.ErrorContains(t, err, `"user.deleted"`)
}
