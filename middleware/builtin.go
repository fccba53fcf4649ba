package middleware

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"syscall"

	"github.com/cenkalti/backoff/v5"
	"github.com/failsafe-go/failsafe-go/bulkhead"
	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	"github.com/failsafe-go/failsafe-go/ratelimiter"
	"github.com/failsafe-go/failsafe-go/retrypolicy"
	"github.com/failsafe-go/failsafe-go/timeout"

	"github.com/redrive-go/redrive/envelope"
)

// builtinRules are in the order of the decision tree: first errors that can never succeed (validation, not found,
// already done), then errors that may (remote services, databases, networks), each specific rule before the general
// ones.
var builtinRules = []func(error) (Verdict, bool){
	panics,
	ownVerdict,
	backoffErrors,
	malformed,
	httpStatus,
	grpcStatus,
	sqlState,
	mysqlNumber,
	databaseErrors,
	failsafeErrors,
	gobreakerOpen,
	contextErrors,
	syscallErrors,
	networkErrors,
	timeouts,
}

func retryable(rule string) (Verdict, bool) { return Verdict{Kind: KindRetryable, Rule: rule}, true }

func permanent(rule string) (Verdict, bool) { return Verdict{Kind: KindPermanent, Rule: rule}, true }
func noVerdict() (Verdict, bool)            { return Verdict{}, false }

func has[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// panics are retried, within the limit: a nil map caused by a race may be there next time.
func panics(err error) (Verdict, bool) {
	if _, ok := errors.AsType[*PanicError](err); ok {
		return retryable("panic")
	}
	if errors.Is(err, ErrGoexit) {
		return retryable("goexit")
	}
	return noVerdict()
}

// ownVerdict handles errors that declare their own kind.
func ownVerdict(err error) (Verdict, bool) {
	if e, ok := errors.AsType[interface {
		error
		Permanent() bool
	}](err); ok {
		if e.Permanent() {
			return permanent("error says Permanent")
		}
		return retryable("error says not Permanent")
	}
	if e, ok := errors.AsType[interface {
		error
		Retryable() bool
	}](err); ok {
		if e.Retryable() {
			return retryable("error says Retryable")
		}
		return permanent("error says not Retryable")
	}
	return noVerdict()
}

func backoffErrors(err error) (Verdict, bool) {
	if _, ok := errors.AsType[*backoff.PermanentError](err); ok {
		return permanent("backoff.Permanent")
	}
	if after, ok := errors.AsType[*backoff.RetryAfterError](err); ok {
		return Verdict{Kind: KindRetryable, Rule: "backoff.RetryAfter", After: max(0, after.Duration), HasAfter: true}, true
	}
	return noVerdict()
}

// malformed handles bytes that reading them again does not improve.
func malformed(err error) (Verdict, bool) {
	switch {
	case errors.Is(err, envelope.ErrMalformed):
		return permanent("malformed envelope")
	case has[*json.SyntaxError](err), has[*json.UnmarshalTypeError](err):
		return permanent("malformed JSON")
	case has[*json.InvalidUnmarshalError](err), has[*json.UnsupportedTypeError](err),
		has[*json.UnsupportedValueError](err),
		has[*json.MarshalerError](err):
		return permanent("JSON of an impossible Go value")
	}
	return noVerdict()
}

func databaseErrors(err error) (Verdict, bool) {
	switch {
	case errors.Is(err, sql.ErrNoRows):
		// Not found is not retried. If events may overtake the rows that they refer to, add a rule.
		return permanent("sql: no rows")
	case errors.Is(err, driver.ErrBadConn), errors.Is(err, sql.ErrConnDone):
		return retryable("database connection lost")
	case errors.Is(err, sql.ErrTxDone):
		return retryable("database transaction ended")
	}
	return noVerdict()
}

// failsafeErrors handles the errors of policies inside the handler. The rules before have judged the error inside an
// exceeded retry policy; only errors that they did not recognize arrive here. The three that refuse to run anything
// consume no attempt, because none was made.
func failsafeErrors(err error) (Verdict, bool) {
	switch {
	case errors.Is(err, circuitbreaker.ErrOpen):
		return Verdict{Kind: KindDefer, Rule: "failsafe: circuit open"}, true
	case errors.Is(err, bulkhead.ErrFull):
		return Verdict{Kind: KindDefer, Rule: "failsafe: bulkhead full"}, true
	case errors.Is(err, ratelimiter.ErrExceeded):
		return Verdict{Kind: KindDefer, Rule: "failsafe: rate limit exceeded"}, true
	case errors.Is(err, timeout.ErrExceeded):
		return retryable("failsafe: timeout")
	case errors.Is(err, retrypolicy.ErrExceeded):
		return retryable("failsafe: retries exceeded")
	}
	return noVerdict()
}

// gobreakerOpen handles sony/gobreaker, also as wrapped by Watermill's CircuitBreaker: the call was not made. Its
// versions have different values with the same text, and importing one of them would not match the other.
func gobreakerOpen(err error) (Verdict, bool) {
	for e, depth := err, 0; e != nil && depth < deepest; e, depth = errors.Unwrap(e), depth+1 {
		if typeName(e) == "*errors.errorString" && e.Error() == "circuit breaker is open" {
			return Verdict{Kind: KindDefer, Rule: "gobreaker: circuit open"}, true
		}
	}
	return noVerdict()
}

// contextErrors handles contexts that ended inside the handler. The pipeline has already checked the message's own
// context, whose end means shutdown.
func contextErrors(err error) (Verdict, bool) {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return retryable("deadline exceeded")
	case errors.Is(err, context.Canceled):
		return retryable("cancelled inside the handler")
	case errors.Is(err, os.ErrDeadlineExceeded):
		return retryable("i/o timeout")
	}
	return noVerdict()
}

// syscallErrors handles refused and broken connections, and resources that recover: descriptors, memory, disk space.
func syscallErrors(err error) (Verdict, bool) {
	errno, ok := errors.AsType[syscall.Errno](err)
	if !ok {
		return noVerdict()
	}
	switch errno {
	case syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.ECONNABORTED, syscall.EPIPE, syscall.ENOTCONN,
		syscall.EHOSTUNREACH, syscall.EHOSTDOWN, syscall.ENETUNREACH, syscall.ENETDOWN, syscall.ENETRESET,
		syscall.ETIMEDOUT, syscall.EADDRNOTAVAIL:
		return retryable("connection: " + errno.Error())
	case syscall.EAGAIN, syscall.EINTR, syscall.EBUSY, syscall.EMFILE, syscall.ENFILE, syscall.ENOSPC, syscall.ENOMEM,
		syscall.ENOBUFS, syscall.EIO, syscall.ESTALE, syscall.EDQUOT, syscall.ENOLCK:
		return retryable("system: " + errno.Error())
	default:
		return noVerdict()
	}
}

func networkErrors(err error) (Verdict, bool) {
	switch {
	case has[*net.DNSError](err):
		return retryable("name resolution")
	case has[*net.OpError](err), errors.Is(err, net.ErrClosed):
		return retryable("network")
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.ErrClosedPipe), errors.Is(err, io.EOF):
		return retryable("connection ended early")
	}
	return noVerdict()
}

// timeouts is the convention of net.Error, which many clients follow. A result of false means nothing.
func timeouts(err error) (Verdict, bool) {
	if e, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err); ok && e.Timeout() {
		return retryable("timeout")
	}
	if e, ok := errors.AsType[interface {
		error
		Temporary() bool
	}](err); ok && e.Temporary() {
		return retryable("temporary")
	}
	return noVerdict()
}
