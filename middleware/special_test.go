package middleware_test

import (
	"errors"
	"runtime"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

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
		h.redriven, tt.m.Metadata[envelope.KeyRedriveID] = nil, "entry-9"
		h.sendNow(tt.m)
		require.Equal(t, acked+1, h.acked, "acked, not retried: %v %s", tt.m.Metadata, tt.m.Payload)
		var want []string
		if tt.want != "" {
			want = []string{tt.want}
		}
		require.Equal(t, want, handled, "%v %s", tt.m.Metadata, tt.m.Payload)
		require.Equal(t, []string{"entry-9 u"}, h.redriven, "%v %s", tt.m.Metadata, tt.m.Payload)
	}
	require.Empty(t, h.rescheduled)
	require.Empty(t, h.letters)
}
