package rest

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"reflect"

	"github.com/redrive-go/redrive/dlq/redrive"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/callers"
	"github.com/redrive-go/redrive/dlq/driver"
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

type runOutput struct {
	ETag string `header:"ETag"`
	Body wire.Run
}

type runsInput struct {
	wire.RunFilter
	wire.Page
	Self
}

type runsOutput struct {
	Link
	Body wire.RunList
}

type itemsInput struct {
	RunID
	wire.ItemFilter
	Self
}

type itemsOutput struct {
	Link
	Body wire.ItemList
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
	handleOutput(a, readRoute("runs", "list-runs", "/runs", "List redrive runs"), a.runs)
	handleOutput(a, route{
		id: "start-run", method: http.MethodPost, path: "/runs", tag: "runs", role: access.Operator, changes: true,
		slow:        true,
		summary:     "Start a redrive run",
		description: "The entries that match now are frozen; later ones are not included. Preview it first: /runs/preview.",
		status:      http.StatusAccepted,
	}, a.startRun)
	handle(a, route{
		id: "preview-run", method: http.MethodPost, path: "/runs/preview", tag: "runs", role: access.Viewer,
		summary: "Show what a run would do, and do nothing",
	}, a.previewRun)
	handleOutput(a, readRoute("runs", "get-run", "/runs/{id}", "Get a run and how far it is"), a.run)
	review := readRoute("runs", "review-run", "/runs/{id}/review", "Show what a run would send, for its approver")
	review.description = "Its entries by topic and by cause, and the first of them with the difference between what " +
		"died and what would be sent."
	handle(a, review, a.reviewRun)
	handleOutput(a, readRoute("runs", "list-run-items", "/runs/{id}/items",
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
		handleOutput(a, changeRoute(c.role, "runs", c.verb+"-run", "/runs/{id}/"+c.verb, c.summary),
			func(ctx context.Context, in *steerInput) (*runOutput, error) {
				return a.steer(ctx, in.ID, &in.Match, cmp.Or(in.Body, &wire.Note{}).Note, c.do)
			})
	}
	handleOutput(a, route{
		id: "adjust-run", method: http.MethodPatch, path: "/runs/{id}", tag: "runs", role: access.Operator, changes: true,
		summary: "Change the rate and the bounds of a run in progress",
	}, a.adjustRun)
}

func (a *API) runs(ctx context.Context, in *runsInput) (*runsOutput, error) {
	if err := a.visible(ctx).Values(in.CreatedBy); err != nil {
		return nil, err
	}
	runs, next, err := a.cfg.Runner.Runs(ctx, in.RunFilter, in.Page)
	if err != nil {
		return nil, err
	}
	list := wire.RunList{Runs: make([]wire.Run, 0, len(runs)), Next: next}
	for i := range runs {
		list.Runs = append(list.Runs, a.visible(ctx).Run(&runs[i]))
	}
	return &runsOutput{Link: in.next(next), Body: list}, nil
}

// runnable checks that the caller may start this run.
func (a *API) runnable(ctx context.Context, w *wire.RunSpec) (redrive.Spec, error) {
	spec := *w
	if err := a.visible(ctx).JQ(spec.JQ); err != nil {
		return spec, err
	}
	var err error
	spec.Filter, err = a.filtered(ctx, &w.Filter)
	return spec, err
}

func (a *API) startRun(ctx context.Context, in *startInput) (*startOutput, error) {
	spec, err := a.runnable(ctx, &in.Body.RunSpec)
	if err != nil {
		return nil, err
	}
	if err := picks(&spec.Filter); err != nil {
		return nil, err
	}
	who := by(ctx, in.Body.Note.Note)
	if in.Key != "" && spec.ID == "" {
		spec.ID = uuid.NewSHA1(uuid.NameSpaceURL, []byte("redrive run "+identity(ctx)+"\x00"+in.Key)).String()
	}
	run, err := a.cfg.Runner.StartRun(ctx, spec, who)
	if errors.Is(err, dlq.ErrConflict) && in.Key != "" && in.Body.ID == "" {
		run, err = a.startedBefore(ctx, spec)
	}
	if err != nil {
		return nil, err
	}
	return &startOutput{
		Location: a.cfg.Path + "/runs/" + url.PathEscape(run.ID), ETag: etag(run.Version),
		Body: a.visible(ctx).Run(run),
	}, nil
}

// startedBefore is the run that an earlier request with the same key has started, if it requested the same.
func (a *API) startedBefore(ctx context.Context, spec redrive.Spec) (*redrive.Run, error) {
	run, err := a.cfg.Runner.Run(ctx, spec.ID)
	if err != nil {
		return nil, err
	}
	preview, err := a.cfg.Runner.PreviewRun(ctx, spec, 1)
	if err != nil {
		return nil, err
	}
	if !reflect.DeepEqual(preview.Spec, run.Spec) {
		return nil, huma.NewError(http.StatusUnprocessableEntity, callers.OtherBody)
	}
	return run, nil
}

func (a *API) previewRun(ctx context.Context, in *struct{ Body wire.RunPreviewRequest }) (*wire.RunPreview, error) {
	spec, err := a.runnable(ctx, &in.Body.RunSpec)
	if err != nil {
		return nil, err
	}
	preview, err := a.cfg.Runner.PreviewRun(ctx, spec, in.Body.Sample)
	if err != nil {
		return nil, err
	}
	if err := a.cfg.Read(ctx, "preview", sampled(preview.Sample)...); err != nil {
		return nil, err
	}
	return new(a.visible(ctx).Preview(preview)), nil
}

func (a *API) run(ctx context.Context, in *RunID) (*runOutput, error) {
	run, err := a.cfg.Runner.Run(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	return &runOutput{ETag: etag(run.Version), Body: a.visible(ctx).Run(run)}, nil
}

func (a *API) reviewRun(ctx context.Context, in *struct {
	RunID
	wire.ReviewQuery
},
) (*wire.RunReview, error) {
	review, err := a.cfg.Runner.ReviewRun(ctx, in.ID, in.Sample)
	if err != nil {
		return nil, err
	}
	if err := a.cfg.Read(ctx, "review", sampled(review.Sample)...); err != nil {
		return nil, err
	}
	return new(a.visible(ctx).Review(review)), nil
}

// sampled are the entries of a preview.
func sampled(samples []redrive.Sample) []int64 {
	ids := make([]int64, len(samples))
	for i := range samples {
		ids[i] = samples[i].Entry.ID
	}
	return ids
}

func (a *API) runItems(ctx context.Context, in *itemsInput) (*itemsOutput, error) {
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
	list, next := wire.ItemList{Items: make([]wire.RunItem, 0, len(items))}, ""
	if len(items) > in.Limit || len(items) == driver.MaxPage {
		items = items[:in.Limit]
		list.Next = items[len(items)-1].EntryID
		next = driver.FormatID(list.Next)
	}
	for i := range items {
		list.Items = append(list.Items, a.visible(ctx).Item(&items[i]))
	}
	return &itemsOutput{Link: in.from("after", next), Body: list}, nil
}

func (a *API) steer(
	ctx context.Context, id string, match *Match, note string,
	do func(context.Context, string, dlq.By) (*redrive.Run, error),
) (*runOutput, error) {
	version, err := match.version()
	if err != nil {
		return nil, err
	}
	who := by(ctx, note)
	who.Version = version
	run, err := do(ctx, id, who)
	if err != nil {
		return nil, err
	}
	return &runOutput{ETag: etag(run.Version), Body: a.visible(ctx).Run(run)}, nil
}

func (a *API) adjustRun(ctx context.Context, in *adjustInput) (*runOutput, error) {
	change := redrive.Adjustment{Rate: in.Body.Rate, MaxOut: in.Body.MaxOut, Stop: in.Body.Stop}
	if change == (redrive.Adjustment{}) {
		return nil, huma.NewError(http.StatusUnprocessableEntity, "body: nothing to change: give rate, max_out or stop")
	}
	return a.steer(ctx, in.ID, &in.Match, in.Body.Note.Note,
		func(ctx context.Context, id string, who dlq.By) (*redrive.Run, error) {
			return a.cfg.Runner.AdjustRun(ctx, id, change, who)
		})
}
