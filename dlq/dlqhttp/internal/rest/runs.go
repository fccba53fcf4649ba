package rest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/callers"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/internal/guarded"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/wire"
)

// RunID is a run's id in a path.
type RunID struct {
	ID string `path:"id" pattern:"^[A-Za-z0-9_.-]{1,64}$" doc:"The run's id."`
}

type startInput struct {
	Key  string `header:"Idempotency-Key" maxLength:"255" doc:"Makes the request safe to repeat, over restarts of the server too: the same key means the same run."`
	Body wire.RunRequest
}

type startOutput struct {
	Location string `header:"Location"`
	ETag     string `header:"ETag"`
	Body     wire.Run
}

type runsInput struct {
	wire.RunFilter
	wire.Page
	Self
}

type itemsInput struct {
	RunID
	wire.ItemFilter
	Self
}

type steerInput struct {
	RunID
	Match
	Body *wire.Note
}

type adjustInput struct {
	RunID
	Match
	Body wire.RunAdjustment
}

func (a *API) runRoutes() {
	m := a.cfg.Runner
	register(a, readRoute("runs", "list-runs", "/runs", "List redrive runs"), a.runs)
	register(a, route{
		ID: "start-run", Method: http.MethodPost, Path: "/runs", Tag: "runs", Role: access.Operator, Changes: true,
		Slow: true, Summary: "Start a redrive run",
		Description: "The entries that match now are frozen; later ones are not included. Preview it first: /runs/preview.",
		Status:      http.StatusAccepted,
	}, a.startRun)
	handle(a, route{
		ID: "preview-run", Method: http.MethodPost, Path: "/runs/preview", Tag: "runs", Role: access.Viewer,
		Summary:     "Show what a run would do, and do nothing",
		Description: "With jq this needs the role operator.",
	}, a.previewRun)
	register(a, readRoute("runs", "get-run", "/runs/{id}", "Get a run and how far it is"), a.run)
	review := readRoute("runs", "review-run", "/runs/{id}/review", "Show what a run would send, for its approver")
	review.Description = "Its entries by topic and by cause, and the first of them with the difference between what " +
		"died and what would be sent. With jq this needs the role operator."
	handle(a, review, a.reviewRun)
	register(a, readRoute("runs", "list-run-items", "/runs/{id}/items",
		"List a run's entries and what happened to each"), a.runItems)
	for _, c := range []struct {
		verb, summary string
		role          access.Role
		do            func(context.Context, string, dlq.By) (*redrive.Run, error)
	}{
		{"pause", "Pause a run; outstanding messages are still handled", access.Operator, m.PauseRun},
		{"resume", "Resume a run that was paused or has stopped on its own", access.Operator, m.ResumeRun},
		{"cancel", "End a run; waiting entries stay unchanged", access.Operator, m.CancelRun},
		{"approve", "Approve a run that someone else has started", access.Approver, m.ApproveRun},
		{"reject", "Cancel a run that waits for approval", access.Approver, m.RejectRun},
	} {
		register(a, changeRoute(c.role, "runs", c.verb+"-run", "/runs/{id}/"+c.verb, c.summary),
			func(ctx context.Context, in *steerInput) (*tagged[wire.Run], error) {
				return a.steer(ctx, in.ID, &in.Match, noted(ctx, in.Body), c.do)
			})
	}
	register(a, route{
		ID: "adjust-run", Method: http.MethodPatch, Path: "/runs/{id}", Tag: "runs", Role: access.Operator, Changes: true,
		Summary: "Change the rate and the bounds of a run in progress",
	}, a.adjustRun)
	register(a, route{
		ID: "watch-run", Method: http.MethodGet, Path: "/runs/{id}/events", Tag: "runs", Role: access.Viewer, Slow: true,
		Sends:   "text/event-stream",
		Summary: "Watch a run: a server-sent event now and whenever something has changed",
		Description: "Events are named progress, and their data is the run as GET /runs/{id} gives it. The stream ends " +
			"with an event named end when nothing more will come, and without one after five minutes or when the server shuts " +
			"down: connect again.",
	}, a.watch)
}

func (a *API) runs(ctx context.Context, in *runsInput) (*page[wire.RunList], error) {
	if err := a.visible(ctx).Values(in.CreatedBy); err != nil {
		return nil, err
	}
	runs, next, err := a.cfg.Runner.Runs(ctx, in.RunFilter, in.Page)
	if err != nil {
		return nil, err
	}
	list := wire.RunList{Runs: a.visible(ctx).Runs(runs, a.cfg.Manager.Now(ctx)), Next: next}
	return &page[wire.RunList]{Link: in.next(next), Body: list}, nil
}

// runnable checks that the caller may start, or preview, this run.
func (a *API) runnable(ctx context.Context, w *wire.RunSpec) (redrive.Spec, error) {
	spec := *w
	if err := a.visible(ctx).JQ(spec.JQ); err != nil {
		return spec, err
	}
	var err error
	if spec.Filter, err = a.filtered(ctx, &w.Filter); err != nil {
		return spec, err
	}
	return spec, picks(&spec.Filter)
}

func (a *API) startRun(ctx context.Context, in *startInput) (*startOutput, error) {
	spec, err := a.runnable(ctx, &in.Body.RunSpec)
	if err != nil {
		return nil, err
	}
	who := by(ctx, in.Body.Note.Note)
	if in.Key != "" && spec.ID == "" {
		caller := access.From(ctx)
		spec.ID = uuid.NewSHA1(uuid.NameSpaceURL, []byte("redrive run "+caller.Identity()+"\x00"+in.Key)).String()
	}
	run, err := a.cfg.Runner.StartRun(ctx, spec, who)
	if errors.Is(err, dlq.ErrConflict) && in.Key != "" && in.Body.ID == "" {
		var same bool
		if run, same, err = a.cfg.StartedBefore(ctx, spec); err == nil && !same {
			err = huma.NewError(http.StatusUnprocessableEntity, callers.OtherBody)
		}
	}
	if err != nil {
		return nil, err
	}
	return &startOutput{
		Location: a.path + "/runs/" + url.PathEscape(run.ID), ETag: wire.ETag(run.Version), Body: a.shown(ctx, run),
	}, nil
}

func (a *API) previewRun(ctx context.Context, in *struct{ Body wire.RunPreviewRequest }) (*wire.RunPreview, error) {
	spec, err := a.runnable(ctx, &in.Body.RunSpec)
	if err != nil {
		return nil, err
	}
	return a.cfg.Preview(ctx, spec, in.Body.Sample)
}

// shown is the run as the caller may see it.
func (a *API) shown(ctx context.Context, run *redrive.Run) wire.Run {
	return a.visible(ctx).Run(run, a.cfg.Manager.Now(ctx))
}

func (a *API) run(ctx context.Context, in *RunID) (*tagged[wire.Run], error) {
	run, err := a.cfg.Runner.Run(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	return &tagged[wire.Run]{ETag: wire.ETag(run.Version), Body: a.shown(ctx, run)}, nil
}

func (a *API) reviewRun(ctx context.Context, in *struct {
	RunID
	wire.ReviewQuery
},
) (*wire.RunReview, error) {
	return a.cfg.Review(ctx, in.ID, in.Sample)
}

func (a *API) runItems(ctx context.Context, in *itemsInput) (*page[wire.ItemList], error) {
	if _, err := a.cfg.Runner.Run(ctx, in.ID); err != nil {
		return nil, err
	}
	filter := in.ItemFilter
	if filter.Limit < driver.MaxPage {
		filter.Limit++ // one more, to see whether there are more
	}
	items, err := a.cfg.Runner.RunItems(ctx, in.ID, filter)
	if err != nil {
		return nil, err
	}
	list, next := wire.ItemList{}, ""
	if len(items) > in.Limit || len(items) == driver.MaxPage {
		items = items[:in.Limit]
		list.Next = items[len(items)-1].EntryID
		next = driver.FormatID(list.Next)
	}
	list.Items = a.visible(ctx).Items(items)
	return &page[wire.ItemList]{Link: in.from("after", next), Body: list}, nil
}

func (a *API) steer(
	ctx context.Context, id string, match *Match, who dlq.By,
	do func(context.Context, string, dlq.By) (*redrive.Run, error),
) (*tagged[wire.Run], error) {
	var err error
	if who.Version, err = match.version(); err != nil {
		return nil, err
	}
	run, err := do(ctx, id, who)
	if err != nil {
		return nil, err
	}
	return &tagged[wire.Run]{ETag: wire.ETag(run.Version), Body: a.shown(ctx, run)}, nil
}

func (a *API) adjustRun(ctx context.Context, in *adjustInput) (*tagged[wire.Run], error) {
	change := redrive.Adjustment{Rate: in.Body.Rate, MaxOut: in.Body.MaxOut, Stop: in.Body.Stop}
	if change == (redrive.Adjustment{}) {
		return nil, huma.NewError(http.StatusUnprocessableEntity, "body: nothing to change: give rate, max_out or stop")
	}
	return a.steer(ctx, in.ID, &in.Match, by(ctx, in.Body.Note.Note),
		func(ctx context.Context, id string, who dlq.By) (*redrive.Run, error) {
			return a.cfg.Runner.AdjustRun(ctx, id, change, who)
		})
}

const (
	// watchEvery is how often the store is polled for a watched run.
	watchEvery = 500 * time.Millisecond
	// keepAlive is how often a stream sends something when nothing happens: proxies close silent connections.
	keepAlive = 15 * time.Second
	// maxStream is how long a stream lasts: a caller whose token was revoked, or whose role was changed, sees no more.
	maxStream = 5 * time.Minute
)

func (a *API) watch(ctx context.Context, in *RunID) (*huma.StreamResponse, error) {
	if _, err := a.cfg.Runner.Run(ctx, in.ID); err != nil {
		return nil, err
	}
	free, err := a.streams.Take(ctx, access.From(ctx))
	if err != nil {
		return nil, huma.ErrorWithHeaders(huma.NewError(http.StatusServiceUnavailable,
			fmt.Sprintf("%s: poll GET %s/runs/%s instead", err, a.path, in.ID)), http.Header{"Retry-After": {"30"}})
	}
	return &huma.StreamResponse{Body: func(ctx huma.Context) { //nolint:contextcheck // huma's context has ours
		defer free()
		a.stream(ctx, in.ID)
	}}, nil
}

// stream sends events until the run is done, its time is over, the client disconnects, or the server shuts down.
func (a *API) stream(hc huma.Context, id string) {
	ctx, cancel := context.WithTimeout(hc.Context(), maxStream)
	defer cancel()
	runs := make(chan *redrive.Run)
	go func() {
		defer close(runs)
		err := guarded.Call(func() error { return a.follow(ctx, id, runs) })
		if err != nil && ctx.Err() == nil && !errors.Is(err, dlq.ErrNotFound) {
			a.cfg.Logger.WarnContext(ctx, "progress stream ended", "run", id, "error", err)
		}
	}()
	hc.SetHeader("Content-Type", "text/event-stream")
	hc.SetHeader("X-Accel-Buffering", "no")
	events := eventWriter{hc: hc}
	alive := time.NewTicker(keepAlive)
	defer alive.Stop()
	var last *redrive.Run
	for {
		var err error
		select {
		case run, more := <-runs:
			if !more {
				if last != nil && last.State.Ended() {
					_ = events.send("end", a.shown(ctx, last)) // the last event; no reader is left for the error
				}
				return
			}
			last = run
			err = events.send("progress", a.shown(ctx, run))
		case <-alive.C:
			err = events.write(": still here\n\n")
		case <-a.closing:
			return
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// follow passes on every change of a run.
func (a *API) follow(ctx context.Context, id string, runs chan<- *redrive.Run) error {
	for run, err := range a.cfg.Runner.WatchRun(ctx, id, watchEvery) {
		if err != nil {
			return err
		}
		select {
		case runs <- run:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// eventWriter writes server-sent events.
type eventWriter struct{ hc huma.Context }

func (e eventWriter) send(name string, data any) error {
	text, err := json.Marshal(data)
	if err != nil {
		return err
	}
	return e.write("event: " + name + "\ndata: " + string(text) + "\n\n")
}

func (e eventWriter) write(text string) error {
	out, ok := e.hc.BodyWriter().(http.ResponseWriter)
	if !ok {
		return http.ErrNotSupported
	}
	if _, err := out.Write([]byte(text)); err != nil {
		return err
	}
	return http.NewResponseController(out).Flush()
}
