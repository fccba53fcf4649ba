package envelope_test

import (
	"context"
	"log/slog"
	"os"

	"github.com/redrive-go/redrive/envelope"
)

func ExampleLevelName() {
	words := func(groups []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return envelope.LevelName(groups, a)
	}
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: words}))
	logger.Log(context.Background(), envelope.LevelCritical, "message dead-lettered")
	logger.Error("hook failed", "level", "of the message")
	// Output:
	// level=CRITICAL msg="message dead-lettered"
	// level=ERROR msg="hook failed" level="of the message"
}
