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

// builtinRules stand in the order of the decision tree: what can never succeed first (validation, not found, already
// done), then what may (remote services, databases, networks), each as specific as possible before the general.
var builtinRules = []func(error) (Verdict, bool){
	panics,
	ownWord,
	backoffErrors,
	malformed,
	httpStatus,
	grpcStatus,
	sqlState,
	mysqlNumber,
	databaseErrors,
	failsafeErrors,
	contextErrors,
	syscallErrors,
	networkErrors,
	timeouts,
}

func retryable(rule string) (Verdict, bool) { return Verdict{Kind: KindRetryable, Rule: rule}, true }
func permanent(rule string) (Verdict, bool) { return Verdict{Kind: KindPermanent, Rule: rule}, true }
func noVerdict() (Verdict, bool)            { return Verdict{}, false }

// panics are tried again, within the limit: a nil map that a race left behind may be there next time.
func panics(err error) (Verdict, bool) {
	var p *PanicError
	switch {
	case errors.As(err, &p):
		return retryable("panic")
	case errors.Is(err, ErrGoexit):
		return retryable("goexit")
	}
	return noVerdict()
}

// ownWord is for errors that say of themselves what they are.
func ownWord(err error) (Verdict, bool) {
	var p interface{ Permanent() bool }
	if errors.As(err, &p) {
		if p.Permanent() {
			return permanent("error says Permanent")
		}
		return retryable("error says not Permanent")
	}
	var r interface{ Retryable() bool }
	if errors.As(err, &r) {
		if r.Retryable() {
			return retryable("error says Retryable")
		}
		return permanent("error says not Retryable")
	}
	return noVerdict()
}

func backoffErrors(err error) (Verdict, bool) {
	var p *backoff.PermanentError
	if errors.As(err, &p) {
		return permanent("backoff.Permanent")
	}
	var after *backoff.RetryAfterError
	if errors.As(err, &after) {
		return Verdict{Kind: KindRetryable, Rule: "backoff.RetryAfter", After: max(0, after.Duration), HasAfter: true}, true
	}
	return noVerdict()
}

// malformed is about bytes that will not get better by reading them again.
func malformed(err error) (Verdict, bool) {
	var (
		syntax  *json.SyntaxError
		kind    *json.UnmarshalTypeError
		target  *json.InvalidUnmarshalError
		typ     *json.UnsupportedTypeError
		value   *json.UnsupportedValueError
		marshal *json.MarshalerError
	)
	switch {
	case errors.Is(err, envelope.ErrMalformed):
		return permanent("malformed envelope")
	case errors.As(err, &syntax), errors.As(err, &kind):
		return permanent("malformed JSON")
	case errors.As(err, &target), errors.As(err, &typ), errors.As(err, &value), errors.As(err, &marshal):
		return permanent("JSON of an impossible Go value")
	}
	return noVerdict()
}

func databaseErrors(err error) (Verdict, bool) {
	switch {
	case errors.Is(err, sql.ErrNoRows):
		// Not found is not retried. Where events overtake the rows that they are about, say so by a rule.
		return permanent("sql: no rows")
	case errors.Is(err, driver.ErrBadConn), errors.Is(err, sql.ErrConnDone):
		return retryable("database connection lost")
	case errors.Is(err, sql.ErrTxDone):
		return retryable("database transaction ended")
	}
	return noVerdict()
}

// failsafeErrors are those of policies inside the handler. The error inside an exceeded retry policy was asked by
// the rules before; only what they did not know arrives here. The three that refuse to run anything consume no
// attempt, because none was made.
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

// contextErrors are about contexts that ended inside the handler. The pipeline has already looked at the message's
// own context, whose end means shutdown.
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

// syscallErrors are refused and broken connections, and resources that come back: descriptors, memory, disk space.
func syscallErrors(err error) (Verdict, bool) {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
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
	var (
		dns *net.DNSError
		op  *net.OpError
	)
	switch {
	case errors.As(err, &dns):
		return retryable("name resolution")
	case errors.As(err, &op), errors.Is(err, net.ErrClosed):
		return retryable("network")
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.ErrClosedPipe), errors.Is(err, io.EOF):
		return retryable("connection ended early")
	}
	return noVerdict()
}

// timeouts is the convention of net.Error, which many clients follow. A false answer says nothing.
func timeouts(err error) (Verdict, bool) {
	var t interface{ Timeout() bool }
	if errors.As(err, &t) && t.Timeout() {
		return retryable("timeout")
	}
	var temporary interface{ Temporary() bool }
	if errors.As(err, &temporary) && temporary.Temporary() {
		return retryable("temporary")
	}
	return noVerdict()
}
