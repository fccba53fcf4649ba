package envelope

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/ThreeDotsLabs/watermill"
)

// SlogLogger returns a logger that writes to l, for the Logger of every Config here, in services that log through
// Watermill. Watermill has neither warnings nor LevelCritical, so l.Info writes the former and l.Error the latter, each
// with its level as a field; an attribute named error becomes the error of l.Error. Group names become prefixes of the
// fields. A nil l means slog.Default, as in [watermill.NewSlogLogger], which converts the other way.
func SlogLogger(l watermill.LoggerAdapter) *slog.Logger {
	if l == nil {
		return slog.Default()
	}
	return slog.New(adapterHandler{adapter: l})
}

// adapterHandler is the slog.Handler of an adapter.
type adapterHandler struct {
	adapter watermill.LoggerAdapter
	prefix  string // prefix of the fields: the open groups
}

// Enabled implements slog.Handler. An adapter does not report the levels that it writes.
func (h adapterHandler) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler.
func (h adapterHandler) Handle(_ context.Context, r slog.Record) error {
	fields := watermill.LogFields{}
	r.Attrs(func(a slog.Attr) bool {
		addField(fields, h.prefix, a)
		return true
	})
	if r.Level != slog.LevelError && r.Level >= slog.LevelWarn {
		fields[slog.LevelKey] = LevelName(nil, slog.Any(slog.LevelKey, r.Level)).Value.String()
	}
	switch {
	case r.Level >= slog.LevelError:
		value, found := fields["error"]
		delete(fields, "error")
		err, ok := value.(error)
		if found && !ok {
			err = fmt.Errorf("%v", value)
		}
		h.adapter.Error(r.Message, err, fields)
	case r.Level >= slog.LevelInfo:
		h.adapter.Info(r.Message, fields)
	case r.Level >= slog.LevelDebug:
		h.adapter.Debug(r.Message, fields)
	default:
		h.adapter.Trace(r.Message, fields)
	}
	return nil
}

// WithAttrs implements slog.Handler.
func (h adapterHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	fields := watermill.LogFields{}
	for _, a := range attrs {
		addField(fields, h.prefix, a)
	}
	return adapterHandler{h.adapter.With(fields), h.prefix}
}

// WithGroup implements slog.Handler.
func (h adapterHandler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	return adapterHandler{h.adapter, h.prefix + name + "."}
}

// addField adds a, or its members if it is a group.
func addField(fields watermill.LogFields, prefix string, a slog.Attr) {
	value := a.Value.Resolve()
	if value.Kind() != slog.KindGroup {
		if !a.Equal(slog.Attr{}) {
			fields[prefix+a.Key] = value.Any()
		}
		return
	}
	if a.Key != "" {
		prefix += a.Key + "."
	}
	for _, member := range value.Group() {
		addField(fields, prefix, member)
	}
}

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
