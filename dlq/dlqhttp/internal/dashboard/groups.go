package dashboard

import (
	"cmp"
	"context"
	"fmt"
	"html/template"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/visible"
	"github.com/redrive-go/redrive/dlq/driver"
)

// cause is a group with its curve.
type cause struct {
	driver.Group
	Spark sparkline
	Muted bool
	// Most is the largest count among its neighbours, for bars.
	Most int64
}

func causesOf(groups []driver.Group, now time.Time, sees visible.View) []cause {
	causes := make([]cause, 0, len(groups))
	var most int64 = 1
	shown := sees.Groups(groups)
	var top int64 = 1 // of all: curves alongside each other have one scale
	for i := range shown {
		top = max(top, slices.Max(sparkPointsOf(shown[i].Trend, now)))
	}
	for _, g := range shown {
		most = max(most, g.Counts.Pending)
		causes = append(causes, cause{Group: g, Spark: sparklineOf(g.Trend, now, top)})
	}
	for i := range causes {
		causes[i].Most = most
	}
	return causes
}

// maxGroups is how many causes a page shows; beyond that people search.
const maxGroups = 100

// groupsData is what the page of causes shows.
type groupsData struct {
	Query   dlq.GroupQuery
	Causes  []cause
	Full    bool
	Sort    string
	now     url.Values
	AllSeen bool // no filter hides anything
	Default bool // only the page's initial status is requested
}

func (d *dashboard) groups(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	query := dlq.GroupQuery{
		Status: dlq.Pending, CauseText: q.Get("q"), Handler: q.Get("handler"), ErrorClass: q.Get("class"), Limit: maxGroups,
	}
	if q.Has("status") {
		query.Status = ""
		if text := q.Get("status"); text != "" && text != "any" {
			status, err := driver.ParseStatus(text)
			if err != nil {
				return err
			}
			query.Status = status
		}
	}
	if err := d.cfg.Visible(r.Context()).SearchGroups(r.Context(), &query); err != nil {
		return err
	}
	groups, at, err := cached(r.Context(), d.cache, fmt.Sprintf("groups %+v", query),
		func(ctx context.Context) ([]driver.Group, error) {
			query := query
			query.TrendSince = d.cfg.Manager.Now(ctx).Add(-weekHours * time.Hour)
			return d.cfg.Manager.Groups(ctx, query)
		})
	if err != nil {
		return err
	}
	data := groupsData{
		Query: query, Causes: causesOf(groups, d.cfg.Manager.Now(r.Context()), d.cfg.Visible(r.Context())),
		Full:    len(groups) == maxGroups,
		AllSeen: query.Status == "" && query.CauseText == "" && query.Handler == "" && query.ErrorClass == "",
	}
	data.Default = query == dlq.GroupQuery{Status: dlq.Pending, Limit: maxGroups}
	said, err := d.annotations(r.Context())
	if err != nil {
		return err
	}
	for i := range data.Causes {
		_, data.Causes[i].Muted = said.muted(data.Causes[i].Fingerprint)
	}
	data.Sort, data.now = q.Get("sort"), q
	if err := sortCauses(data.Causes, data.Sort); err != nil {
		return err
	}
	return d.page(w, r, "groups", view{Title: "Causes", Nav: "groups", Live: true, At: at, Data: &data})
}

// causeOrders are how causes can be sorted; by default those with the most entries come first.
var causeOrders = map[string]func(a, b *cause) int{
	"pending": func(a, b *cause) int { return cmp.Compare(b.Counts.Pending, a.Counts.Pending) },
	"all":     func(a, b *cause) int { return cmp.Compare(b.Counts.Total(), a.Counts.Total()) },
	"first":   func(a, b *cause) int { return b.FirstSeen.Compare(a.FirstSeen) },
	"last":    func(a, b *cause) int { return b.LastSeen.Compare(a.LastSeen) },
	"cause":   func(a, b *cause) int { return cmp.Compare(a.Cause, b.Cause) },
}

func sortCauses(causes []cause, by string) error {
	if by == "" {
		return nil
	}
	order, known := causeOrders[by]
	if !known {
		return invalid("sort %q: pending, all, first, last or cause", by)
	}
	slices.SortStableFunc(causes, func(a, b cause) int { return order(&a, &b) })
	return nil
}

// By is the query of the same causes in another order.
func (g *groupsData) By(sort string) template.URL {
	q := maps.Clone(g.now)
	q.Set("sort", sort)
	return query(q)
}

// confirmCauses shows what will be done to all entries of the selected causes: a single one has a separate page,
// several are confirmed together.
func (d *dashboard) confirmCauses(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	picked := q["pick"]
	switch {
	case len(picked) == 0:
		return &fault{
			status: http.StatusUnprocessableEntity, title: "Nothing is selected",
			detail: "Go back and tick some causes.", back: "/groups", backLabel: "Causes",
		}
	case len(picked) == 1 && q.Get("do") == "redrive":
		one := url.Values{"group": picked, "status": {string(dlq.Pending)}}
		http.Redirect(w, r, d.cfg.Prefix+"/runs/new?"+one.Encode(), http.StatusSeeOther)
		return nil
	case q.Get("do") == "redrive":
		return &fault{
			status: http.StatusUnprocessableEntity, title: "One cause at a time",
			detail: "A run takes one cause, so that its canary is meaningful. Tick one.", back: "/groups",
			backLabel: "Causes",
		}
	}
	data := causesAction{Picked: picked}
	var known bool
	if data.Action, known = bulkActions[q.Get("do")]; !known {
		return invalid("action %q", q.Get("do"))
	}
	sees := d.cfg.Visible(r.Context())
	for _, fingerprint := range picked {
		if err := sees.SearchGroups(r.Context(), &dlq.GroupQuery{Fingerprint: fingerprint}); err != nil {
			return err
		}
		groups, err := d.cfg.Manager.Groups(r.Context(), dlq.GroupQuery{Fingerprint: fingerprint, Limit: 1})
		if err != nil {
			return err
		}
		data.Causes = append(data.Causes, causesOf(groups, d.cfg.Manager.Now(r.Context()), sees)...)
		filter := dlq.Filter{Fingerprint: fingerprint, Statuses: data.Action.Do.From()}
		n, err := d.cfg.Manager.Count(r.Context(), filter, 0)
		if err != nil {
			return err
		}
		data.Count += n
	}
	data.To = d.cfg.Manager.Now(r.Context()).UTC().Truncate(time.Second).Add(time.Second)
	return d.page(w, r, "causes", view{Title: data.Action.Verb, Nav: "groups", Data: &data})
}

// causesAction is shown before the entries of several causes are changed.
type causesAction struct {
	Action bulkAction
	Picked []string
	Causes []cause
	Count  int64
	To     time.Time
}

// actCauses changes the counted entries: those that died later are left alone.
func (d *dashboard) actCauses(w http.ResponseWriter, r *http.Request) error {
	action, known := bulkActions[r.PostForm.Get("do")]
	if !known {
		return invalid("action %q", r.PostForm.Get("do"))
	}
	picked := r.PostForm["pick"]
	to, err := parseTime(r.PostForm.Get("to"))
	if err != nil {
		return err
	}
	if len(picked) == 0 || to.IsZero() {
		return invalid("the form names no causes")
	}
	for _, fingerprint := range picked {
		if err := d.cfg.Visible(r.Context()).SearchGroups(r.Context(),
			&dlq.GroupQuery{Fingerprint: fingerprint}); err != nil {
			return err
		}
	}
	by, err := d.by(r)
	if err != nil {
		return err
	}
	by.Version = 0
	return d.inBackground(w, r, action.Verb+" causes", "/groups", func(ctx context.Context) (string, error) {
		var changed int64
		said := func() string {
			return plural(changed, "entry", "entries") + " of " + plural(int64(len(picked)), "cause", "causes") + " " +
				action.Done + "."
		}
		for _, fingerprint := range picked {
			filter := dlq.Filter{Fingerprint: fingerprint, Statuses: action.Do.From(), To: to}
			bulk, err := d.cfg.Manager.ChangeAll(ctx, action.Do, filter, by)
			changed += bulk.Changed
			if err != nil {
				return said(), err
			}
		}
		return said(), nil
	})
}

// groupData is what the page of one cause shows.
type groupData struct {
	Cause   cause
	Week    curve
	Entries []dlq.Entry
	// Search is the group's entries, as a link.
	Search search
	aboutCause
}

// groupSample is how many of a group's entries its page shows.
const groupSample = 10

func (d *dashboard) group(w http.ResponseWriter, r *http.Request) error {
	fingerprint := r.PathValue("fingerprint")
	if err := d.cfg.Visible(r.Context()).SearchGroups(r.Context(), &dlq.GroupQuery{Fingerprint: fingerprint}); err != nil {
		return err
	}
	type answer struct {
		group   driver.Group
		entries []dlq.Entry
	}
	a, at, err := cached(r.Context(), d.cache, "group "+fingerprint, func(ctx context.Context) (a answer, err error) {
		groups, err := d.cfg.Manager.Groups(ctx, dlq.GroupQuery{
			Fingerprint: fingerprint, Limit: 1, TrendSince: d.cfg.Manager.Now(ctx).Add(-weekHours * time.Hour),
		})
		if err != nil {
			return a, err
		}
		if len(groups) == 0 {
			return a, fmt.Errorf("group %q: %w", fingerprint, dlq.ErrNotFound)
		}
		l, err := d.cfg.Manager.List(ctx, dlq.Filter{Fingerprint: fingerprint}, dlq.Page{Limit: groupSample})
		return answer{groups[0], l.Entries}, err
	})
	if err != nil {
		return err
	}
	now, sees := d.cfg.Manager.Now(r.Context()), d.cfg.Visible(r.Context())
	data := groupData{
		Cause: causesOf([]driver.Group{a.group}, now, sees)[0], Week: curveOf(a.group.Trend, now, weekHours),
		Entries: sees.ShownEntries(a.entries), Search: search{Filter: dlq.Filter{Fingerprint: fingerprint}},
	}
	said, err := d.annotations(r.Context())
	if err != nil {
		return err
	}
	data.about(d, r, &said)
	return d.page(w, r, "group", view{
		Title: oneLine(60, data.Cause.Cause), Nav: "groups", Live: true, At: at,
		Charts: true, Data: &data,
	})
}

// Act is the confirmation page of an action on the whole group.
func (g *groupData) Act(action string) template.URL {
	q := url.Values{"do": {action}, "group": {g.Cause.Fingerprint}, "scope": {"all"}}
	return query(q)
}
