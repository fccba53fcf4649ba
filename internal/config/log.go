package config

import (
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/lmittmann/tint"

	"github.com/redrive-go/redrive/dlq/redact"
	"github.com/redrive-go/redrive/envelope"
)

// level reads the level; empty is info.
func (l *Log) level() (slog.Level, error) {
	switch strings.ToLower(l.Level) {
	case "debug":
		return slog.LevelDebug, nil
	case "", "info":
		return slog.LevelInfo, nil
	case "warn":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	default:
		return 0, fmt.Errorf("log.level: %q: debug, info, warn or error", l.Level)
	}
}

// Logger makes a logger that writes to w, in colour if w is a terminal. It redacts by the rules; nil rules hide
// nothing.
func (l *Log) Logger(w io.Writer, colour bool, rules *redact.Rules) *slog.Logger {
	level, _ := l.level() // checked by Validate
	replace := func(groups []string, a slog.Attr) slog.Attr {
		return rules.LogAttr(groups, envelope.LevelName(groups, a))
	}
	switch {
	case l.Format == "json":
		return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: replace}))
	case colour:
		return slog.New(tint.NewTextHandler(w, &tint.Options{Level: level, TimeFormat: "15:04:05.000", ReplaceAttr: replace}))
	default:
		return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: replace}))
	}
}
