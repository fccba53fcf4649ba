package watermill

import (
	"context"
	"log/slog"

	"github.com/ThreeDotsLabs/watermill"
)

// Logger adapts l to Watermill's components. They report every message three or four times at levels that are rarely
// logged, and Watermill's own adapter converts the fields of each report before it checks the level.
func Logger(l *slog.Logger) watermill.LoggerAdapter { return leveled{watermill.NewSlogLogger(l), l} }

type leveled struct {
	watermill.LoggerAdapter

	log *slog.Logger
}

// Debug implements watermill.LoggerAdapter.
func (l leveled) Debug(msg string, fields watermill.LogFields) {
	if l.log.Enabled(context.Background(), slog.LevelDebug) {
		l.LoggerAdapter.Debug(msg, fields)
	}
}

// Trace implements watermill.LoggerAdapter.
func (l leveled) Trace(msg string, fields watermill.LogFields) {
	if l.log.Enabled(context.Background(), watermill.LevelTrace) {
		l.LoggerAdapter.Trace(msg, fields)
	}
}

// With implements watermill.LoggerAdapter.
func (l leveled) With(fields watermill.LogFields) watermill.LoggerAdapter {
	return leveled{l.LoggerAdapter.With(fields), l.log}
}
