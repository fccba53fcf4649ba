// Package operations is what the API and the dashboard share: their configuration, the operations that both offer, and
// what an error of one means to the caller.
package operations

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/callers"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/visible"
	"github.com/redrive-go/redrive/dlq/driver"
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
	// Searches limits the searches in texts.
	Searches *callers.Slots
	// Interval is how often a page refreshes, and the maximum age of what it shows.
	Interval time.Duration
}

// Limits limit what a client may request. A zero field means its default.
type Limits struct {
	// Body is the largest request body in bytes. Defaults to 4 MiB, enough to edit a large payload.
	Body int64 `yaml:"body" jsonschema:"minimum=0"`
	// Import is the largest import in bytes. Defaults to 1 GiB.
	Import int64 `yaml:"import" jsonschema:"minimum=0"`
	// Rate is how many requests per second one client may make on average, Burst how many at once. Default to 50 and 200.
	// A negative Rate means no limit.
	Rate  float64 `yaml:"rate"`
	Burst int     `yaml:"burst" jsonschema:"minimum=0"`
	// Streams is how many progress streams may be open at once: a tenth of them per caller, and a tenth reserved for
	// admins. Defaults to 100.
	Streams int `yaml:"streams" jsonschema:"minimum=0"`
	// Timeout is how long a request may take, except exports, imports, purges and streams. Defaults to 30 s.
	Timeout time.Duration `yaml:"timeout"`
}

// Depth is how many messages of one kind wait in a queue: a brokers.Depth, and the name of its broker.
type Depth struct {
	Broker, Topic, Group, Kind string
	Messages                   int64
}

// HealthTimeout is how long a component may take to respond.
const HealthTimeout = 3 * time.Second

// Storable reports whether a store can hold a text: no database takes NUL, or text that is not UTF-8.
func Storable(text string) bool { return utf8.ValidString(text) && !strings.ContainsRune(text, 0) }

// Fault is what the error of an operation means to its caller: a status for programs, a title and a detail for people.
type Fault struct {
	Status        int
	Title, Detail string
}

// faults are the known errors; the first that matches counts. %s in a detail is the error's text.
var faults = []struct {
	err error
	Fault
}{
	{dlq.ErrPublish, Fault{
		http.StatusServiceUnavailable, "Not sent: the broker did not accept the message",
		"The entry waits as before, and can be redriven again.",
	}},
	{dlq.ErrNotFound, Fault{
		http.StatusNotFound, "Not found", "It may have been purged. The audit log has its history.",
	}},
	{dlq.ErrConflict, Fault{
		http.StatusConflict, "Someone else was faster",
		"Nothing was changed: %s. Go back and look at it again.",
	}},
	{callers.ErrFull, Fault{
		http.StatusTooManyRequests, "Other searches are running",
		"%s. Try again when one has ended. A topic, a cause or a time makes a search faster.",
	}},
	{dlq.ErrForbidden, Fault{http.StatusForbidden, "You may not do this", "%s."}},
	{dlq.ErrInvalid, Fault{http.StatusUnprocessableEntity, "This is not valid", "%s. Nothing was changed."}},
}

// FaultOf returns what an error means. An unknown one means that the store, or something behind it, failed: it has no
// detail, and the status 503, or 504 when the request ran out of time.
func FaultOf(ctx context.Context, err error) Fault {
	if refused, ok := errors.AsType[*visible.RefusedError](err); ok {
		status := http.StatusForbidden
		if refused.Invalid {
			status = http.StatusUnprocessableEntity
		}
		return Fault{status, "A part of this is hidden from you", refused.Detail + "."}
	}
	for _, known := range faults {
		if errors.Is(err, known.err) {
			f := known.Fault
			if strings.Contains(f.Detail, "%s") {
				f.Detail = fmt.Sprintf(f.Detail, err)
			}
			return f
		}
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return Fault{Status: http.StatusGatewayTimeout, Title: "It took too long"}
	}
	return Fault{Status: http.StatusServiceUnavailable, Title: "This did not work"}
}

// limited makes a search. One in texts takes a slot: it reads the bodies or errors of everything that its other fields
// select, which may take long on a large store with only a few connections to read with.
func limited[T any](ctx context.Context, c *Config, f *dlq.Filter, search func() (T, error)) (found T, err error) {
	if f.ReadsBodies() || f.ErrorText != "" {
		free, err := c.Searches.Take(ctx, access.From(ctx))
		if err != nil {
			return found, err
		}
		defer free()
	}
	return search()
}

// List is a page of entries, within the limit of searches.
func (c *Config) List(ctx context.Context, f dlq.Filter, p dlq.Page) (driver.Listing, error) {
	return limited(ctx, c, &f, func() (driver.Listing, error) { return c.Manager.List(ctx, f, p) })
}

// Listing is a page of entries, and how many match.
type Listing struct {
	driver.Listing
	Count int64
}

// Listing is a page of entries and their total, counted up to a limit, 0 for all. Both are one search: the total must
// not wait for a slot that others took after the page.
func (c *Config) Listing(ctx context.Context, f dlq.Filter, p dlq.Page, upTo int64) (Listing, error) {
	return limited(ctx, c, &f, func() (l Listing, err error) {
		if l.Listing, err = c.Manager.List(ctx, f, p); err != nil {
			return l, err
		}
		if l.Count = int64(len(l.Entries)); p.After != "" || l.Next != "" { // otherwise these are all
			l.Count, err = c.Manager.Count(ctx, f, upTo)
		}
		return l, err
	})
}

// Count counts entries up to a limit, 0 for all, within the limit of searches.
func (c *Config) Count(ctx context.Context, f dlq.Filter, upTo int64) (int64, error) {
	return limited(ctx, c, &f, func() (int64, error) { return c.Manager.Count(ctx, f, upTo) })
}

// Groups are causes as the caller may see them, and whether there are more.
func (c *Config) Groups(ctx context.Context, q dlq.GroupQuery) (groups []driver.Group, more bool, err error) {
	wide, shown := c.Visible(ctx).Causes(q)
	groups, more, err = c.Manager.ListGroups(ctx, wide)
	if err != nil {
		return nil, false, err
	}
	groups = shown(groups)
	limit := cmp.Or(q.Limit, wire.DefaultGroups)
	return groups[:min(limit, len(groups))], more || len(groups) > limit, nil
}

// Stats are the statistics as the caller may see them.
func (c *Config) Stats(ctx context.Context, q dlq.StatsQuery) (*wire.Stats, error) {
	stats, err := c.Manager.Stats(ctx, q)
	if err != nil {
		return nil, err
	}
	view := c.Visible(ctx)
	shown := view.Stats(&stats)
	if view.Hides() {
		shown.TopCauses, _, err = c.Groups(ctx, dlq.GroupQuery{Status: dlq.Pending, Limit: q.TopCauses})
	}
	return &shown, err
}

// Recurrence is a report as the caller may see it.
func (c *Config) Recurrence(ctx context.Context, period time.Duration) (*dlq.Recurrence, error) {
	_, shown := c.Visible(ctx).Causes(dlq.GroupQuery{})
	return c.Manager.Recurrence(ctx, dlq.RecurrenceQuery{Period: period, Retention: c.Retention, Shown: shown})
}

// Preview is what a run would do, as the caller may see it.
func (c *Config) Preview(ctx context.Context, spec redrive.Spec, sample int) (*wire.RunPreview, error) {
	if err := mayEvaluate(ctx, spec.JQ); err != nil {
		return nil, err
	}
	preview, err := limited(ctx, c, &spec.Filter, func() (*redrive.Preview, error) {
		return c.Runner.PreviewRun(ctx, spec, sample)
	})
	if err != nil {
		return nil, err
	}
	if err := c.Read(ctx, "preview", sampled(preview.Sample)...); err != nil {
		return nil, err
	}
	return new(c.Visible(ctx).Preview(preview)), nil
}

// StartedBefore is the run that an earlier request with this id has started, and whether that requested the same.
func (c *Config) StartedBefore(ctx context.Context, spec redrive.Spec) (run *redrive.Run, same bool, err error) {
	if run, err = c.Runner.Run(ctx, spec.ID); err != nil {
		return nil, false, err
	}
	if spec, err = c.Runner.CheckSpec(spec); err != nil {
		return nil, false, err
	}
	spec.Paused = run.Spec.Paused // it may have been paused or resumed since
	wanted, wrong := json.Marshal(&spec)
	stored, err := json.Marshal(&run.Spec) // an empty list was stored as none
	return run, bytes.Equal(wanted, stored), errors.Join(wrong, err)
}

// Review is what a run that waits for approval would send, as the caller may see it.
func (c *Config) Review(ctx context.Context, id string, sample int) (*wire.RunReview, error) {
	run, err := c.Runner.Run(ctx, id)
	if err == nil {
		err = mayEvaluate(ctx, run.Spec.JQ)
	}
	if err != nil {
		return nil, err
	}
	review, err := c.Runner.ReviewRun(ctx, id, sample)
	if err != nil {
		return nil, err
	}
	if err := c.Read(ctx, "review", sampled(review.Sample)...); err != nil {
		return nil, err
	}
	return new(c.Visible(ctx).Review(review, c.Manager.Now(ctx))), nil
}

// mayEvaluate refuses to evaluate a jq expression for a caller who may not edit: it takes time and memory.
func mayEvaluate(ctx context.Context, jq string) error {
	if who := access.From(ctx); jq != "" && !who.Role.Allows(access.Operator) {
		return fmt.Errorf("%w: %s", dlq.ErrForbidden, access.Refusal(who, access.Operator))
	}
	return nil
}

func sampled(samples []redrive.Sample) []int64 {
	ids := make([]int64, len(samples))
	for i := range samples {
		ids[i] = samples[i].Entry.ID
	}
	return ids
}
