package middleware_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/failsafe-go/failsafe-go/bulkhead"
	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	"github.com/failsafe-go/failsafe-go/ratelimiter"
	"github.com/failsafe-go/failsafe-go/retrypolicy"
	failsafetimeout "github.com/failsafe-go/failsafe-go/timeout"
	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

func classifier(t testing.TB, rules ...middleware.Rule) *middleware.Classifier {
	t.Helper()
	c, err := middleware.NewClassifier(rules...)
	require.NoError(t, err)
	return c
}

func jsonError(text string, into any) error { return json.Unmarshal([]byte(text), into) }

// classified is an error and what it means.
type classified struct {
	name string
	err  error
	kind middleware.Kind
	code string
}

const (
	unknown   = middleware.KindUnknown
	retryable = middleware.KindRetryable
	permanent = middleware.KindPermanent
	deferred  = middleware.KindDefer
)

func pg(code string) error { return &pgconn.PgError{Code: code} }

func my(number uint16) error { return &mysql.MySQLError{Number: number, Message: "x"} }

var remoteErrors = []classified{
	{"D38 malformed JSON", jsonError(`{"n":`, new(struct{ N int })), permanent, ""},
	{"D38 JSON of the wrong type", jsonError(`{"n":"x"}`, new(struct{ N int })), permanent, ""},
	{"JSON into nothing", jsonError(`{}`, nil), permanent, ""},
	{"A17 malformed envelope", fmt.Errorf("x: %w", envelope.ErrMalformed), permanent, ""},
	{"D38 validation (400)", middleware.HTTPStatus(400, nil), permanent, "400"},
	{"D38 validation (422)", middleware.HTTPStatus(422, nil), permanent, "422"},
	{"D38 unauthorized", middleware.HTTPStatus(401, nil), permanent, "401"},
	{"D38 not found", middleware.HTTPStatus(404, nil), permanent, "404"},
	{"D38 not found in the database", sql.ErrNoRows, permanent, ""},
	{"D38 duplicate (409)", middleware.HTTPStatus(409, nil), permanent, "409"},
	{"D38 duplicate (PostgreSQL)", pg("23505"), permanent, "23505"},
	{"D38 duplicate (MySQL)", my(1062), permanent, "1062"},
	{"D37 rate limit", middleware.HTTPStatus(429, nil), retryable, "429"},
	{"D37 500", middleware.HTTPStatus(500, nil), retryable, "500"},
	{"D37 503", middleware.HTTPStatus(503, nil), retryable, "503"},
	{"D37 request timeout", middleware.HTTPStatus(408, nil), retryable, "408"},
	{"501 will not change", middleware.HTTPStatus(501, nil), permanent, "501"},
	{"a client's own status error", clientError(502), retryable, "502"},
	{"D37 AWS throttles with 400", awsError{400, "ProvisionedThroughputExceededException"}, retryable, "400"},
	{"an AWS error that stays", awsError{400, "ValidationException"}, permanent, "400"},
	{"a client's invalid status", clientError(0), unknown, ""},
	{"D37 deadline", context.DeadlineExceeded, retryable, ""},
	{"D37 i/o deadline", os.ErrDeadlineExceeded, retryable, ""},
	{"cancelled inside the handler", context.Canceled, retryable, ""},
	{
		"D37 connection refused", &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)},
		retryable, "",
	},
	{"D37 connection reset", fmt.Errorf("x: %w", syscall.ECONNRESET), retryable, ""},
	{"D37 name resolution", &net.DNSError{Err: "no such host", IsNotFound: true}, retryable, ""},
	{"D37 connection ended", io.ErrUnexpectedEOF, retryable, ""},
	{"D37 closed connection", net.ErrClosed, retryable, ""},
	{"D37 temporary file system", &os.PathError{Op: "write", Err: syscall.ENOSPC}, retryable, ""},
	{"D37 too many open files", syscall.EMFILE, retryable, ""},
	{"a missing file is no rule's", &os.PathError{Op: "open", Err: syscall.ENOENT}, unknown, ""},
}

var databaseErrors = []classified{
	{"D37 database lost", driver.ErrBadConn, retryable, ""},
	{"D37 database connection done", sql.ErrConnDone, retryable, ""},
	{"D37 lock timeout (PostgreSQL)", pg("55P03"), retryable, "55P03"},
	{"D37 lock timeout (MySQL)", my(1205), retryable, "1205"},
	{"deadlock (PostgreSQL)", pg("40P01"), retryable, "40P01"},
	{"serialization (PostgreSQL)", fmt.Errorf("x: %w", pg("40001")), retryable, "40001"},
	{"deadlock (MySQL)", fmt.Errorf("x: %w", errors.Join(errors.New("y"), my(1213))), retryable, "1213"},
	{"connection (PostgreSQL)", pg("08006"), retryable, "08006"},
	{"shutdown (PostgreSQL)", pg("57P01"), retryable, "57P01"},
	{"too many connections (MySQL)", my(1040), retryable, "1040"},
	{"read-only (MySQL)", my(1290), retryable, "1290"},
	{"foreign key overtaken", pg("23503"), retryable, "23503"},
	{"not null", pg("23502"), permanent, "23502"},
	{"invalid text", pg("22P02"), permanent, "22P02"},
	{"syntax", pg("42601"), permanent, "42601"},
	{"too long (MySQL)", my(1406), permanent, "1406"},
	{"access denied (MySQL)", my(1045), permanent, "1045"},
	{"a class that no rule knows", pg("ZZ001"), unknown, "ZZ001"},
	{"a number that no rule knows", my(9999), unknown, ""},
	{"an invalid code", pg("x"), unknown, "x"},
}

var otherErrors = []classified{
	{"D39 circuit open", fmt.Errorf("x: %w", circuitbreaker.ErrOpen), deferred, ""},
	{"gobreaker open", fmt.Errorf("x: %w", errors.New("circuit breaker is open")), deferred, ""},
	{"bulkhead full", bulkhead.ErrFull, deferred, ""},
	{"own rate limit", ratelimiter.ErrExceeded, deferred, ""},
	{"failsafe timeout", failsafetimeout.ErrExceeded, retryable, ""},
	{"failsafe retries of the unknown", retrypolicy.ExceededError{LastError: errors.New("x")}, retryable, ""},
	{"failsafe retries of a duplicate", retrypolicy.ExceededError{LastError: pg("23505")}, permanent, "23505"},
	{"backoff.Permanent", fmt.Errorf("x: %w", backoff.Permanent(errors.New("x"))), permanent, ""},
	{"backoff.RetryAfter", backoff.RetryAfter(3), retryable, ""},
	{"says Permanent", says{permanent: true}, permanent, ""},
	{"says not Permanent", says{}, retryable, ""},
	{"says Timeout", timeoutError(true), retryable, ""},
	{"says no Timeout", timeoutError(false), unknown, ""},
	{"gRPC unavailable", grpcError(14), retryable, "Unavailable"},
	{"gRPC deadline", fmt.Errorf("x: %w", grpcError(4)), retryable, "DeadlineExceeded"},
	{"gRPC exhausted", grpcError(8), retryable, "ResourceExhausted"},
	{"gRPC invalid argument", grpcError(3), permanent, "InvalidArgument"},
	{"gRPC not found", errors.Join(errors.New("x"), grpcError(5)), permanent, "NotFound"},
	{"gRPC already exists", grpcError(6), permanent, "AlreadyExists"},
	{"gRPC unauthenticated", grpcError(16), permanent, "Unauthenticated"},
	{"gRPC unknown", grpcError(2), unknown, ""},
	{"gRPC code of the future", grpcError(99), unknown, ""},
	{"gRPC of another shape", strangeError{}, unknown, ""},
	{"panic", &middleware.PanicError{Value: "x"}, retryable, ""},
	{"panic with a permanent error", &middleware.PanicError{Value: middleware.Permanent(errors.New("x"))}, permanent, ""},
	{"D39 unknown", errors.New("no idea"), unknown, ""},
	{"an error with a code", coder("E42"), unknown, "E42"},
	{"nil pointer in an interface", (*brokenError)(nil), unknown, ""},
}

// Every row of the decision tree, with errors of real libraries.
func TestClassifier_BuiltinRules(t *testing.T) {
	c := classifier(t)
	for _, tt := range slices.Concat(remoteErrors, databaseErrors, otherErrors) {
		t.Run(tt.name, func(t *testing.T) {
			v := c.Classify(tt.err)
			require.Equal(t, tt.kind.String(), v.Kind.String(), "%+v", v)
			require.Equal(t, tt.code, v.Code)
			require.NotEmpty(t, v.Rule)
		})
	}
}

type clientError int

func (clientError) Error() string         { return "response" }
func (s clientError) HTTPStatusCode() int { return int(s) }

// awsError has the methods of the AWS SDK's response errors.
type awsError struct {
	clientError

	code string
}

func (e awsError) ErrorCode() string { return e.code }

type says struct{ permanent bool }

func (says) Error() string     { return "says" }
func (s says) Permanent() bool { return s.permanent }

type timeoutError bool

func (timeoutError) Error() string   { return "timed out" }
func (t timeoutError) Timeout() bool { return bool(t) }

type coder string

func (coder) Error() string  { return "coded" }
func (c coder) Code() string { return string(c) }

// grpcError has the shape of grpc's status errors, whose types the classifier does not import.
type (
	grpcCode   uint32
	grpcStatus struct{ code grpcCode }
	grpcError  uint32
)

func (s *grpcStatus) Code() grpcCode        { return s.code }
func (e grpcError) Error() string           { return "rpc error" }
func (e grpcError) GRPCStatus() *grpcStatus { return &grpcStatus{grpcCode(e)} }

type strangeError struct{}

func (strangeError) Error() string         { return "strange" }
func (strangeError) GRPCStatus(int) string { return "x" }

type brokenError struct{ text string }

func (e *brokenError) Error() string { return e.text }

func TestClassifier_Marks(t *testing.T) {
	c := classifier(t)
	cause := errors.New("cause")
	for name, tt := range map[string]struct {
		err  error
		want middleware.Verdict
	}{
		"permanent": {middleware.Permanent(cause), middleware.Verdict{Kind: middleware.KindPermanent}},
		"skip":      {middleware.Skip(cause), middleware.Verdict{Kind: middleware.KindSkip}},
		"defer": {
			middleware.Defer(cause, s),
			middleware.Verdict{Kind: middleware.KindDefer, After: s, HasAfter: true},
		},
		"retry after": {
			middleware.RetryAfter(cause, s),
			middleware.Verdict{Kind: middleware.KindRetryable, After: s, HasAfter: true},
		},
		"retry after 0": {
			middleware.RetryAfter(cause, 0),
			middleware.Verdict{Kind: middleware.KindRetryable, HasAfter: true},
		},
		"retry after the past": {
			middleware.RetryAfter(cause, -s),
			middleware.Verdict{Kind: middleware.KindRetryable, HasAfter: true},
		},
		"against a built-in rule": {middleware.Retryable(sql.ErrNoRows), middleware.Verdict{Kind: middleware.KindRetryable}},
		"the outermost counts": {
			middleware.Skip(fmt.Errorf("x: %w", middleware.Permanent(cause))),
			middleware.Verdict{Kind: middleware.KindSkip},
		},
		"wrapped and joined": {
			fmt.Errorf("x: %w", errors.Join(errors.New("y"), middleware.Permanent(cause))),
			middleware.Verdict{Kind: middleware.KindPermanent},
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := c.Classify(tt.err)
			require.Equal(t, "marked "+tt.want.Kind.String(), v.Rule)
			tt.want.Rule = v.Rule
			require.Equal(t, tt.want, v)
		})
	}
	require.ErrorIs(t, middleware.Permanent(cause), cause)
	require.Equal(t, "cause", middleware.Defer(cause, s).Error(), "a mark does not change the text")
	require.NoError(t, middleware.Permanent(nil))
	require.NoError(t, middleware.RetryAfter(nil, s))
}

func TestClassifier_RulesInOrder(t *testing.T) {
	errIBAN := errors.New("invalid IBAN")
	c := classifier(t,
		middleware.MatchFunc(func(error) bool { panic("broken rule") }, middleware.KindSkip, "broken"),
		middleware.MatchError(errIBAN, middleware.KindPermanent, "IBAN"),
		middleware.MatchType[*os.PathError](middleware.KindRetryable, "files"),
		middleware.Rule{
			Name: "slow down", Kind: middleware.KindRetryable, After: s,
			Match: func(err error) bool { return err.Error() == "slow" },
		},
		middleware.MatchError(errIBAN, middleware.KindSkip, "never reached"),
		middleware.MatchError(sql.ErrNoRows, middleware.KindRetryable, "events overtake rows"),
	)
	v := c.Classify(fmt.Errorf("x: %w", errIBAN))
	require.Equal(t, middleware.KindPermanent, v.Kind)
	require.Equal(t, "IBAN", v.Rule)
	require.Equal(t, `rule "broken": broken rule`, v.RulePanic, "a rule that panics decides nothing and is reported")

	require.Equal(t, "files", c.Classify(&os.PathError{Op: "open", Err: syscall.ENOENT}).Rule)
	require.Equal(t, s, c.Classify(errors.New("slow")).After)
	require.Equal(t, "events overtake rows", c.Classify(sql.ErrNoRows).Rule, "before the built-in rules")
	require.Equal(t, middleware.KindUnknown, c.Classify((*brokenError)(nil)).Kind)
}

func TestNewClassifier_RefusesBrokenRules(t *testing.T) {
	_, err := middleware.NewClassifier(middleware.Rule{Kind: 9, After: -s}, middleware.Rule{Name: "second"})
	require.ErrorContains(t, err, "rule 1: Name is required")
	require.ErrorContains(t, err, "rule 1: Match is required")
	require.ErrorContains(t, err, "rule 1: unknown Kind 9")
	require.ErrorContains(t, err, "rule 1: After is -1s")
	require.ErrorContains(t, err, `rule 2 ("second"): Match is required`)
}

// Retry-After in seconds, as a date, and in the malformed ways of servers.
func TestHTTPStatus_RetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now() // 2000-01-01 in a bubble
		for name, tt := range map[string]struct {
			status int
			header string
			want   time.Duration
			has    bool
		}{
			"seconds":              {429, "120", 120 * s, true},
			"spaces":               {503, " 7 ", 7 * s, true},
			"zero":                 {503, "0", 0, true},
			"date":                 {503, now.UTC().Add(90 * s).Format(http.TimeFormat), 90 * s, true},
			"RFC 850 date":         {503, now.UTC().Add(90 * s).Format(time.RFC850), 90 * s, true},
			"asctime date":         {503, now.UTC().Add(90 * s).Format(time.ANSIC), 90 * s, true},
			"date in the past":     {503, now.UTC().Add(-90 * s).Format(http.TimeFormat), 0, true},
			"absurd":               {429, "9223372036854775807", longest, true},
			"too long for numbers": {429, "99999999999999999999", 0, false},
			"negative":             {429, "-5", 0, false},
			"a fraction":           {429, "1.5", 0, false},
			"nonsense":             {429, "soon", 0, false},
			"absent":               {429, "", 0, false},
			"of a permanent error": {404, "120", 0, false},
		} {
			header := http.Header{}
			if tt.header != "" {
				header.Set("retry-after", tt.header)
			}
			v := classifier(t).Classify(middleware.HTTPStatus(tt.status, header))
			require.Equal(t, tt.has, v.HasAfter, name)
			require.Equal(t, tt.want, v.After, name)
		}
	})
	// A date is by the server's clock. By ours, which may be ahead, it had passed: the message was retried without a pause
	// until it was dead. By one that is behind, it waited for hours.
	for _, off := range []time.Duration{-time.Hour, time.Hour} {
		served := time.Now().Add(off).UTC()
		header := http.Header{}
		header.Set("Date", served.Format(http.TimeFormat))
		header.Set("Retry-After", served.Add(90*s).Format(http.TimeFormat))
		v := classifier(t).Classify(middleware.HTTPStatus(503, header))
		require.Equal(t, 90*s, v.After, "a server whose clock is off by %s", off)
		header.Set("Date", "today")
		require.True(t, classifier(t).Classify(middleware.HTTPStatus(503, header)).HasAfter)
	}
	require.NoError(t, middleware.HTTPStatus(204, nil))
	require.NoError(t, middleware.HTTPStatus(302, nil))
	v := classifier(t).Classify(middleware.Retryable(middleware.HTTPStatus(429, http.Header{"Retry-After": {"9"}})))
	require.Equal(t, 9*s, v.After, "a mark keeps the server's delay")
	require.Equal(t, "429", v.Code)
}

// A publisher's error is no verdict on the message, but a rule for ProducedError is: it was ignored.
func TestClassify_RulesForProducedError(t *testing.T) {
	produced := &middleware.ProducedError{Err: middleware.Skip(pg("42P01"))}
	own := middleware.MatchType[*middleware.ProducedError](middleware.KindPermanent, "own")
	publishers := middleware.MatchType[*pgconn.PgError](middleware.KindPermanent, "the publisher's")
	all := middleware.MatchFunc(func(error) bool { return true }, middleware.KindSkip, "all")
	for want, rules := range map[string][][]middleware.Rule{
		"own":                            {{own}, {own, publishers}, {publishers, own}, {all, own}},
		"produced message not published": {nil, {publishers}, {all}},
	} {
		for _, rules := range rules {
			c, err := middleware.NewClassifier(rules...)
			require.NoError(t, err)
			require.Equal(t, want, c.Classify(fmt.Errorf("wrapped: %w", produced)).Rule, "%v", rules)
		}
	}
}
