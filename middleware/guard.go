package middleware

import (
	"context"
	"errors"
	"log/slog"
)

// Foreign code may panic: the ports, the callbacks of the configuration, and the methods of an error, for which a typed
// nil is enough. All of it is called through this file, so that a message is settled no matter what.

// guarded calls f and returns its panic as an error.
func guarded(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = newPanicError(r)
		}
	}()
	return f()
}

// guardedValue calls f and returns otherwise if it panics.
func guardedValue[T any](otherwise T, f func() T) (value T) {
	defer func() {
		if recover() != nil {
			value = otherwise
		}
	}()
	return f()
}

// errorAs is errors.As for errors whose methods may panic.
func errorAs[E error](err error) (E, bool) {
	var found E
	ok := guardedValue(false, func() (ok bool) {
		found, ok = errors.AsType[E](err)
		return ok
	})
	return found, ok
}

// errorIs is errors.Is for errors whose methods may panic.
func errorIs(err, target error) bool {
	return guardedValue(false, func() bool { return errors.Is(err, target) })
}

// errorText is err.Error() for errors whose methods may panic.
func errorText(err error) (text string) {
	if err == nil {
		return ""
	}
	defer func() {
		if recover() != nil {
			text = typeName(err) + " (its Error method panicked)"
		}
	}()
	return err.Error()
}

// logs reports whether the logger writes lines of that level.
func (p *Pipeline) logs(ctx context.Context, level slog.Level) bool {
	return guardedValue(false, func() bool { return p.cfg.Logger.Enabled(ctx, level) })
}

// log writes a line. If the logger's handler panics, the line is lost.
func (p *Pipeline) log(ctx context.Context, level slog.Level, text string, attrs ...slog.Attr) {
	defer func() { _ = recover() }()
	p.cfg.Logger.LogAttrs(ctx, level, text, attrs...) //nolint:sloglint // every caller passes a literal
}
