package dashboard

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
)

// runsData is a page of the runs.
type runsData struct {
	Runs   []namedRun
	State  string
	Next   string
	States []redrive.State
}

const runsPage = 30

func (d *dashboard) runs(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	var f redrive.RunFilter
	state := q.Get("state")
	switch {
	case state == "unfinished":
		f.States = unfinished
	case slices.Contains(redrive.States(), redrive.State(state)):
		f.States = []redrive.State{redrive.State(state)}
	case state != "":
		return invalid("state %q", state)
	}
	after := q.Get("after")
	type answer struct {
		runs []redrive.Run
		next string
	}
	a, at, err := cached(r.Context(), d.cache, "runs "+state+" "+after, func(ctx context.Context) (a answer, err error) {
		a.runs, a.next, err = d.cfg.Runner.Runs(ctx, f, dlq.Page{Limit: runsPage, After: after})
		return a, err
	})
	if err != nil {
		return err
	}
	shown := d.named(r, d.cfg.Visible(r.Context()).ShownRuns(a.runs)) //nolint:contextcheck // of the request
	data := runsData{Runs: shown, State: state, Next: a.next, States: redrive.States()}
	return d.page(w, r, "runs", view{Title: "Redrive runs", Nav: "runs", Live: true, At: at, Data: &data})
}

// runData is one run and what happened to its entries.
type runData struct {
	Run      *redrive.Run
	Name     string
	Progress redrive.Progress
	Chips    []chip
	// Items are the first entries that did not succeed, or a page of those in the requested state.
	Items   []redrive.Item
	Show    redrive.ItemState
	Next    int64
	Audit   []auditRow
	records []driver.AuditRecord
	Actions []string
	// Own means that the caller requested the run, and so cannot approve it.
	Own   bool
	Parts []part
	// Review is what it would send, while it waits for approval.
	Review *reviewView
}

// part is a part of the progress bar.
type part struct {
	Class, Label string
	N            int64
	// X and Width are in thousandths of the bar.
	X, Width int64
}

const (
	itemsPage = 50
	auditPage = 200
	// A run in progress is watched more closely than the rest.
	runInterval = time.Second
)

func (d *dashboard) run(w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	show := redrive.ItemState(r.URL.Query().Get("items"))
	after, _ := strconv.ParseInt(r.URL.Query().Get("after"), 10, 64) // an invalid value means the first page
	if show != "" && !slices.Contains(redrive.ItemStates(), show) {
		return invalid("items %q", show)
	}
	data, at, err := cached(r.Context(), d.runsCache, fmt.Sprint("run ", id, " ", show, " ", after),
		func(ctx context.Context) (*runData, error) {
			return d.readRun(ctx, id, show, after)
		})
	if err != nil {
		return err
	}
	seen, sees := *data, d.cfg.Visible(r.Context())
	seen.Run = sees.ShownRun(data.Run)
	used := search{Filter: seen.Run.Spec.Filter}
	seen.Chips = used.Chips()
	seen.Progress = seen.Run.Progress(d.cfg.Manager.Now(r.Context()))
	seen.Own = driver.Person(data.Run.CreatedBy) == driver.Person(access.From(r.Context()).Name)
	if seen.Review, err = d.review(r.Context(), data.Run); err != nil {
		return err
	}
	seen.Items, seen.Audit = sees.ShownItems(data.Items), d.auditRows(r, sees.Audit(data.records))
	seen.Name = d.nameOf(r, seen.Run) //nolint:contextcheck // of the request
	v := view{Title: oneLine(60, seen.Name), Nav: "runs", Live: true, At: at, Data: &seen}
	if !seen.Run.State.Ended() || seen.Run.Counts.Open() > 0 {
		v.Every = 1
	}
	return d.page(w, r, "run", v)
}

func (d *dashboard) readRun(ctx context.Context, id string, show redrive.ItemState, after int64) (*runData, error) {
	run, err := d.cfg.Runner.Run(ctx, id)
	if err != nil {
		return nil, err
	}
	data := &runData{Run: run, Show: show, Actions: runActions(run), Parts: partsOf(run.Counts)}
	states := []redrive.ItemState{redrive.ItemFailed, redrive.ItemLost, redrive.ItemSkipped}
	if show != "" {
		states = []redrive.ItemState{show}
	}
	for _, state := range states {
		if run.Counts.Of(state) == 0 || len(data.Items) >= itemsPage {
			continue
		}
		items, err := d.cfg.Runner.RunItems(ctx, id,
			redrive.ItemFilter{State: state, After: after, Limit: itemsPage - len(data.Items)})
		if err != nil {
			return nil, err
		}
		data.Items = append(data.Items, items...)
	}
	if show != "" && len(data.Items) == itemsPage {
		data.Next = data.Items[itemsPage-1].EntryID
	}
	data.records, _, err = d.cfg.Manager.AuditLog(ctx, dlq.AuditFilter{Run: id}, dlq.Page{Limit: auditPage})
	return data, err
}

// partsOf are the parts of the progress bar, finished ones first.
func partsOf(c redrive.Counts) []part {
	all := []part{
		{Class: "succeeded", Label: "succeeded", N: c.Succeeded},
		{Class: "failed", Label: "failed again", N: c.Failed},
		{Class: "lost", Label: "no outcome", N: c.Lost},
		{Class: "skipped", Label: "skipped", N: c.Skipped},
		{Class: "out", Label: "out, outcome awaited", N: c.Out},
		{Class: "claimed", Label: "being published", N: c.Claimed},
		{Class: "waiting", Label: "waiting", N: c.Waiting},
	}
	total := max(c.Total(), 1)
	var x int64
	for i := range all {
		p := &all[i]
		p.X, p.Width = x, p.N*1000/total
		x += p.Width
	}
	return all
}

// runActions are the actions that a run's state allows.
func runActions(run *redrive.Run) []string {
	switch run.State {
	case redrive.AwaitingApproval:
		return []string{"approve", "reject"}
	case redrive.Running:
		return []string{"pause", "cancel"}
	case redrive.Paused, redrive.Stopped:
		return []string{"resume", "cancel"}
	case redrive.Preparing:
		return []string{"cancel"}
	default:
		return nil
	}
}

// changeRun does one action on a run, or changes its rate.
func (d *dashboard) changeRun(w http.ResponseWriter, r *http.Request) error {
	by, err := d.by(r)
	if err != nil {
		return err
	}
	id, m, do := r.PathValue("id"), d.cfg.Runner, r.PostForm.Get("do")
	if p := access.From(r.Context()); (do == "approve" || do == "reject") && !p.Role.Allows(access.Approver) {
		return &fault{
			status: http.StatusForbidden, title: "This is not for you",
			detail: access.Refusal(p, access.Approver) + ". Ask the people who approve runs.",
		}
	}
	changes := map[string]func(context.Context, string, dlq.By) (*redrive.Run, error){
		"approve": m.ApproveRun, "reject": m.RejectRun, "pause": m.PauseRun, "resume": m.ResumeRun, "cancel": m.CancelRun,
		"adjust": func(ctx context.Context, id string, by dlq.By) (*redrive.Run, error) {
			rate, err := strconv.ParseFloat(r.PostForm.Get("rate"), 64)
			if err != nil || rate < 0 {
				return nil, invalid("rate %q: messages a second, 0 for no limit", r.PostForm.Get("rate"))
			}
			return m.AdjustRun(ctx, id, redrive.Adjustment{Rate: &rate}, by)
		},
	}
	change, known := changes[do]
	if !known {
		return invalid("action %q", do)
	}
	// The run's state may have changed since the page was shown: what counts is whether the action still fits.
	by.Version = 0
	run, err := change(r.Context(), id, by)
	d.forget()
	if err != nil {
		if errors.Is(err, redrive.ErrForbidden) {
			return newFault(http.StatusForbidden, "Someone else has to do it", err.Error()+".", err)
		}
		return err
	}
	d.see(w, r, "/runs/"+id, "The run is "+words(run.State)+".")
	return nil
}

// forget empties the caches after a change.
func (d *dashboard) forget() {
	d.cache.forget()
	d.runsCache.forget()
}
