package watermill_test

import (
	"bytes"
	"log/slog"
	"slices"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/require"

	wbroker "github.com/redrive-go/redrive/brokers/watermill"
)

func TestLogger_RespectsTheLevel(t *testing.T) {
	for level, want := range map[slog.Level][]string{
		slog.LevelInfo:       {"info"},
		slog.LevelDebug:      {"info", "debug"},
		watermill.LevelTrace: {"info", "debug", "trace"},
	} {
		var out bytes.Buffer
		l := wbroker.Logger(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: level}))).
			With(watermill.LogFields{"topic": "orders"})
		l.Info("info", nil)
		l.Debug("debug", watermill.LogFields{"a": 1})
		l.Trace("trace", watermill.LogFields{"a": 1})
		for _, text := range []string{"info", "debug", "trace"} {
			if slices.Contains(want, text) {
				require.Contains(t, out.String(), "msg="+text+" topic=orders", level)
			} else {
				require.NotContains(t, out.String(), "msg="+text, level)
			}
		}
	}
}

func TestLogger_ConvertsNothingThatIsNotLogged(t *testing.T) {
	l := wbroker.Logger(slog.New(slog.NewTextHandler(&bytes.Buffer{}, nil)))
	fields := watermill.LogFields{"topic": "orders", "message_uuid": "1"}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		l.Debug("sent", fields)
		l.Trace("acked", fields)
	}))
}
