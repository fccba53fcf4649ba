// Package operations is what the API and the dashboard share: their configuration, the operations that both offer, and
// what an error of one means to the caller.
package operations

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/visible"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/wire"
)

// Config configures the API and the dashboard; dlqhttp.Config explains the fields that both have.
type Config struct {
	Manager   *dlq.Manager
	Runner    *redrive.Runner
	Prefix    string
	ReadOnly  bool
	Health    func(context.Context) wire.Health
	Topology  func(context.Context) (any, error)
	Depths    func(context.Context) ([]Depth, error)
	Settings  any
	Rate      float64
	Rules     []redrive.Rule
	Retention dlq.Retention
	Limits    Limits
	Logger    *slog.Logger

	// Visible is what a caller may see.
	Visible func(context.Context) visible.View
	// Refused is called when a caller requested something hidden from it.
	Refused func(context.Context, *visible.RefusedError)
	// Read is called before a caller sees the messages of entries: if it fails, they are not shown. AuditReads means that
	// it records.
	Read       func(ctx context.Context, what string, entries ...int64) error
	AuditReads bool
	// ShowFaults answers with the error of the store or the broker, which is otherwise only logged.
	ShowFaults bool
	// Session reports whether a caller has logged in, and can log out. Nil means that no caller has.
	Session func(*http.Request) bool
	// Interval is how often a page refreshes, and the maximum age of what it shows.
	Interval time.Duration
}

// Limits limit what a client may request. A zero field means its default.
type Limits struct {
	// Body is the largest request body in bytes. Defaults to 4 MiB, enough to edit a large payload.
	Body int64
	// Import is the largest import in bytes. Defaults to 1 GiB.
	Import int64
	// Rate is how many requests per second one client may make on average, Burst how many at once. Default to 50 and 200.
	// A negative Rate means no limit.
	Rate  float64
	Burst int
	// Streams is how many progress streams may be open at once: a tenth of them per caller, and a tenth reserved for
	// admins. Defaults to 100.
	Streams int
	// Timeout is how long a request may take, except exports, imports, purges and streams. Defaults to 30 s.
	Timeout time.Duration
}

// Depth is how many messages of one kind wait in a queue: a brokers.Depth, and the name of its broker.
type Depth struct {
	Broker, Topic, Group, Kind string
	Messages                   int64
}

// Storable reports whether a store can hold a text: no database takes NUL, or text that is not UTF-8.
func Storable(text string) bool { return utf8.ValidString(text) && !strings.ContainsRune(text, 0) }
