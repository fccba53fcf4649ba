package envelope

import "log/slog"

// LevelCritical is the level of log records that require a person's attention: a dead letter, or a message that could
// not be kept where it belongs. It is above slog.LevelError, and slog writes it as ERROR+4 unless [LevelName] replaces
// that.
const LevelCritical = slog.LevelError + 4

// LevelName is a slog.HandlerOptions.ReplaceAttr that writes [LevelCritical] as CRITICAL and changes nothing else.
func LevelName(_ []string, a slog.Attr) slog.Attr {
	if level, ok := a.Value.Any().(slog.Level); ok && a.Key == slog.LevelKey && level == LevelCritical {
		a.Value = slog.StringValue("CRITICAL")
	}
	return a
}
