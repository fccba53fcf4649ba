package dlqhttp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/operations"
	"github.com/redrive-go/redrive/dlq/redact"
	"github.com/redrive-go/redrive/dlq/redrive"
)

// Config configures a [Handler]. The zero value of everything but Manager and Runner is the safe default.
type Config struct {
	// Manager has the dead letters. Required.
	Manager *dlq.Manager
	// Runner starts, shows and changes redrive runs. Required.
	Runner *redrive.Runner
	// Prefix is the path below which everything is served, such as /ops. Defaults to none.
	Prefix string
	// Auth identifies the sender of a request: the first authenticator that reads its credentials decides. Without any,
	// the server only answers this machine, whose users may do everything.
	Auth []Authenticator
	// Login lets people log in with an OpenID provider, alongside Auth. Nil means no login.
	Login *Login
	// PublicURL is where people reach this server. With https, or when the server itself uses TLS, browsers are instructed
	// to use nothing else.
	PublicURL string
	// Hosts are the host names that requests may be for, without port. Without Auth, localhost and the loopback
	// addresses are always among them; with Auth, an empty list allows any.
	Hosts []string
	// Origins are other browser origins (https://ops.example) that may change something.
	Origins []string
	// ReadOnly refuses everything that changes something.
	ReadOnly bool
	// Redaction hides what not everyone may see. Nil hides nothing.
	Redaction *redact.Rules
	// AuditReads records in the audit log who read which entry's message. A message is not shown if that fails, and the
	// audit log does not show what edits changed in it. Pages with messages do not refresh automatically.
	AuditReads bool
	// RevealTo is the lowest role that sees what Redaction hides. The zero Role means that no role does.
	RevealTo Role
	// Health reports on the components. Nil only checks the store. It is called for each /readyz and must return within
	// its context.
	Health func(context.Context) Health
	// Topology returns what the brokers have and what is planned, as something that JSON can show. With nil that route
	// answers 404.
	Topology func(context.Context) (any, error)
	// Depths counts the messages in the queues of the brokers, for the live screen. Nil counts nothing. It may return an
	// error together with the numbers of the brokers that did respond.
	Depths func(context.Context) ([]Depth, error)
	// Settings is the configuration to show to admins, without secrets. Nil shows none.
	Settings any
	// Rate is the rate at which the dashboard and the command start a run for which none is given, in messages per
	// second. 0 means no limit.
	Rate float64
	// Rules are the redrive rules that the program applies, to be shown.
	Rules []redrive.Rule
	// Retention is what the program applies, to be shown and previewed.
	Retention dlq.Retention
	// Metrics is served at /metrics, to every role. Nil serves none.
	Metrics http.Handler
	// Limits limit what a client may request.
	Limits Limits
	// ShowFaults answers a failed request with the error of the store, which is otherwise only logged, and shown to admins
	// by the dashboard. Set it for a handler that only its own user can reach.
	ShowFaults bool
	// Logger logs changes, refusals and faults. Defaults to slog.Default().
	Logger *slog.Logger

	// interval is the maximum age of what a page shows; tests change it.
	interval time.Duration
}

// Limits limit what a client may request. A zero field means its default.
type Limits = operations.Limits

// Depth is how many messages of one kind wait in a queue: a brokers.Depth, and the name of its broker.
type Depth = operations.Depth

// The caller, and what it may do.
type (
	// Role is what a caller may do: [Metrics] < [Viewer] < [Operator] < [Approver] < [Admin].
	Role = access.Role
	// Principal is the caller: the name for the audit log, and the role.
	Principal = access.Principal
	// Authenticator identifies the sender of a request; see [Config.Auth].
	Authenticator = access.Authenticator
	// AuthenticatorFunc turns a function into an Authenticator: for a separate login in front of the handler.
	AuthenticatorFunc = access.AuthenticatorFunc
)

// Errors of an [Authenticator].
var (
	// ErrNoCredentials means that the next authenticator is tried.
	ErrNoCredentials = access.ErrNoCredentials
	// ErrBadCredentials refuses the request.
	ErrBadCredentials = access.ErrBadCredentials
)

// The roles, the lowest first; each includes those before it.
const (
	Metrics  = access.Metrics
	Viewer   = access.Viewer
	Operator = access.Operator
	Approver = access.Approver
	Admin    = access.Admin
)

func (c *Config) setDefaults() {
	c.Logger = cmp.Or(c.Logger, slog.Default())
	c.Prefix = strings.TrimSuffix(c.Prefix, "/")
	if c.Login != nil {
		c.Auth = append(slices.Clone(c.Auth), c.Login)
	}
	l := &c.Limits
	l.Body, l.Import = cmp.Or(l.Body, 4<<20), cmp.Or(l.Import, 1<<30)
	l.Rate, l.Burst = cmp.Or(l.Rate, 50), cmp.Or(l.Burst, 200)
	l.Streams, l.Timeout = cmp.Or(l.Streams, 100), cmp.Or(l.Timeout, 30*time.Second)
}

func (c *Config) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Manager == nil {
		bad("Manager: required")
	}
	if c.Runner == nil {
		bad("Runner: required")
	}
	if c.Prefix != "" && (c.Prefix[0] != '/' || path.Clean(c.Prefix) != c.Prefix ||
		strings.ContainsAny(c.Prefix, "{}?#% ")) {
		bad("Prefix %q: a path such as /ops", c.Prefix)
	}
	for i, a := range c.Auth {
		if a == nil {
			bad("Auth[%d]: nil", i)
		}
	}
	if !(c.Rate >= 0) {
		bad("Rate %v: must not be negative", c.Rate)
	}
	l := &c.Limits
	if l.Body < 0 || l.Import < 0 || l.Burst < 1 || l.Streams < 1 || l.Timeout < 0 {
		bad("Limits %+v: must not be negative", *l)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("dlqhttp: %w", err)
	}
	return nil
}
