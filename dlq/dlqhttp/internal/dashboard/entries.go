package dashboard

import (
	"context"
	"html/template"
	"slices"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/operations"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/wire"
)

// entriesData is a page of a list.
type entriesData struct {
	Search  search
	Entries []wire.Entry
	// Count is how many entries match the filter, counted up to countLimit.
	Count    int64
	Counted  bool // to the end
	Topics   []string
	Next     template.URL // the query of the next page
	First    template.URL // the query of the first page, if this is another
	Chips    []chip
	Filtered bool
	// In is the list as a parameter of its entries' pages, for previous and next.
	In string
	// Handlers, Types and Classes are names to suggest for the fields of the filter.
	Handlers, Types, Classes []string
	// Slow lists read bodies: they do not refresh automatically.
	Slow bool
}

const (
	// countLimit is how far a list counts; an action counts all.
	countLimit = 10_000
	pageSize   = 50
	// maxSuggested is how many names a field suggests.
	maxSuggested = 100
)

func (r *request) entries() error {
	q := r.Form
	if len(q) == 0 {
		q.Set("status", string(dlq.Pending)) // what needs a person
	}
	s, err := parseSearch(q, r.now())
	if err != nil {
		return err
	}
	if err := r.searches(&s.Filter, ""); err != nil {
		return err
	}
	page := dlq.Page{Limit: pageSize, Order: s.Order, After: q.Get("after")}
	l, at, err := r.listing(&s, page)
	if err != nil {
		return err
	}
	data := entriesData{
		Search: s, Entries: r.sees.Entries(l.Entries), Count: min(l.Count, countLimit), Counted: l.Count <= countLimit,
		Chips: s.Chips("q", "payload", "field", "topic"), In: s.values().Encode(), Slow: s.Filter.ReadsBodies(),
		Filtered: len(s.Chips()) > 0 || s.Since != "" || len(s.Filter.Statuses) > 0,
	}
	if err := r.suggest(&data); err != nil {
		return err
	}
	if l.Next != "" {
		data.Next = s.pageAfter(l.Next)
	}
	if page.After != "" {
		data.First = s.pageAfter("")
	}
	return r.page("entries", view{Title: "Entries", Nav: "entries", Live: !data.Slow, At: at, Data: &data})
}

// suggest adds the topics, the event types, and the handlers and classes of the largest causes.
func (r *request) suggest(data *entriesData) error {
	s, _, err := r.snapshot()
	if err != nil {
		return err
	}
	groups, _, _, err := r.groups(dlq.GroupQuery{Limit: maxSuggested}, 0)
	if err != nil {
		return err
	}
	for _, g := range groups {
		data.Handlers, data.Classes = append(data.Handlers, g.Handler), append(data.Classes, g.ErrorClass)
	}
	stats := r.sees.Stats(&s.Stats)
	for _, n := range stats.ByType {
		data.Types = append(data.Types, n.Name)
	}
	for _, n := range stats.ByTopic {
		data.Topics = append(data.Topics, n.Name)
	}
	for _, names := range []*[]string{&data.Handlers, &data.Classes, &data.Types} {
		slices.Sort(*names)
		*names = slices.DeleteFunc(slices.Compact(*names), func(n string) bool { return n == "" })
		*names = (*names)[:min(len(*names), maxSuggested)]
	}
	return nil
}

// listing reads a page and the total, up to a limit, and returns when.
func (r *request) listing(s *search, page dlq.Page) (operations.Listing, time.Time, error) {
	load := func(ctx context.Context) (operations.Listing, error) {
		return r.cfg.Listing(ctx, s.Filter, page, countLimit+1)
	}
	if s.Filter.ReadsBodies() { // it ends with the request, and is not shared
		at := time.Now()
		l, err := load(r.Context())
		return l, at, err
	}
	return cached(r.Context(), r.cache, "entries "+string(s.Query())+" "+page.After, load)
}

// pageAfter links a page of the listing.
func (s *search) pageAfter(after string) template.URL {
	next := s.values()
	if len(s.Filter.Statuses) == 0 {
		next.Set("status", "any")
	}
	if after != "" {
		next.Set("after", after)
	}
	return query(next)
}

// Status is the query of the same list with another status, "any" for all.
func (e *entriesData) Status(status string) template.URL {
	q := e.Search.values()
	q.Set("status", status)
	return query(q)
}

// Flip is the query of the same list in the other order.
func (e *entriesData) Flip() template.URL {
	flipped := e.Search
	flipped.Order = ""
	if !e.Oldest() {
		flipped.Order = driver.OldestFirst
	}
	return flipped.pageAfter("")
}

// Oldest reports whether the list begins with the oldest.
func (e *entriesData) Oldest() bool { return e.Search.Order == driver.OldestFirst }
