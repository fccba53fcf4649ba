package middleware

import (
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"

	"github.com/redrive-go/redrive/envelope"
)

// lastError is the handler's error without the limit that decided: the message carries the handler's own error, and the
// reason separately.
func lastError(err error) error {
	switch e := err.(type) { //nolint:errorlint // the pipeline itself wrapped it last
	case *ExhaustedError:
		return e.Err
	case *ExpiredError:
		return e.Err
	default:
		return err
	}
}

// transmitted is the error as recorded in the message.
func transmitted(dec *Decision) envelope.Error {
	err := lastError(dec.Err)
	return envelope.Error{
		Message: strings.ToValidUTF8(cut(errorText(err), envelope.MaxErrorMessage), "\ufffd"),
		Code:    dec.Verdict.Code,
		Trace:   errorTrace(err),
	}
}

// errorTrace is the stack of a panic, or of an error that carries one and prints it with %+v (pkg/errors).
func errorTrace(err error) (trace string) {
	defer func() {
		if recover() != nil {
			trace = ""
		}
	}()
	if panicked, ok := errorAs[*PanicError](err); ok {
		return panicked.Stack
	}
	for e, depth := err, 0; e != nil && depth < deepest; e, depth = errors.Unwrap(e), depth+1 {
		if _, ok := e.(fmt.Formatter); ok {
			if text := fmt.Sprintf("%+v", e); strings.Contains(text, "\n\t") {
				return strings.ToValidUTF8(cut(text, envelope.MaxErrorTrace), "\ufffd")
			}
		}
	}
	return ""
}

// errorClass is the Go type of the most specific error: the outermost one that does not merely wrap another. Dead
// letters are grouped by it.
func errorClass(err error) (class string) {
	defer func() {
		if recover() != nil {
			class = typeName(err)
		}
	}()
	err = lastError(err)
	for range deepest {
		class = typeName(err)
		if !isWrapper(class) {
			return class
		}
		var inner error
		if joined, ok := err.(interface{ Unwrap() []error }); ok {
			for _, inner = range joined.Unwrap() {
				if inner != nil {
					break
				}
			}
		} else {
			inner = errors.Unwrap(err)
		}
		if inner == nil {
			return class
		}
		err = inner
	}
	return class
}

func typeName(err error) string {
	if t := reflect.TypeOf(err); t != nil {
		return t.String()
	}
	return "<nil>"
}

func isWrapper(class string) bool {
	switch class {
	case "*middleware.MarkedError", "*fmt.wrapError", "*fmt.wrapErrors", "*errors.joinError", "*errors.withStack",
		"*errors.withMessage":
		return true
	default:
		return false
	}
}

func stackAttrs(err error) []slog.Attr {
	panicked, ok := errorAs[*PanicError](err)
	if !ok {
		return nil
	}
	return []slog.Attr{slog.String("stack", panicked.Stack)}
}
