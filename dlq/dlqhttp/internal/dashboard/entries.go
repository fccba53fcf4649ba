package dashboard

import (
	"context"
	"html/template"
	"net/http"
	"strconv"
	"time"

	"github.com/redrive-go/redrive/dlq"
)

// entriesData is a page of a list.
type entriesData struct {
	Search  search
	Entries []dlq.Entry
	// Count is how many the filter picks, counted up to countLimit.
	Count    int64
	Counted  bool // to the end
	Topics   []string
	Next     template.URL // the query of the next page
	First    template.URL // the query of the first, when this is another one
	Chips    []chip
	Filtered bool
	Limit    int
}

const (
	// countLimit is how far a list counts; an action counts to the end.
	countLimit = 10_000
	pageSize   = 50
	maxSize    = 200
)

// listing is a page of entries, and how many there are.
type listing struct {
	dlq.Listing
	count int64
}

func (d *dashboard) entries(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	if !q.Has("status") && len(q) == 0 {
		q.Set("status", string(dlq.Pending)) // what needs somebody
	}
	s, err := parseSearch(q, time.Now())
	if err != nil {
		return err
	}
	if err := d.sees(r.Context(), &s.Filter, ""); err != nil {
		return err
	}
	page := dlq.Page{Limit: pageSize, Order: s.Order, After: q.Get("after")}
	if n, err := strconv.Atoi(q.Get("limit")); err == nil && n > 0 {
		page.Limit = min(n, maxSize)
	}
	key := "entries " + string(s.Query()) + " " + page.After + " " + strconv.Itoa(page.Limit)
	l, at, err := cached(r.Context(), d.cache, key, func(ctx context.Context) (l listing, err error) {
		if l.Listing, err = d.cfg.Manager.List(ctx, s.Filter, page); err != nil {
			return l, err
		}
		if page.After == "" && l.Next == "" { // all there are
			l.count = int64(len(l.Entries))
			return l, nil
		}
		l.count, err = d.cfg.Manager.Count(ctx, s.Filter, countLimit+1)
		return l, err
	})
	if err != nil {
		return err
	}
	stats, _, err := d.snapshot(r.Context())
	if err != nil {
		return err
	}
	data := entriesData{
		Search: s, Entries: shown(d.cfg.Visible(r.Context()), l.Entries), Count: min(l.count, countLimit), Counted: l.count <= countLimit,
		Chips: s.Chips("q", "payload", "field", "topic"), Limit: page.Limit,
	}
	data.Filtered = len(s.Chips()) > 0 || s.Since != "" || len(s.Filter.Statuses) > 0
	for i := range stats.Stats.ByTopic {
		data.Topics = append(data.Topics, stats.Stats.ByTopic[i].Name)
	}
	with := func(after string) template.URL {
		next := s.values()
		if len(s.Filter.Statuses) == 0 {
			next.Set("status", "any")
		}
		if page.Limit != pageSize {
			next.Set("limit", strconv.Itoa(page.Limit))
		}
		if after != "" {
			next.Set("after", after)
		}
		return query(next)
	}
	if l.Next != "" {
		data.Next = with(l.Next)
	}
	if page.After != "" {
		data.First = with("")
	}
	return d.page(w, r, "entries", view{Title: "Entries", Nav: "entries", Live: true, At: at, Data: &data})
}

// Status is the query of the same list with another status, "any" for all.
func (e *entriesData) Status(status string) template.URL {
	q := e.Search.values()
	q.Del("status")
	q.Set("status", status)
	return query(q)
}

// Flip is the query of the same list in the other order.
func (e *entriesData) Flip() template.URL {
	q := e.Search.values()
	if len(e.Search.Filter.Statuses) == 0 {
		q.Set("status", "any")
	}
	q.Del("order")
	if e.Search.Order != dlq.OldestFirst {
		q.Set("order", string(dlq.OldestFirst))
	}
	return query(q)
}

// Oldest reports whether the list begins with the oldest.
func (e *entriesData) Oldest() bool { return e.Search.Order == dlq.OldestFirst }
