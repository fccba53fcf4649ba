package middleware

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

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
// http.Header); its Retry-After, in seconds or as a date, is honoured for retryable statuses:
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
	// The three formats of RFC 9110, all in GMT.
	for _, layout := range []string{"Mon, 02 Jan 2006 15:04:05 GMT", time.RFC850, time.ANSIC} {
		if at, err := time.Parse(layout, value); err == nil {
			return max(0, at.Sub(now)), true
		}
	}
	return 0, false
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
	if e, ok := errors.AsType[interface {
		error
		HTTPStatusCode() int
	}](err); ok {
		status = e.HTTPStatusCode()
	} else if e, ok := errors.AsType[interface {
		error
		StatusCode() int
	}](err); ok {
		status = e.StatusCode()
	}
	if status < 400 || status > 599 {
		return noVerdict() // no status, or not an error of the response
	}
	return statusVerdict(status), true
}

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
