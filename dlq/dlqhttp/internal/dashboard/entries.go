package dashboard

import (
	"cmp"
	"context"
	"html/template"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/operations"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/internal/duration"
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

// search is a filter as it is in a URL, so that every list is a link that can be shared.
type search struct {
	Filter dlq.Filter
	// Since is how far back, as "24h" or "7d"; it moves with the clock, while from and to do not.
	Since string
	Order wire.Order
}

// textField is a parameter that is a text of the filter.
type textField struct {
	Name, Label string
	Value       *string
}

func textFields(f *dlq.Filter) []textField {
	return []textField{
		{"q", "error contains", &f.ErrorText},
		{"payload", "payload contains", &f.PayloadText},
		{"topic", "topic", &f.Topic},
		{"handler", "handler", &f.Handler},
		{"group", "cause", &f.Fingerprint},
		{"cause", "cause contains", &f.CauseText},
		{"consumer", "consumer", &f.Consumer},
		{"type", "event type", &f.EventType},
		{"class", "error class", &f.ErrorClass},
		{"code", "error code", &f.ErrorCode},
		{"event", "message id", &f.EventID},
		{"correlation", "correlation id", &f.CorrelationID},
		{"trace", "trace", &f.TraceID},
		{"source_table", "source table", &f.SourceTable},
		{"source", "source id", &f.SourceID},
		{"run", "redrive run", &f.Run},
	}
}

// parseSearch reads the parameters of a list. Without a status it includes all of them.
func parseSearch(q url.Values, now time.Time) (search, error) {
	s := search{Order: wire.Order(q.Get("order")), Since: q.Get("since")}
	f := &s.Filter
	for _, field := range textFields(f) {
		*field.Value = strings.TrimSpace(q.Get(field.Name))
	}
	f.Reason = q.Get("reason")
	for _, text := range q["status"] {
		if text == "" || text == "any" {
			continue
		}
		status, err := wire.ParseStatus(text)
		if err != nil {
			return s, err
		}
		if !slices.Contains(f.Statuses, status) {
			f.Statuses = append(f.Statuses, status)
		}
	}
	for _, text := range q["id"] {
		id, err := driver.ParseID(text)
		if err != nil {
			return s, err
		}
		f.IDs = append(f.IDs, id)
	}
	for _, text := range q["field"] {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		field, err := wire.ParsePayloadField(text)
		if err != nil {
			return s, err
		}
		f.PayloadFields = append(f.PayloadFields, field)
	}
	if text := q.Get("redrives"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return s, invalid("redrives %q: a number from 0", text)
		}
		f.Redrives = &n
	}
	var badFrom, badTo error
	f.From, badFrom = parseTime(q.Get("from"))
	f.To, badTo = parseTime(q.Get("to"))
	if err := cmp.Or(badFrom, badTo); err != nil {
		return s, err
	}
	if s.Since != "" {
		age, err := parseAge(s.Since)
		if err != nil {
			return s, err
		}
		f.From = now.Add(-age).Truncate(time.Minute) // whole minutes, so that viewers share a query
	}
	return s, f.Validate()
}

// values are the parameters of the search: parseSearch reads them as the same search.
func (s *search) values() url.Values {
	q := url.Values{}
	f := s.Filter
	set := func(name, value string) {
		if value != "" {
			q.Set(name, value)
		}
	}
	for _, field := range textFields(&f) {
		set(field.Name, *field.Value)
	}
	set("reason", f.Reason)
	set("order", string(s.Order))
	set("since", s.Since)
	for _, status := range f.Statuses {
		q.Add("status", string(status))
	}
	for _, field := range f.PayloadFields {
		q.Add("field", field.String())
	}
	for _, id := range f.IDs {
		q.Add("id", driver.FormatID(id))
	}
	if f.Redrives != nil {
		set("redrives", strconv.Itoa(*f.Redrives))
	}
	if s.Since == "" && !f.From.IsZero() {
		set("from", f.From.UTC().Format(time.RFC3339))
	}
	if !f.To.IsZero() {
		set("to", f.To.UTC().Format(time.RFC3339))
	}
	return q
}

// Query is the search as the part of a URL after the question mark.
func (s *search) Query() template.URL { return query(s.values()) }

// query is for use after a question mark in a template: a plain string would be escaped as one value.
func query(q url.Values) template.URL {
	return template.URL(q.Encode()) //nolint:gosec // G203: Encode escapes everything
}

// Fields are the search as hidden fields of a form.
func (s *search) Fields() []field {
	var fields []field
	q := s.values()
	for _, name := range slices.Sorted(maps.Keys(q)) {
		for _, value := range q[name] {
			fields = append(fields, field{name, value})
		}
	}
	return fields
}

// field is a hidden field of a form.
type field struct{ Name, Value string }

// Frozen is the search with fixed times: an action applies to the entries that were counted, not to later ones.
func (s *search) Frozen(now time.Time) search {
	frozen := *s
	frozen.Since = ""
	frozen.Filter.Freeze(now)
	return frozen
}

// chip is a readable part of the filter, with the query of the list without it.
type chip struct {
	Label, Value string
	Without      template.URL
}

// Chips are the parts of the filter that are not in the always visible form.
func (s *search) Chips(without ...string) []chip {
	var chips []chip
	add := func(name, label, value string) {
		if value == "" || slices.Contains(without, name) {
			return
		}
		q := s.values()
		q.Del(name)
		chips = append(chips, chip{label, value, query(q)})
	}
	f := s.Filter
	for _, field := range textFields(&f) {
		add(field.Name, field.Label, *field.Value)
	}
	if !slices.Contains(without, "field") {
		for i, field := range f.PayloadFields {
			q := s.values()
			q["field"] = slices.Delete(slices.Clone(q["field"]), i, i+1)
			chips = append(chips, chip{"payload field", field.String(), query(q)})
		}
	}
	add("reason", "reason", f.Reason)
	if s.Since == "" && !f.From.IsZero() {
		add("from", "from", f.From.UTC().Format(time.DateTime)+"Z")
	}
	if !f.To.IsZero() {
		add("to", "until", f.To.UTC().Format(time.DateTime)+"Z")
	}
	if f.Redrives != nil {
		add("redrives", "redriven", strconv.Itoa(*f.Redrives)+" times")
	}
	if len(f.IDs) > 0 {
		add("id", "chosen", strconv.Itoa(len(f.IDs))+" entries")
	}
	return chips
}

// Has reports whether the search selects a status; without one it selects all.
func (s *search) Has(status dlq.Status) bool { return slices.Contains(s.Filter.Statuses, status) }

// parseTime reads the time in a field, which may be empty.
func parseTime(text string) (at time.Time, err error) {
	if text = strings.TrimSpace(text); text == "" {
		return at, nil
	}
	if at, err = duration.Time(text); err != nil {
		return at, invalid("%w", err)
	}
	return at, nil
}

// parseAge reads how long ago something was.
func parseAge(text string) (time.Duration, error) {
	age, err := duration.Parse(strings.TrimSpace(text))
	if err != nil || age <= 0 {
		return 0, invalid("age %q: such as 90m, 24h or 7d", text)
	}
	return age, nil
}
