package dashboard

import (
	"context"
	"html/template"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
)

// entriesData is a page of a list.
type entriesData struct {
	Search  search
	Entries []dlq.Entry
	// Count is how many entries match the filter, counted up to countLimit.
	Count    int64
	Counted  bool // to the end
	Topics   []string
	Next     template.URL // the query of the next page
	First    template.URL // the query of the first page, if this is another
	Chips    []chip
	Filtered bool
	Limit    int
	// In is the list as a parameter of its entries' pages, for previous and next.
	In string
	// Suggest are names for the fields of the filter.
	Suggest suggestions
	// Slow lists read bodies: they do not refresh automatically.
	Slow bool
}

// suggestions are existing names for the fields of the filter.
type suggestions struct{ Handlers, Types, Classes []string }

// maxSuggested is how many names a field suggests.
const maxSuggested = 100

// suggest reads the names of the handlers and classes of the largest causes, and those of the event types.
func (d *dashboard) suggest(ctx context.Context, stats *driver.Stats) (suggestions, error) {
	var s suggestions
	groups, _, err := cached(ctx, d.cache, "suggestions", func(ctx context.Context) ([]driver.Group, error) {
		return d.cfg.Manager.Groups(ctx, dlq.GroupQuery{Limit: maxSuggested})
	})
	if err != nil {
		return s, err
	}
	sees := d.cfg.Visible(ctx)
	for _, g := range sees.Groups(groups) {
		s.Handlers, s.Classes = append(s.Handlers, g.Handler), append(s.Classes, g.ErrorClass)
	}
	for _, n := range sees.Stats(stats).ByType {
		s.Types = append(s.Types, n.Name)
	}
	for _, names := range []*[]string{&s.Handlers, &s.Classes, &s.Types} {
		slices.Sort(*names)
		*names = slices.DeleteFunc(slices.Compact(*names), func(n string) bool { return n == "" })
		*names = (*names)[:min(len(*names), maxSuggested)]
	}
	return s, nil
}

const (
	// countLimit is how far a list counts; an action counts all.
	countLimit = 10_000
	pageSize   = 50
	maxSize    = 200
)

// listing is a page of entries, and their total.
type listing struct {
	driver.Listing
	count int64
}

func (d *dashboard) entries(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	if !q.Has("status") && len(q) == 0 {
		q.Set("status", string(dlq.Pending)) // what needs a person
	}
	s, err := parseSearch(q, d.cfg.Manager.Now(r.Context()))
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
	slow := s.Filter.ReadsBodies()
	l, at, err := d.listing(r.Context(), &s, page)
	if err != nil {
		return err
	}
	stats, _, err := d.snapshot(r.Context())
	if err != nil {
		return err
	}
	data := entriesData{
		Search: s, Entries: d.cfg.Visible(r.Context()).ShownEntries(l.Entries), Count: min(l.count, countLimit),
		Counted: l.count <= countLimit,
		Chips:   s.Chips("q", "payload", "field", "topic"), Limit: page.Limit,
	}
	data.Filtered = len(s.Chips()) > 0 || s.Since != "" || len(s.Filter.Statuses) > 0
	names := d.cfg.Visible(r.Context()).Stats(&stats.Stats)
	for i := range names.ByTopic {
		data.Topics = append(data.Topics, names.ByTopic[i].Name)
	}
	data.In, data.Slow = s.values().Encode(), slow
	if data.Suggest, err = d.suggest(r.Context(), &stats.Stats); err != nil {
		return err
	}
	if l.Next != "" {
		data.Next = s.pageAfter(l.Next, page.Limit)
	}
	if page.After != "" {
		data.First = s.pageAfter("", page.Limit)
	}
	return d.page(w, r, "entries", view{Title: "Entries", Nav: "entries", Live: !slow, At: at, Data: &data})
}

// listing reads a page and the total, up to a limit, and returns when.
func (d *dashboard) listing(ctx context.Context, s *search, page dlq.Page) (listing, time.Time, error) {
	load := func(ctx context.Context) (l listing, err error) {
		if l.Listing, err = d.cfg.Manager.List(ctx, s.Filter, page); err != nil {
			return l, err
		}
		if page.After == "" && l.Next == "" { // all there are
			l.count = int64(len(l.Entries))
			return l, nil
		}
		l.count, err = d.cfg.Manager.Count(ctx, s.Filter, countLimit+1)
		return l, err
	}
	if s.Filter.ReadsBodies() { // it ends with the request, and is not shared
		at := time.Now()
		l, err := load(ctx)
		return l, at, err
	}
	key := "entries " + string(s.Query()) + " " + page.After + " " + strconv.Itoa(page.Limit)
	return cached(ctx, d.cache, key, load)
}

// pageAfter links a page of the listing.
func (s *search) pageAfter(after string, limit int) template.URL {
	next := s.values()
	if len(s.Filter.Statuses) == 0 {
		next.Set("status", "any")
	}
	if limit != pageSize {
		next.Set("limit", strconv.Itoa(limit))
	}
	if after != "" {
		next.Set("after", after)
	}
	return query(next)
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
	if e.Search.Order != driver.OldestFirst {
		q.Set("order", string(driver.OldestFirst))
	}
	return query(q)
}

// Oldest reports whether the list begins with the oldest.
func (e *entriesData) Oldest() bool { return e.Search.Order == driver.OldestFirst }
