package dashboard

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/internal/guarded"
	"github.com/redrive-go/redrive/dlq/wire"
)

// bulkAction is an action on many entries.
type bulkAction struct {
	Do               driver.Action
	Verb, Done, Help string
}

var bulkActions = map[string]bulkAction{
	"resolve": {driver.ActionResolve, "Resolve", "resolved", "They are taken care of elsewhere. Nothing is sent."},
	"discard": {
		driver.ActionDiscard, "Discard", "discarded",
		"They are given up. They are kept, and can be restored until they are purged.",
	},
	"park": {
		driver.ActionPark, "Park", "parked",
		"They wait for a person: neither rules nor runs over pending entries take them.",
	},
	"restore": {driver.ActionRestore, "Restore", "restored", "They are pending again."},
}

// confirmData is shown before many entries are changed: those of a search, or those of several causes.
type confirmData struct {
	Action bulkAction
	Count  int64
	Chips  []chip
	Sample []wire.Entry
	Causes []cause
	// Statuses are those that the action is for.
	Statuses []dlq.Status
	// Fields are the form's hidden fields.
	Fields []field
	// Back is where the person came from, below the prefix.
	Nav, Back, BackLabel string
}

// chosen reads which entries are meant: the selected ones, or all that match the filter.
func chosen(q url.Values, now time.Time) (search, error) {
	if q.Get("scope") != "all" {
		if len(q["pick"]) == 0 {
			return search{}, newFault(http.StatusUnprocessableEntity, "Nothing is selected",
				"Go back and select some entries, or all that match.", nil)
		}
		q = url.Values{"id": q["pick"]}
	}
	s, err := parseSearch(q, now)
	return s.Frozen(now), err
}

// confirmEntries counts before acting. Redriving many entries is a run, which has a separate page.
func (r *request) confirmEntries() error {
	s, err := chosen(r.Form, r.now())
	if err != nil {
		return err
	}
	if r.Form.Get("do") == "redrive" {
		return r.redirect("/runs/new?"+string(s.Query()), "")
	}
	data := confirmData{Nav: "entries", Back: "/entries?" + string(s.Query()), BackLabel: "Entries"}
	if data.Action, err = r.bulkAction(); err != nil {
		return err
	}
	if len(s.Filter.Statuses) == 0 {
		s.Filter.Statuses = driver.From(data.Action.Do) // as the change itself does
	}
	data.Statuses, data.Chips, data.Fields = s.Filter.Statuses, s.Chips(), s.Fields()
	return r.confirm(&data, []dlq.Filter{s.Filter})
}

// confirmCauses counts the entries of the selected causes. Redriving one cause is a run; a run takes one cause, so that
// its canary is meaningful.
func (r *request) confirmCauses() error {
	picked, redrive := r.Form["pick"], r.Form.Get("do") == "redrive"
	if redrive && len(picked) == 1 {
		return r.redirect("/runs/new?"+url.Values{"group": picked, "status": {string(dlq.Pending)}}.Encode(), "")
	}
	data := confirmData{Nav: "groups", Back: "/groups", BackLabel: "Causes"}
	var refused *fault
	switch {
	case len(picked) == 0:
		refused = newFault(http.StatusUnprocessableEntity, "Nothing is selected", "Go back and select some causes.", nil)
	case redrive:
		refused = newFault(http.StatusUnprocessableEntity, "One cause at a time",
			"A run takes one cause, so that its canary is meaningful. Select one.", nil)
	}
	if refused != nil {
		refused.back, refused.backLabel = data.Back, data.BackLabel
		return refused
	}
	var err error
	if data.Action, err = r.bulkAction(); err != nil {
		return err
	}
	data.Statuses = driver.From(data.Action.Do)
	var frozen dlq.Filter
	frozen.Freeze(r.now())
	data.Fields = []field{{"to", frozen.To.Format(time.RFC3339)}}
	for _, fingerprint := range picked {
		data.Fields = append(data.Fields, field{"pick", fingerprint})
	}
	return r.confirm(&data, ofCauses(picked, data.Action, frozen.To))
}

// ofCauses are the filters of the entries of several causes that died before a time.
func ofCauses(fingerprints []string, action bulkAction, to time.Time) []dlq.Filter {
	var filters []dlq.Filter
	for _, fingerprint := range fingerprints {
		filters = append(filters, dlq.Filter{Fingerprint: fingerprint, Statuses: driver.From(action.Do), To: to})
	}
	return filters
}

// confirm counts what the filters select, and shows the causes, or the first entries.
func (r *request) confirm(data *confirmData, filters []dlq.Filter) error {
	for i := range filters {
		f := &filters[i]
		if err := r.searches(f, ""); err != nil {
			return err
		}
		l, err := r.cfg.Listing(r.Context(), *f, dlq.Page{Limit: 5}, 0)
		if err != nil {
			return err
		}
		data.Count += l.Count
		if data.Nav == "groups" {
			groups, err := r.cfg.Manager.Groups(r.Context(), dlq.GroupQuery{Fingerprint: f.Fingerprint, Limit: 1})
			if err != nil {
				return err
			}
			data.Causes = append(data.Causes, causesOf(r.sees.Groups(groups), r.now())...)
			continue
		}
		data.Sample = r.sees.Entries(l.Entries)
	}
	return r.page("confirm", view{Title: data.Action.Verb, Nav: data.Nav, Data: data})
}

func (r *request) bulkAction() (bulkAction, error) {
	action, known := bulkActions[r.Form.Get("do")]
	if !known {
		return action, invalid("action %q", r.Form.Get("do"))
	}
	return action, nil
}

// act changes the counted entries: those that died later are left alone. If that takes longer than a person waits, it
// continues in the background.
func (r *request) act() error {
	action, err := r.bulkAction()
	if err != nil {
		return err
	}
	back, of := "/entries?status=PENDING", ""
	var filters []dlq.Filter
	if strings.Contains(r.Pattern, "/groups/") {
		picked := r.PostForm["pick"]
		to, err := parseTime(r.PostForm.Get("to"))
		if err != nil {
			return err
		}
		if len(picked) == 0 || to.IsZero() {
			return invalid("the form names no causes")
		}
		back, of = "/groups", " of "+plural(len(picked), "cause", "causes")
		filters = ofCauses(picked, action, to)
	} else {
		s, err := parseSearch(r.PostForm, r.now())
		if err != nil {
			return err
		}
		if len(s.values()) == 0 { // a truncated form must not mean everything
			return invalid("the form names no entries")
		}
		filters = []dlq.Filter{s.Filter}
	}
	for i := range filters {
		if err := r.searches(&filters[i], ""); err != nil {
			return err
		}
	}
	by := r.by()
	return r.inBackground(action.Verb+" entries"+of, back, func(ctx context.Context) (string, error) {
		var changed, refused int64
		for i := range filters {
			var done dlq.Bulk
			done, err = r.cfg.Manager.ChangeAll(ctx, action.Do, filters[i], by)
			changed, refused = changed+done.Changed, refused+done.Refused
			if err != nil {
				break
			}
		}
		said := plural(changed, "entry", "entries") + of + " " + action.Done + "."
		if refused > 0 {
			said += " " + number(refused) + " left alone, because someone else was faster."
		}
		return said, err
	})
}

// jobs are changes of many entries that take longer than a person waits for a page. They belong to this process: an
// interrupted one has done a part, and can safely be repeated.
type jobs struct {
	mu  sync.Mutex
	all map[string]*job
}

// job is a change of many entries.
type job struct {
	ID, Title, Who, Back string
	Started              time.Time

	done chan struct{}
	// Written before done is closed.
	Said string
	Err  error
}

// Running reports whether the job has not ended.
func (j *job) Running() bool {
	select {
	case <-j.done:
		return false
	default:
		return true
	}
}

const (
	// patience is how long a request waits for its job before it shows a page that watches it.
	patience = 2 * time.Second
	// maxJobs is how many are kept before those that ended are forgotten, unless they began a moment ago.
	maxJobs = 100
)

func (js *jobs) add(j *job) {
	js.mu.Lock()
	defer js.mu.Unlock()
	if len(js.all) >= maxJobs {
		maps.DeleteFunc(js.all, func(_ string, old *job) bool {
			return !old.Running() && time.Since(old.Started) > time.Minute
		})
	}
	js.all[j.ID] = j
}

func (js *jobs) get(id string) *job {
	js.mu.Lock()
	defer js.mu.Unlock()
	return js.all[id]
}

// inBackground starts work, which does not end with the request, and responds with its result, or with a page that
// watches it when it takes long.
func (r *request) inBackground(title, back string, work func(context.Context) (string, error)) error {
	j := &job{
		ID: uuid.NewString(), Title: title, Who: r.who.Name, Back: back, Started: time.Now(), done: make(chan struct{}),
	}
	r.jobs.add(j)
	ctx := context.WithoutCancel(r.Context())
	go func() {
		defer close(j.done)
		j.Err = guarded.Call(func() (err error) { j.Said, err = work(ctx); return err })
		r.forget()
		if j.Err != nil {
			r.cfg.Logger.WarnContext(ctx, "dashboard: a change of many entries failed", "title", title, "error", j.Err)
		}
	}()
	select {
	case <-j.done:
		if j.Err != nil {
			return j.fault(r.Context())
		}
		return r.redirect(back, j.Said)
	case <-time.After(patience):
		return r.redirect("/jobs/"+j.ID, "")
	}
}

// fault reports how far the job came before it failed.
func (j *job) fault(ctx context.Context) error {
	f := faultOf(ctx, j.Err)
	if j.Said == "" || f.Status < http.StatusInternalServerError {
		return j.Err // nothing was done, and the error explains why
	}
	f.Title = "It was not finished"
	f.Detail = "Before it failed: " + j.Said + " It is safe to repeat: completed changes are kept."
	f.back, f.backLabel = j.Back, "Continue"
	return f
}

// jobData is a job, whether it is running, and otherwise why it failed, if it did.
type jobData struct {
	*job

	Running bool
	Fault   string
}

// job is the page that watches a job.
func (r *request) job() error {
	j := r.jobs.get(r.PathValue("id"))
	if j == nil {
		return newFault(http.StatusNotFound, "There is no such job",
			"The server may have been restarted. It is safe to repeat: completed changes are kept.", dlq.ErrNotFound)
	}
	data := jobData{job: j, Running: j.Running()}
	if !data.Running && j.Err != nil {
		f := faultOf(r.Context(), j.Err)
		data.Fault = cmp.Or(r.sees.Text(f.Detail), r.reason(f), "It failed. The server's log has the reason.")
	}
	return r.page("job", view{Title: j.Title, Nav: "entries", Live: data.Running, Every: 1, Data: &data})
}
