package middleware_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	stackerrors "github.com/pkg/errors" //nolint:depguard // users' code may depend on it
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

// The class is what dead letters are grouped by: the most specific type, not that of a wrapper.
func TestPipeline_ErrorClass(t *testing.T) {
	status := middleware.HTTPStatus(404, nil)
	for name, tt := range map[string]struct {
		err  error
		want string
	}{
		"plain":        {status, "*middleware.StatusError"},
		"wrapped":      {fmt.Errorf("a: %w", fmt.Errorf("b: %w", status)), "*middleware.StatusError"},
		"marked":       {middleware.Permanent(status), "*middleware.StatusError"},
		"joined":       {middleware.Permanent(errors.Join(status, errors.New("x"))), "*middleware.StatusError"},
		"two at once":  {middleware.Permanent(fmt.Errorf("%w and %w", status, errors.New("x"))), "*middleware.StatusError"},
		"with a stack": {middleware.Permanent(stackerrors.WithStack(status)), "*middleware.StatusError"},
		"only words":   {middleware.Permanent(fmt.Errorf("a: %w", errors.New("b"))), "*errors.errorString"},
		"no words":     {middleware.Permanent((*brokenError)(nil)), "*middleware_test.brokenError"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, middleware.Config{}, failing(tt.err))
			h.sendNow(order(t))
			require.Equal(t, tt.want, h.letter().Class)
			require.Equal(t, tt.want, h.letter().Message.Metadata[envelope.KeyErrorClass])
			require.ErrorIs(t, h.letter().Cause, tt.err, "sinks of this process get the error itself")
		})
	}
}

func TestPipeline_ErrorTrace(t *testing.T) {
	h := newHarness(t, middleware.Config{},
		failing(middleware.Permanent(stackerrors.WithStack(errors.New("with a stack")))))
	h.sendNow(order(t))
	require.Contains(t, h.letter().Err.Trace, "TestPipeline_ErrorTrace")
}

// A 140 KB header kills an AMQP connection: the headers are bounded and valid UTF-8, whatever the error's text.
func TestPipeline_ErrorTextIsBounded(t *testing.T) {
	for name, text := range map[string]string{
		"huge":          strings.Repeat("x", 10<<20),
		"huge runes":    strings.Repeat("€", 1<<20),
		"invalid UTF-8": strings.Repeat("\xff", 2000),
		"control":       "a\x00b\r\nc",
		"empty":         "",
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, middleware.Config{LogPayload: true}, failing(middleware.Permanent(errors.New(text))))
			h.sendNow(order(t))
			require.LessOrEqual(t, len(h.letter().Err.Message), envelope.MaxErrorMessage)
			require.True(t, utf8.ValidString(h.letter().Err.Message))
			size := 0
			for k, v := range h.letter().Message.Metadata {
				require.True(t, utf8.ValidString(v), k)
				size += len(k) + len(v)
			}
			require.Less(t, size, envelope.MaxHeaders)
			for line := range strings.Lines(h.logs.String()) {
				require.Less(t, len(line), 16<<10)
			}
		})
	}
}
