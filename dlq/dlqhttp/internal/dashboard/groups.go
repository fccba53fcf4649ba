package dashboard

import (
	"context"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/redact"
)

// cause is a group with its curve.
type cause struct {
	dlq.Group
	Spark spark
	// Most is the greatest count among those beside it, for bars.
	Most int64
}

func causesOf(groups []dlq.Group, now time.Time, rules *redact.Rules) []cause {
	causes := make([]cause, 0, len(groups))
	var most int64 = 1
	for _, g := range groups {
		most = max(most, g.Counts.Pending)
		causes = append(causes, cause{Group: rules.Group(g), Spark: sparkOf(g.Trend, now)})
	}
	for i := range causes {
		causes[i].Most = most
	}
	return causes
}

// maxGroups is how many causes a page shows: who has more looks for a word.
const maxGroups = 100

// groupsData is what the page of causes shows.
type groupsData struct {
	Query   dlq.GroupQuery
	Causes  []cause
	Full    bool
	AllSeen bool // whether a filter hides something
}

func (d *dashboard) groups(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	query := dlq.GroupQuery{
		Status: dlq.Pending, CauseText: q.Get("q"), Handler: q.Get("handler"), ErrorClass: q.Get("class"), Limit: maxGroups,
	}
	if q.Has("status") {
		query.Status = ""
		if text := q.Get("status"); text != "" && text != "any" {
			status, err := dlq.ParseStatus(text)
			if err != nil {
				return err
			}
			query.Status = status
		}
	}
	groups, at, err := cached(r.Context(), d.cache, fmt.Sprintf("groups %+v", query), func(ctx context.Context) ([]dlq.Group, error) {
		query := query
		query.TrendSince = time.Now().Add(-weekHours * time.Hour)
		return d.cfg.Manager.Groups(ctx, query)
	})
	if err != nil {
		return err
	}
	data := groupsData{
		Query: query, Causes: causesOf(groups, time.Now(), d.cfg.Visible(r.Context())), Full: len(groups) == maxGroups,
		AllSeen: query.Status == "" && query.CauseText == "" && query.Handler == "" && query.ErrorClass == "",
	}
	return d.page(w, r, "groups", view{Title: "Causes", Nav: "groups", Live: true, At: at, Data: &data})
}

// groupData is what the page of one cause shows.
type groupData struct {
	Cause   cause
	Week    curve
	Entries []dlq.Entry
	// Search is the group's entries, as a link.
	Search search
}

// groupSample is how many of a group's entries its page shows.
const groupSample = 10

func (d *dashboard) group(w http.ResponseWriter, r *http.Request) error {
	fingerprint := r.PathValue("fingerprint")
	type answer struct {
		group   dlq.Group
		entries []dlq.Entry
	}
	a, at, err := cached(r.Context(), d.cache, "group "+fingerprint, func(ctx context.Context) (a answer, err error) {
		groups, err := d.cfg.Manager.Groups(ctx, dlq.GroupQuery{
			Fingerprint: fingerprint, Limit: 1, TrendSince: time.Now().Add(-weekHours * time.Hour),
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
	now, rules := time.Now(), d.cfg.Visible(r.Context())
	data := groupData{
		Cause: causesOf([]dlq.Group{a.group}, now, rules)[0], Week: curveOf(a.group.Trend, now, weekHours),
		Entries: shown(rules, a.entries), Search: search{Filter: dlq.Filter{Fingerprint: fingerprint}},
	}
	return d.page(w, r, "group", view{Title: oneLine(60, data.Cause.Cause), Nav: "groups", Live: true, At: at, Charts: true, Data: &data})
}

// shown is a copy of the entries with what who asks may see.
func shown(rules *redact.Rules, entries []dlq.Entry) []dlq.Entry {
	copies := make([]dlq.Entry, len(entries))
	for i := range entries {
		copies[i] = *rules.Entry(&entries[i])
	}
	return copies
}

// Act is the confirmation page of an action on the whole group.
func (g *groupData) Act(action string) template.URL {
	q := url.Values{"do": {action}, "group": {g.Cause.Fingerprint}, "scope": {"all"}}
	return query(q)
}
