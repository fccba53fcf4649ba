package middleware

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/failsafe-go/failsafe-go/bulkhead"
	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	"github.com/failsafe-go/failsafe-go/ratelimiter"
	"github.com/failsafe-go/failsafe-go/retrypolicy"
	"github.com/failsafe-go/failsafe-go/timeout"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware/internal/errtree"
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

// asAble is errors.AsType for an interface that does not name Error.
func asAble[T any](err error) (able T, ok bool) {
	ok = errors.As(err, &able)
	return able, ok
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
	if e, ok := asAble[interface{ Permanent() bool }](err); ok {
		if e.Permanent() {
			return permanent("error says Permanent")
		}
		return retryable("error says not Permanent")
	}
	if e, ok := asAble[interface{ Retryable() bool }](err); ok {
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
	for e := err; e != nil; e = errors.Unwrap(e) {
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
	if e, ok := asAble[interface{ Timeout() bool }](err); ok && e.Timeout() {
		return retryable("timeout")
	}
	if e, ok := asAble[interface{ Temporary() bool }](err); ok && e.Temporary() {
		return retryable("temporary")
	}
	return noVerdict()
}

// StatusError is an unsuccessful HTTP response, created by [HTTPStatus].
type StatusError struct {
	// StatusCode is the response's status, such as 503.
	StatusCode int
	// RetryAfter is the wait that the server requested, if HasRetryAfter is set.
	RetryAfter    time.Duration
	HasRetryAfter bool
}

// Error returns the status.
func (e *StatusError) Error() string { return fmt.Sprintf("http status %d", e.StatusCode) }

// Code returns the status as text, which becomes the envelope's error code.
func (e *StatusError) Code() string { return strconv.Itoa(e.StatusCode) }

// HTTPStatus returns an error for an HTTP response, or nil for a status below 400. header is the response's header (an
// http.Header); its Retry-After, in seconds or as a date by the server's clock, is honoured for retryable statuses:
//
//	if err := middleware.HTTPStatus(resp.StatusCode, resp.Header); err != nil {
//		return err
//	}
//
// 408, 423, 425, 429 and 5xx except 501, 505, 508 and 511 are retryable, all others are permanent.
func HTTPStatus(code int, header map[string][]string) error {
	if code < 400 {
		return nil
	}
	e := &StatusError{StatusCode: code}
	e.RetryAfter, e.HasRetryAfter = retryAfter(header, time.Now())
	return e
}

func retryAfter(header map[string][]string, now time.Time) (time.Duration, bool) {
	values := header["Retry-After"]
	if len(values) == 0 {
		return 0, false
	}
	value := strings.TrimSpace(values[0])
	if seconds, err := strconv.ParseUint(value, 10, 63); err == nil {
		if seconds > uint64(longest/time.Second) {
			return longest, true
		}
		return time.Duration(seconds) * time.Second, true
	}
	at, ok := httpDate(values)
	if served, dated := httpDate(header["Date"]); dated {
		now = served // by the server's clock: by ours, the date may have passed, and the attempts would be used up at once
	}
	return max(0, at.Sub(now)), ok
}

// httpDate parses a header in one of the three formats of RFC 9110, all in GMT.
func httpDate(values []string) (at time.Time, ok bool) {
	for _, layout := range []string{"Mon, 02 Jan 2006 15:04:05 GMT", time.RFC850, time.ANSIC} {
		if len(values) > 0 && !ok {
			var err error
			at, err = time.Parse(layout, strings.TrimSpace(values[0]))
			ok = err == nil
		}
	}
	return at, ok
}

// httpStatus recognizes [StatusError] and the errors of HTTP clients that have a method for the status.
func httpStatus(err error) (Verdict, bool) {
	if ours, ok := errors.AsType[*StatusError](err); ok {
		v := statusVerdict(ours.StatusCode)
		if v.Kind == KindRetryable {
			v.After, v.HasAfter = ours.RetryAfter, ours.HasRetryAfter
		}
		return v, true
	}
	var status int
	if e, ok := asAble[interface{ HTTPStatusCode() int }](err); ok {
		status = e.HTTPStatusCode()
	} else if e, ok := asAble[interface{ StatusCode() int }](err); ok {
		status = e.StatusCode()
	}
	if status < 400 || status > 599 {
		return noVerdict() // no status, or not an error of the response
	}
	v := statusVerdict(status)
	if e, ok := asAble[interface{ ErrorCode() string }](err); ok && passing.MatchString(e.ErrorCode()) {
		v.Kind, v.Rule = KindRetryable, "temporary error code"
	}
	return v, true
}

// passing are the codes of temporary AWS errors, many of which have the status 400: those that the AWS SDK for Go
// retries (aws/retry: DefaultThrottleErrorCodes, DefaultRetryableErrorCodes).
var passing = regexp.MustCompile(`Throttl|ThroughputExceeded|^(Request|Bandwidth)?LimitExceeded|TooManyRequests|` +
	`SlowDown|^RequestTimeout|^PriorRequestNotComplete|^TransactionInProgress`)

func statusVerdict(status int) Verdict {
	v := Verdict{Kind: KindPermanent, Code: strconv.Itoa(status), Rule: fmt.Sprintf("http %d", status)}
	switch status {
	case 408, 423, 425, 429:
		v.Kind = KindRetryable
	case 501, 505, 508, 511:
	default:
		if status >= 500 {
			v.Kind = KindRetryable
		}
	}
	return v
}

// grpcStatus reads the code of a gRPC error. Its method returns grpc's own *status.Status, so this package cannot
// declare a matching interface without importing grpc: the method is found by name, and Code is called on its result,
// which must be an unsigned number. The names are constants, so the linker still drops unused methods.
func grpcStatus(err error) (Verdict, bool) {
	code, ok := errtree.Find(err, grpcCode)
	if !ok || code >= uint64(len(grpcCodes)) {
		return noVerdict()
	}
	c := grpcCodes[code]
	if c.kind == KindUnknown {
		return noVerdict()
	}
	return Verdict{Kind: c.kind, Rule: "grpc " + c.name, Code: c.name}, true
}

func grpcCode(err error) (uint64, bool) {
	method := reflect.ValueOf(err).MethodByName("GRPCStatus")
	if !method.IsValid() || method.Type().NumIn() != 0 || method.Type().NumOut() != 1 {
		return 0, false
	}
	status := method.Call(nil)[0]
	if status.Kind() == reflect.Pointer && status.IsNil() {
		return 0, false // in grpc, a nil *Status means OK, which is not an error
	}
	code := status.MethodByName("Code")
	if !code.IsValid() || code.Type().NumIn() != 0 || code.Type().NumOut() != 1 ||
		code.Type().Out(0).Kind() != reflect.Uint32 {
		return 0, false
	}
	return code.Call(nil)[0].Uint(), true
}

// grpcCodes are indexed by code.
var grpcCodes = [...]struct {
	name string
	kind Kind
}{
	{"OK", KindUnknown},
	{"Canceled", KindRetryable},
	{"Unknown", KindUnknown},
	{"InvalidArgument", KindPermanent},
	{"DeadlineExceeded", KindRetryable},
	{"NotFound", KindPermanent},
	{"AlreadyExists", KindPermanent},
	{"PermissionDenied", KindPermanent},
	{"ResourceExhausted", KindRetryable},
	{"FailedPrecondition", KindPermanent},
	{"Aborted", KindRetryable},
	{"OutOfRange", KindPermanent},
	{"Unimplemented", KindPermanent},
	{"Internal", KindRetryable},
	{"Unavailable", KindRetryable},
	{"DataLoss", KindPermanent},
	{"Unauthenticated", KindPermanent},
}
