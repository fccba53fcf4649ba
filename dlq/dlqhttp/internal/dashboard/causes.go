package dashboard

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"maps"
	"net/url"
	"slices"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/wire"
)

// cause is a group with its curve.
type cause struct {
	driver.Group
	Spark sparkline
	Muted bool
}

// groups are causes as the caller may see them, with the hours of their curves, whether there are more, and when they
// were read: once for all callers who see the same.
func (r *request) groups(q driver.GroupQuery, hours int) (groups []driver.Group, more bool, at time.Time, err error) {
	return cachedPair(r.Context(), r.cache, fmt.Sprintf("groups %t %d %+v", r.sees.Hides(), hours, q),
		func(ctx context.Context) ([]driver.Group, bool, error) {
			q := q
			if hours > 0 {
				q.TrendSince = r.cfg.Manager.Now(ctx).Add(-time.Duration(hours) * time.Hour)
			}
			return r.cfg.Groups(ctx, q)
		})
}

// causesOf are causes with their curves, which have one scale, because they are shown alongside each other.
func causesOf(groups []driver.Group, now time.Time) []cause {
	var top int64 = 1
	for i := range groups {
		top = max(top, slices.Max(sparkPointsOf(groups[i].Trend, now)))
	}
	causes := make([]cause, len(groups))
	for i, g := range groups {
		causes[i] = cause{Group: g, Spark: sparklineOf(g.Trend, now, top)}
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

func (r *request) causes() error {
	query := dlq.GroupQuery{
		Status: dlq.Pending, CauseText: r.Form.Get("q"), Handler: r.Form.Get("handler"), ErrorClass: r.Form.Get("class"),
		Limit: maxGroups,
	}
	if text := r.Form.Get("status"); r.Form.Has("status") && (text == "" || text == "any") {
		query.Status = ""
	} else if text != "" {
		var err error
		if query.Status, err = wire.ParseStatus(text); err != nil {
			return err
		}
	}
	if err := r.sees.SearchGroups(r.Context(), &query); err != nil {
		return err
	}
	groups, more, at, err := r.groups(query, weekHours)
	if err != nil {
		return err
	}
	data := groupsData{
		Query: query, Causes: causesOf(groups, r.now()), Full: more, Sort: r.Form.Get("sort"),
		now: r.Form, AllSeen: query == dlq.GroupQuery{Limit: maxGroups},
		Default: query == dlq.GroupQuery{Status: dlq.Pending, Limit: maxGroups},
	}
	said, err := r.annotations()
	if err != nil {
		return err
	}
	for i := range data.Causes {
		data.Causes[i].Muted = said.mute(data.Causes[i].Fingerprint) != nil
	}
	if err := sortCauses(data.Causes, data.Sort); err != nil {
		return err
	}
	return r.page("groups", view{Title: "Causes", Nav: "groups", Live: true, At: at, Data: &data})
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

// groupData is what the page of one cause shows.
type groupData struct {
	Cause   cause
	Week    curve
	Entries []wire.Entry
	// Search is the group's entries, as a link.
	Search search
	// CanMute reports whether the store supports mutes. Mute is the cause's; nil if it is not muted.
	CanMute bool
	Mute    *wire.Mute
	Notes   []wire.AuditRecord
	// Periods are how long it can be muted.
	Periods []time.Duration
}

// groupSample is how many of a group's entries its page shows.
const groupSample = 10

func (r *request) cause() error {
	fingerprint := r.PathValue("fingerprint")
	search := search{Filter: dlq.Filter{Fingerprint: fingerprint}}
	if err := r.searches(&search.Filter, ""); err != nil {
		return err
	}
	group, l, at, err := cachedPair(r.Context(), r.cache, "group "+fingerprint,
		func(ctx context.Context) (g driver.Group, l driver.Listing, err error) {
			if g, err = r.group(ctx, fingerprint); err == nil {
				l, err = r.cfg.Manager.List(ctx, search.Filter, dlq.Page{Limit: groupSample})
			}
			return g, l, err
		})
	if err != nil {
		return err
	}
	said, err := r.annotations()
	if err != nil {
		return err
	}
	now := r.now()
	data := groupData{
		Cause: causesOf(r.sees.Groups([]driver.Group{group}), now)[0], Week: curveOf(group.Trend, now, weekHours),
		Entries: r.sees.Entries(l.Entries), Search: search, CanMute: said.canMute, Periods: mutePeriods,
	}
	if m := said.mute(fingerprint); m != nil {
		data.Mute = &r.sees.Mutes([]driver.Mute{*m})[0]
	}
	data.Notes = r.sees.Audit(said.notesOn(fingerprint))
	return r.page("group", view{
		Title: oneLine(60, data.Cause.Cause), Nav: "groups", Live: true, At: at, Charts: true, Data: &data,
	})
}

// group reads a cause with its last seven days.
func (d *dashboard) group(ctx context.Context, fingerprint string) (driver.Group, error) {
	groups, err := d.cfg.Manager.Groups(ctx, dlq.GroupQuery{
		Fingerprint: fingerprint, Limit: 1, TrendSince: d.cfg.Manager.Now(ctx).Add(-weekHours * time.Hour),
	})
	if err != nil {
		return driver.Group{}, err
	}
	if len(groups) == 0 {
		return driver.Group{}, fmt.Errorf("group %.64q: %w", fingerprint, dlq.ErrNotFound)
	}
	return groups[0], nil
}

// Act is the confirmation page of an action on the whole group.
func (g *groupData) Act(action string) template.URL {
	return query(url.Values{"do": {action}, "group": {g.Cause.Fingerprint}, "scope": {"all"}})
}

// annotations are what people have recorded about causes: which are muted, and the newest notes.
type annotations struct {
	mutes   []driver.Mute
	notes   []driver.AuditRecord
	canMute bool
}

// maxNotes is how many notes, on all causes, the page of one cause searches.
const maxNotes = 500

func (r *request) annotations() (annotations, error) {
	said, _, err := cached(r.Context(), r.cache, "said of causes", func(ctx context.Context) (s annotations, err error) {
		s.mutes, err = r.cfg.Manager.Mutes(ctx)
		s.canMute = err == nil
		if err != nil && !errors.Is(err, dlq.ErrNoNotices) {
			return s, err
		}
		s.notes, _, err = r.cfg.Manager.AuditLog(ctx, dlq.AuditFilter{Action: driver.ActionNote}, dlq.Page{Limit: maxNotes})
		return s, err
	})
	return said, err
}

// mute finds a cause among the muted ones; nil if it is not.
func (s *annotations) mute(fingerprint string) *driver.Mute {
	at := slices.IndexFunc(s.mutes, func(m driver.Mute) bool { return m.Fingerprint == fingerprint })
	if at < 0 {
		return nil
	}
	return &s.mutes[at]
}

func (s *annotations) notesOn(fingerprint string) []driver.AuditRecord {
	var notes []driver.AuditRecord
	for i := range s.notes {
		if s.notes[i].Detail[driver.DetailFingerprint] == fingerprint {
			notes = append(notes, s.notes[i])
		}
	}
	return notes
}

// mutePeriods are how long a cause can be muted; 0 means until it is unmuted.
var mutePeriods = []time.Duration{time.Hour, 8 * time.Hour, 24 * time.Hour, 7 * 24 * time.Hour, 0}

// changeCause adds a note to a cause, or mutes or unmutes its notifications.
func (r *request) changeCause() error {
	ctx, fingerprint := r.Context(), r.PathValue("fingerprint")
	if err := r.searches(&dlq.Filter{Fingerprint: fingerprint}, ""); err != nil {
		return err
	}
	var (
		done string
		err  error
	)
	switch do := r.PostForm.Get("do"); do {
	case "note":
		done, err = "Your note was added.", r.note(fingerprint)
	case "mute":
		var period time.Duration
		if period, err = time.ParseDuration(r.PostForm.Get("period")); err != nil || !slices.Contains(mutePeriods, period) {
			return invalid("period %q", r.PostForm.Get("period"))
		}
		_, err = r.cfg.Manager.Mute(ctx, fingerprint, period, r.by())
		done = "No one is notified of this cause until you unmute it."
		if period > 0 {
			done = "No one is notified of this cause for " + age(period) + "."
		}
	case "unmute":
		done, err = "Notifications of this cause are on again.", r.cfg.Manager.Unmute(ctx, fingerprint, r.by())
	default:
		err = invalid("action %q", do)
	}
	r.forget()
	if err != nil {
		return err
	}
	return r.redirect("/groups/"+url.PathEscape(fingerprint), done)
}

// note records a person's note on a cause.
func (r *request) note(fingerprint string) error {
	by := r.by()
	if by.Note == "" {
		return invalid("the note is empty")
	}
	if _, err := r.group(r.Context(), fingerprint); err != nil {
		return err
	}
	return r.cfg.Manager.Record(r.Context(), driver.AuditRecord{
		At: r.now(), Actor: by.Actor, Action: driver.ActionNote, Note: by.Note,
		Detail: map[string]string{driver.DetailFingerprint: fingerprint},
	})
}

// period is a choice of how long a report looks back; the URL accepts any whole hours up to maxPeriod.
type period struct{ Since, Label string }

const (
	defaultPeriod = "7d"
	// maxPeriod limits what one page reads from the store: every hour of twice the period.
	maxPeriod = 366 * 24 * time.Hour
)

type reportPart struct {
	Title, Lede, None string
	Causes            []dlq.RecurringCause
}

// reportData is what the page of the report shows.
type reportData struct {
	*dlq.Recurrence
	Since   string
	Periods []period
	Parts   []reportPart
	// Earlier is the start of the period that it compares with.
	Earlier time.Time
	// Most is how many causes are considered.
	Most int
}

// Length is how long the period is.
func (d *reportData) Length() time.Duration { return d.To.Sub(d.From) }

// Empty reports whether there were no dead letters, neither now nor before.
func (d *reportData) Empty() bool { return d.Now == 0 && d.Before == 0 }

// recurrence is the requested report, as the caller may see it, and the period as it was written.
func (r *request) recurrence() (report *dlq.Recurrence, since string, at time.Time, err error) {
	since = cmp.Or(r.Form.Get("since"), defaultPeriod)
	length, err := parseAge(since)
	if err != nil {
		return nil, since, at, err
	}
	if length < time.Hour || length%time.Hour != 0 || length > maxPeriod {
		return nil, since, at, invalid("a report over %s: whole hours, from 1h to 366d", since)
	}
	report, at, err = cached(r.Context(), r.cache, fmt.Sprintf("report %s %t", length, r.sees.Hides()),
		func(ctx context.Context) (*dlq.Recurrence, error) { return r.cfg.Recurrence(ctx, length) })
	return report, since, at, err
}

// report shows which causes are new, growing, back, or gone.
func (r *request) report() error {
	report, since, at, err := r.recurrence()
	if err != nil {
		return err
	}
	data := reportData{
		Recurrence: report, Since: since, Earlier: report.From.Add(-report.To.Sub(report.From)), Most: driver.MaxPage,
		Periods: []period{{"24h", "Day"}, {"7d", "Week"}, {"30d", "30 days"}, {"90d", "90 days"}},
		Parts: []reportPart{
			{"New", "Never seen before this period.", "No cause is new: all were seen before.", report.New},
			{"Growing", "At least half as many again as before, and at least five more.", "No cause is growing.", report.Growing},
			{
				"Returning", "Seen earlier, not in the period before, and here again.", "No cause is back.",
				report.Returning,
			},
			{
				"Fixed", "Seen in the period before, but not in this one. Entries that still wait can be redriven.",
				"No cause is gone.", report.Fixed,
			},
			{"Steady", "About as frequent as before, or less.", "No cause is steady.", report.Steady},
		},
	}
	return r.page("report", view{Title: "Report", Nav: "report", Live: true, At: at, Data: &data})
}

// reportMarkdown downloads the report for a chat, an issue or a mail.
func (r *request) reportMarkdown() error {
	report, _, _, err := r.recurrence()
	if err != nil {
		return err
	}
	return r.download("text/markdown; charset=utf-8", reportName(report, "md"), []byte(report.Markdown()))
}

// reportJSON downloads the report for a program.
func (r *request) reportJSON() error {
	report, _, _, err := r.recurrence()
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return fmt.Errorf("dashboard: report: %w", err)
	}
	return r.download("application/json", reportName(report, "json"), append(text, '\n'))
}

func reportName(r *dlq.Recurrence, extension string) string {
	return fmt.Sprintf("dead-letters-%s-to-%s.%s", r.From.Format(time.DateOnly), r.To.Format(time.DateOnly), extension)
}
