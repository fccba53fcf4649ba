package rest

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"reflect"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
)

// RunRequest asks for a run.
type RunRequest struct {
	RunSpec
	Note
}

// RunPreviewRequest asks what a run would do.
type RunPreviewRequest struct {
	RunSpec
	Sample int `json:"sample,omitempty" minimum:"0" maximum:"100" doc:"How many entries to look at. Defaults to 10."`
}

// RunAdjustment changes a run under way; what is not given stays.
type RunAdjustment struct {
	Rate   *float64  `json:"rate,omitempty" minimum:"0"`
	MaxOut *int      `json:"max_out,omitempty"`
	Stop   *StopRule `json:"stop,omitempty"`
	Note
}

// RunID is a run's id in a path.
type RunID struct {
	ID string `path:"id" pattern:"^[A-Za-z0-9_.-]{1,64}$" doc:"The run's id."`
}

type startInput struct {
	Key  string `header:"Idempotency-Key" maxLength:"255" doc:"Makes the request safe to repeat, over restarts of the server too: the same key means the same run."`
	Body RunRequest
}

type startOutput struct {
	Location string `header:"Location"`
	ETag     string `header:"ETag"`
	Body     Run
}

type runOutput struct {
	ETag string `header:"ETag"`
	Body Run
}

type runsInput struct {
	State     []string `query:"state" nullable:"false" enum:"preparing,awaiting_approval,running,paused,stopped,completed,cancelled" doc:"Runs in any of these."`
	CreatedBy string   `query:"created_by"`
	Active    bool     `query:"active" doc:"Only those for which there is something to do."`
	Page
	Self
}

type runsOutput struct {
	Link
	Body RunList
}

// RunList is a page of runs.
type RunList struct {
	Runs []Run  `json:"runs" nullable:"false"`
	Next string `json:"next,omitempty" doc:"The cursor of the next page; absent on the last."`
}

type itemsInput struct {
	RunID
	State string `query:"state" enum:"waiting,claimed,out,succeeded,failed,lost,skipped"`
	After int64  `query:"after" minimum:"0" doc:"Go on behind this entry."`
	Limit int    `query:"limit" minimum:"1" maximum:"1000" default:"50" doc:"At most so many."`
}

// ItemList is a page of a run's entries, by their id.
type ItemList struct {
	Items []RunItem `json:"items" nullable:"false"`
	Next  int64     `json:"next,omitempty" doc:"The after of the next page; absent on the last."`
}

type steerInput struct {
	RunID
	Match
	Body *Note
}

type adjustInput struct {
	RunID
	Match
	Body RunAdjustment
}

func (a *API) runRoutes() {
	m := a.cfg.Manager
	handle(a, route{
		id: "list-runs", method: http.MethodGet, path: "/runs", tag: "runs", role: access.Viewer, summary: "List redrive runs",
	}, a.runs)
	handle(a, route{
		id: "start-run", method: http.MethodPost, path: "/runs", tag: "runs", role: access.Operator, changes: true, slow: true,
		summary:     "Start a redrive run",
		description: "What the filter picks now is frozen; what dies later is not taken. Look first: /runs/preview.",
		status:      http.StatusAccepted,
	}, a.startRun)
	handle(a, route{
		id: "preview-run", method: http.MethodPost, path: "/runs/preview", tag: "runs", role: access.Viewer,
		summary: "Show what a run would do, and do nothing",
	}, a.previewRun)
	handle(a, route{
		id: "get-run", method: http.MethodGet, path: "/runs/{id}", tag: "runs", role: access.Viewer, summary: "Get a run and how far it is",
	}, a.run)
	handle(a, route{
		id: "list-run-items", method: http.MethodGet, path: "/runs/{id}/items", tag: "runs", role: access.Viewer,
		summary: "List a run's entries and what became of each",
	}, a.runItems)
	for _, c := range []struct {
		verb, summary string
		role          access.Role
		do            func(context.Context, string, dlq.By) (*dlq.Run, error)
	}{
		{"pause", "Pause a run; what is out goes on", access.Operator, m.PauseRun},
		{"resume", "Carry on a run that was paused or has stopped by itself", access.Operator, m.ResumeRun},
		{"cancel", "End a run; what waits stays as it was", access.Operator, m.CancelRun},
		{"approve", "Let a run begin that somebody else has asked for", access.Approver, m.ApproveRun},
		{"reject", "Cancel a run that waits for approval", access.Approver, m.RejectRun},
	} {
		handle(a, route{
			id: c.verb + "-run", method: http.MethodPost, path: "/runs/{id}/" + c.verb, tag: "runs", role: c.role, changes: true,
			summary: c.summary,
		}, func(ctx context.Context, in *steerInput) (*runOutput, error) {
			note := ""
			if in.Body != nil {
				note = in.Body.Note
			}
			return a.steer(ctx, in.ID, &in.Match, note, c.do)
		})
	}
	handle(a, route{
		id: "adjust-run", method: http.MethodPatch, path: "/runs/{id}", tag: "runs", role: access.Operator, changes: true,
		summary: "Change the speed and the bounds of a run under way",
	}, a.adjustRun)
}

func (a *API) runs(ctx context.Context, in *runsInput) (*runsOutput, error) {
	filter := dlq.RunFilter{CreatedBy: in.CreatedBy, Active: in.Active}
	for _, s := range in.State {
		filter.States = append(filter.States, dlq.RunState(s))
	}
	runs, next, err := a.cfg.Manager.Runs(ctx, filter, in.page())
	if err != nil {
		return nil, a.fail(ctx, err, 0)
	}
	list := RunList{Runs: make([]Run, 0, len(runs)), Next: next}
	for i := range runs {
		list.Runs = append(list.Runs, a.runOf(ctx, &runs[i]))
	}
	return &runsOutput{Link: in.next(next), Body: list}, nil
}

// specOf checks that who asks may run so.
func (a *API) runnable(ctx context.Context, s *RunSpec) (dlq.RunSpec, error) {
	if s.JQ != "" && a.visible(ctx) != nil {
		return dlq.RunSpec{}, a.noJQ()
	}
	filter, err := a.filtered(ctx, &s.Filter)
	return s.spec(filter), err
}

func (a *API) startRun(ctx context.Context, in *startInput) (*startOutput, error) {
	spec, err := a.runnable(ctx, &in.Body.RunSpec)
	if err != nil {
		return nil, a.fail(ctx, err, 0)
	}
	if err := picks(&spec.Filter); err != nil {
		return nil, err
	}
	who := by(ctx, in.Body.Note.Note)
	if in.Key != "" && spec.ID == "" {
		spec.ID = uuid.NewSHA1(uuid.NameSpaceURL, []byte("redrive run "+who.Actor+"\x00"+in.Key)).String()
	}
	run, err := a.cfg.Manager.StartRun(ctx, spec, who)
	if errors.Is(err, dlq.ErrConflict) && in.Key != "" && in.Body.ID == "" {
		run, err = a.startedBefore(ctx, spec)
	}
	if err != nil {
		return nil, a.fail(ctx, err, 0)
	}
	return &startOutput{Location: a.cfg.Path + "/runs/" + url.PathEscape(run.ID), ETag: etag(run.Version), Body: a.runOf(ctx, run)}, nil
}

// startedBefore is the run that an earlier request with the same key has started, if it asked for the same.
func (a *API) startedBefore(ctx context.Context, spec dlq.RunSpec) (*dlq.Run, error) {
	run, err := a.cfg.Manager.Run(ctx, spec.ID)
	if err != nil {
		return nil, err
	}
	preview, err := a.cfg.Manager.PreviewRun(ctx, spec, 1)
	if err != nil {
		return nil, err
	}
	if !reflect.DeepEqual(specOf(&preview.Spec), specOf(&run.Spec)) {
		return nil, huma.NewError(http.StatusUnprocessableEntity, otherBody)
	}
	return run, nil
}

func (a *API) previewRun(ctx context.Context, in *struct{ Body RunPreviewRequest }) (*output[RunPreview], error) {
	spec, err := a.runnable(ctx, &in.Body.RunSpec)
	if err != nil {
		return nil, a.fail(ctx, err, 0)
	}
	preview, err := a.cfg.Manager.PreviewRun(ctx, spec, in.Body.Sample)
	if err != nil {
		return nil, a.fail(ctx, err, 0)
	}
	return &output[RunPreview]{a.runPreviewOf(ctx, preview)}, nil
}

func (a *API) run(ctx context.Context, in *RunID) (*runOutput, error) {
	run, err := a.cfg.Manager.Run(ctx, in.ID)
	if err != nil {
		return nil, a.fail(ctx, err, 0)
	}
	return &runOutput{ETag: etag(run.Version), Body: a.runOf(ctx, run)}, nil
}

func (a *API) runItems(ctx context.Context, in *itemsInput) (*output[ItemList], error) {
	if _, err := a.cfg.Manager.Run(ctx, in.ID); err != nil {
		return nil, a.fail(ctx, err, 0)
	}
	items, err := a.cfg.Manager.RunItems(ctx, in.ID, dlq.ItemFilter{State: dlq.ItemState(in.State), After: in.After, Limit: in.Limit})
	if err != nil {
		return nil, a.fail(ctx, err, 0)
	}
	rules := a.visible(ctx)
	list := ItemList{Items: make([]RunItem, 0, len(items))}
	for i := range items {
		item := &items[i]
		list.Items = append(list.Items, RunItem{
			EntryID: item.EntryID, State: string(item.State), Detail: rules.Text(item.Detail), Version: item.Version, Revision: item.Revision,
			Redrive: item.Redrive, ClaimedUntil: item.ClaimedUntil, SettledAt: item.SettledAt,
		})
	}
	if len(items) == in.Limit {
		list.Next = items[len(items)-1].EntryID
	}
	return &output[ItemList]{list}, nil
}

func (a *API) steer(
	ctx context.Context, id string, match *Match, note string, do func(context.Context, string, dlq.By) (*dlq.Run, error),
) (*runOutput, error) {
	version, err := match.version()
	if err != nil {
		return nil, err
	}
	who := by(ctx, note)
	who.Version = version
	run, err := do(ctx, id, who)
	if err != nil {
		return nil, a.fail(ctx, err, version)
	}
	return &runOutput{ETag: etag(run.Version), Body: a.runOf(ctx, run)}, nil
}

func (a *API) adjustRun(ctx context.Context, in *adjustInput) (*runOutput, error) {
	change := dlq.RunAdjustment{Rate: in.Body.Rate, MaxOut: in.Body.MaxOut}
	if in.Body.Stop != nil {
		stop := dlq.StopRule(*in.Body.Stop)
		change.Stop = &stop
	}
	if change == (dlq.RunAdjustment{}) {
		return nil, huma.NewError(http.StatusUnprocessableEntity, "body: nothing to change: give rate, max_out or stop")
	}
	return a.steer(ctx, in.ID, &in.Match, in.Body.Note.Note, func(ctx context.Context, id string, who dlq.By) (*dlq.Run, error) {
		return a.cfg.Manager.AdjustRun(ctx, id, change, who)
	})
}
