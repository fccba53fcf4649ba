package dashboard

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/wire"
)

type runsData struct {
	Runs   []namedRun
	State  string
	Next   string
	States []redrive.State
}

const runsPage = 30

func (r *request) runs() error {
	var f redrive.RunFilter
	state, after := r.Form.Get("state"), r.Form.Get("after")
	switch {
	case state == "unfinished":
		f.States = unfinished
	case slices.Contains(redrive.States(), redrive.State(state)):
		f.States = []redrive.State{redrive.State(state)}
	case state != "":
		return invalid("state %q", state)
	}
	runs, next, at, err := cachedPair(r.Context(), r.cache, "runs "+state+" "+after,
		func(ctx context.Context) ([]redrive.Run, string, error) {
			return r.cfg.Runner.Runs(ctx, f, dlq.Page{Limit: runsPage, After: after})
		})
	if err != nil {
		return err
	}
	data := runsData{Runs: r.named(runs), State: state, Next: next, States: redrive.States()}
	return r.page("runs", view{Title: "Redrive runs", Nav: "runs", Live: true, At: at, Data: &data})
}

type namedRun struct {
	wire.Run

	Name string
}

// named are the runs as the caller may see them, with their names.
func (r *request) named(runs []redrive.Run) []namedRun {
	list := make([]namedRun, len(runs))
	for i, run := range r.sees.Runs(runs, r.now()) {
		list[i] = namedRun{run, r.nameOf(&run)}
	}
	return list
}

// nameOf names a run by its entries: an id means nothing to a person.
func (r *request) nameOf(run *wire.Run) string {
	f := &run.Spec.Filter
	used := search{Filter: *f}
	var parts []string
	if f.Fingerprint != "" {
		parts = append(parts, oneLine(70, r.causeOf(f.Fingerprint)))
	}
	for _, c := range used.Chips("group", "to") { // every run has the time until which it was frozen
		parts = append(parts, c.Label+" "+oneLine(50, c.Value))
	}
	for _, s := range f.Statuses {
		if s != dlq.Pending {
			parts = append(parts, words(s))
		}
	}
	what, n := strings.Join(parts, ", "), run.Counts.Total()
	switch {
	case n > 0 && what == "":
		return plural(n, "entry", "entries") + ", all that were pending"
	case n > 0:
		return plural(n, "entry", "entries") + ": " + what
	case what == "":
		return "everything pending"
	default:
		return what
	}
}

// causeOf is the visible text of a cause.
func (r *request) causeOf(fingerprint string) string {
	groups, _, err := cached(r.Context(), r.cache, "cause "+fingerprint,
		func(ctx context.Context) ([]driver.Group, error) {
			return r.cfg.Manager.Groups(ctx, dlq.GroupQuery{Fingerprint: fingerprint, Limit: 1})
		})
	if err != nil || len(groups) == 0 { // it was purged, or the store is down: use the less readable name
		return "cause " + fingerprint
	}
	return r.sees.Groups(groups)[0].Cause
}

// maxBadge is the largest number in the menu.
const maxBadge = 99

// awaiting is how many runs wait for the caller's approval, for the menu.
func (r *request) awaiting() string {
	if r.cfg.ReadOnly || !r.who.Role.Allows(access.Approver) {
		return ""
	}
	runs, _, err := cached(r.Context(), r.cache, "awaiting", func(ctx context.Context) ([]redrive.Run, error) {
		waiting := redrive.RunFilter{States: []redrive.State{redrive.AwaitingApproval}}
		runs, _, err := r.cfg.Runner.Runs(ctx, waiting, dlq.Page{Limit: maxBadge + 1})
		return runs, err
	})
	if err != nil {
		return "" // the page itself shows that the store is down
	}
	own := func(run redrive.Run) bool { return r.started(&run) }
	switch n := len(slices.DeleteFunc(slices.Clone(runs), own)); {
	case n == 0:
		return ""
	case n > maxBadge:
		return strconv.Itoa(maxBadge) + "+"
	default:
		return strconv.Itoa(n)
	}
}

// started reports whether the caller has started a run, and so cannot approve it.
func (r *request) started(run *redrive.Run) bool {
	return driver.Person(run.CreatedBy) == driver.Person(r.who.Name)
}

// runData is one run and what happened to its entries.
type runData struct {
	namedRun

	Chips []chip
	// Items are the first entries that did not succeed, or a page of those in the requested state.
	Items   []wire.RunItem
	Show    redrive.ItemState
	Next    int64
	Audit   []auditRow
	Actions []string
	// Own means that the caller started the run.
	Own   bool
	Parts []part
	// Review is what it would send, while it waits for approval.
	Review *wire.RunReview
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

// storedRun is what the store has about a run.
type storedRun struct {
	run     *redrive.Run
	items   []redrive.Item
	next    int64
	records []driver.AuditRecord
}

func (r *request) run() error {
	id, show := r.PathValue("id"), redrive.ItemState(r.Form.Get("items"))
	after, _ := strconv.ParseInt(r.Form.Get("after"), 10, 64) // an invalid value means the first page
	if show != "" && !slices.Contains(redrive.ItemStates(), show) {
		return invalid("items %q", show)
	}
	stored, at, err := cached(r.Context(), r.runsCache, fmt.Sprint("run ", id, " ", show, " ", after),
		func(ctx context.Context) (*storedRun, error) { return r.readRun(ctx, id, show, after) })
	if err != nil {
		return err
	}
	run := r.sees.Run(stored.run, r.now())
	used := search{Filter: run.Spec.Filter}
	data := runData{
		namedRun: namedRun{run, r.nameOf(&run)}, Chips: used.Chips(), Own: r.started(stored.run),
		Show: show, Next: stored.next, Actions: runActions(&run), Parts: partsOf(run.Counts),
		Audit: r.auditRows(driver.FoldAudit(r.sees.Audit(stored.records))), Items: r.sees.Items(stored.items),
	}
	if run.State == redrive.AwaitingApproval {
		data.Review, err = r.cfg.Review(r.Context(), id, sampleSize)
		if err != nil && !errors.Is(err, dlq.ErrForbidden) { // a viewer sees the rest
			return err
		}
	}
	v := view{Title: oneLine(60, data.Name), Nav: "runs", At: at, Data: &data}
	v.Live = data.Review == nil || !r.cfg.AuditReads // otherwise each refresh would be recorded
	if run.State != redrive.AwaitingApproval && (!run.State.Ended() || run.Counts.Open() > 0) {
		v.Every = 1
	}
	return r.page("run", v)
}

func (d *dashboard) readRun(ctx context.Context, id string, show redrive.ItemState, after int64) (*storedRun, error) {
	run, err := d.cfg.Runner.Run(ctx, id)
	if err != nil {
		return nil, err
	}
	stored := &storedRun{run: run}
	states := []redrive.ItemState{redrive.ItemFailed, redrive.ItemLost, redrive.ItemSkipped}
	if show != "" {
		states = []redrive.ItemState{show}
	}
	for _, state := range states {
		if run.Counts.Of(state) == 0 || len(stored.items) >= itemsPage {
			continue
		}
		items, err := d.cfg.Runner.RunItems(ctx, id,
			redrive.ItemFilter{State: state, After: after, Limit: itemsPage - len(stored.items)})
		if err != nil {
			return nil, err
		}
		stored.items = append(stored.items, items...)
	}
	if show != "" && len(stored.items) == itemsPage {
		stored.next = stored.items[itemsPage-1].EntryID
	}
	stored.records, _, err = d.cfg.Manager.AuditLog(ctx, dlq.AuditFilter{Run: id}, dlq.Page{Limit: auditPage})
	return stored, err
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
func runActions(run *wire.Run) []string {
	switch {
	case run.State.Ended():
		return nil
	case run.State == redrive.AwaitingApproval:
		return []string{"approve", "reject"}
	case run.State == redrive.Paused, run.State == redrive.Stopped, run.Pausing():
		return []string{"resume", "cancel"}
	default:
		return []string{"pause", "cancel"}
	}
}

// changeRun does one action on a run, or changes its rate. The run's state may have changed since the page was shown:
// what counts is whether the action still fits.
func (r *request) changeRun() error {
	id, m, do := r.PathValue("id"), r.cfg.Runner, r.PostForm.Get("do")
	if do == "approve" || do == "reject" {
		if err := r.requires(access.Approver); err != nil {
			return err
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
	run, err := change(r.Context(), id, r.by())
	r.forget()
	if errors.Is(err, dlq.ErrForbidden) {
		return newFault(http.StatusForbidden, "Someone else has to do it", err.Error()+".", err)
	}
	if err != nil {
		return err
	}
	return r.redirect("/runs/"+id, "The run is "+words(run.State)+".")
}

// forget empties the caches after a change.
func (d *dashboard) forget() {
	d.cache.forget()
	d.runsCache.forget()
}
