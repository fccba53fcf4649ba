package dashboard

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/visible"
	"github.com/redrive-go/redrive/dlq/redrive"
)

// Config configures the dashboard.
type Config struct {
	// Manager has the dead letters. Required.
	Manager *dlq.Manager
	// Runner starts, shows and changes redrive runs. Required.
	Runner *redrive.Runner
	// Prefix is the path of the dashboard, such as /ops; empty means the root.
	Prefix string
	// ReadOnly hides everything that changes something, and refuses it.
	ReadOnly bool
	// Visible is what a caller may see. Nil hides nothing.
	Visible func(context.Context) visible.View
	// Refused is called when a caller requested something hidden from it, Read before a caller sees the messages of
	// entries. Nil records nothing.
	Refused func(context.Context, *visible.RefusedError)
	Read    func(ctx context.Context, what string, entries ...int64) error
	// Health reports on the components. Nil only checks the store.
	Health func(context.Context) []Component
	// Topology returns what the brokers have and what is planned, as something that JSON can show. Nil shows none.
	Topology func(context.Context) (any, error)
	// Depths counts the messages in the brokers. Nil counts nothing; an error may come with numbers of other brokers.
	Depths func(context.Context) ([]Depth, error)
	// Settings is the configuration to show to admins, without secrets. Nil shows none.
	Settings any
	// Rate is the initial rate in the form for a new run, in messages per second; 0 means no limit.
	Rate float64
	// Rules are the redrive rules that the program applies, to be shown.
	Rules []redrive.Rule
	// Retention is what the program applies, to be shown and previewed.
	Retention dlq.Retention
	// Session reports whether a caller has logged in, and can log out. Nil means that no caller has.
	Session func(*http.Request) bool
	// Interval is how often a page refreshes, and the maximum age of what it shows. Defaults to 5 s.
	Interval time.Duration
	// Body is the largest form in bytes. Defaults to 4 MiB.
	Body int64
	// Timeout is how long a page may take. Defaults to 30 s.
	Timeout time.Duration
	// Logger logs faults. Defaults to slog.Default().
	Logger *slog.Logger
}

// Component is the state of a component that the program needs.
type Component struct {
	// Name is "store" or "broker orders", for example.
	Name string
	// Error is what is wrong; empty if nothing is.
	Error string
}

const (
	defaultInterval = 5 * time.Second
	defaultBody     = 4 << 20
	defaultTimeout  = 30 * time.Second
)

// New makes the dashboard's handler. The caller is in the context of the request (see the access package); the wrapping
// handler has refused unknown callers and requests of other sites.
func New(cfg Config) *access.Mux {
	if cfg.Interval <= 0 {
		cfg.Interval = defaultInterval
	}
	if cfg.Body <= 0 {
		cfg.Body = defaultBody
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = defaultTimeout
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Visible == nil {
		cfg.Visible = func(context.Context) visible.View { return visible.View{} }
	}
	if cfg.Refused == nil {
		cfg.Refused = func(context.Context, *visible.RefusedError) {}
	}
	if cfg.Read == nil {
		cfg.Read = func(context.Context, string, ...int64) error { return nil }
	}
	if cfg.Health == nil {
		cfg.Health = func(ctx context.Context) []Component {
			store := Component{Name: "store"}
			if err := cfg.Manager.Ping(ctx); err != nil {
				store.Error = err.Error()
			}
			return []Component{store}
		}
	}
	d := &dashboard{
		cfg: cfg, cache: newCache(cfg.Interval), runsCache: newCache(min(runInterval, cfg.Interval)),
		jobs: newJobs(),
	}
	return d.routes()
}
