package wire

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redrive-go/redrive/dlq/internal/text"
)

// Status is the state of a dead letter. Its text is the content of the store's status column.
type Status string

const (
	// Pending waits for a decision by a person or a rule.
	Pending Status = "PENDING"
	// Retrying was sent back to its consumer, and its outcome is not known yet.
	Retrying Status = "RETRYING"
	// Parked has used up its redrives (Entry.RedriveBudget) or was parked: a person has to look at it. Rules, and runs
	// over PENDING entries, skip it.
	Parked Status = "PARKED"
	// Resolved is done: a redrive succeeded, or someone took care of it.
	Resolved Status = "RESOLVED"
	// Discarded was given up deliberately. It is kept, and can be restored.
	Discarded Status = "DISCARDED"
)

// Statuses lists every status in the order of an entry's life.
func Statuses() []Status { return []Status{Pending, Retrying, Parked, Resolved, Discarded} }

// Valid reports whether it is one of [Statuses].
func (s Status) Valid() bool { return slices.Contains(Statuses(), s) }

// ParseStatus reads a status in any letter case. The error for an unknown one lists the statuses.
func ParseStatus(text string) (Status, error) {
	status := Status(strings.ToUpper(strings.TrimSpace(text)))
	if !status.Valid() {
		return "", fmt.Errorf("%w: unknown status %q: one of %s", ErrInvalid, text, joinStatuses())
	}
	return status, nil
}

func joinStatuses() string {
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(Statuses()), "[]"), " ", ", ")
}

// Counts are numbers of entries by status.
type Counts struct {
	Pending   int64 `json:"pending"`
	Retrying  int64 `json:"retrying"`
	Parked    int64 `json:"parked"`
	Resolved  int64 `json:"resolved"`
	Discarded int64 `json:"discarded"`
}

// Total is the sum of all.
func (c Counts) Total() int64 { return c.Pending + c.Retrying + c.Parked + c.Resolved + c.Discarded }

// Of is the number of entries with the status.
func (c Counts) Of(s Status) int64 { return *c.at(s) }

// Add adds n to the number of the status.
func (c *Counts) Add(s Status, n int64) { *c.at(s) += n }

// at points to the number of the status. An unknown one has a zero that is not kept.
func (c *Counts) at(s Status) *int64 {
	switch s {
	case Pending:
		return &c.Pending
	case Retrying:
		return &c.Retrying
	case Parked:
		return &c.Parked
	case Resolved:
		return &c.Resolved
	case Discarded:
		return &c.Discarded
	default:
		return new(int64)
	}
}

// Plus is the sum of both.
func (c Counts) Plus(others Counts) Counts {
	return Counts{
		c.Pending + others.Pending, c.Retrying + others.Retrying, c.Parked + others.Parked, c.Resolved + others.Resolved,
		c.Discarded + others.Discarded,
	}
}

// Group is a cause: all entries with the same fingerprint.
type Group struct {
	Fingerprint string    `json:"fingerprint"`
	Cause       string    `json:"cause" doc:"The error without its numbers, ids and quoted values."`
	Sample      string    `json:"sample" doc:"An unchanged error of the group."`
	ErrorClass  string    `json:"error_class,omitempty"`
	Handler     string    `json:"handler,omitempty"`
	Counts      Counts    `json:"counts"`
	FirstSeen   time.Time `json:"first_seen"`
	LastSeen    time.Time `json:"last_seen"`
	LastEntry   int64     `json:"last_entry"`

	Trend []HourCount `json:"trend,omitempty" nullable:"false" doc:"Its hours since trend_since, if requested."`
}

// GroupList are causes, those with the most entries first.
type GroupList struct {
	Groups     []Group `json:"groups" nullable:"false"`
	Incomplete bool    `json:"incomplete,omitempty" doc:"There are more causes: raise limit, or filter."`
}

// NamedCounts are the counts of one topic or event type.
type NamedCounts struct {
	Name   string `json:"name"`
	Counts Counts `json:"counts"`
}

// HourCount has how many entries were created in the hour that begins at Hour (UTC), how many were closed in it,
// resolved or discarded, whenever they were created, and how many died again: after a redrive, or sent again after they
// were closed. A death is not removed from its hour when its entry dies later of another cause, or is purged.
type HourCount struct {
	Hour   time.Time `json:"hour" doc:"Its beginning, in UTC."`
	Count  int64     `json:"count" doc:"Created."`
	Closed int64     `json:"closed" doc:"Resolved or discarded, whenever they were created."`

	DiedAgain int64 `json:"died_again,omitzero" doc:"Deaths after a redrive, or of a message sent again after its entry was closed."`
}

// Deaths is the number of all deaths, first and repeated.
func (h HourCount) Deaths() int64 { return h.Count + h.DiedAgain }

// GroupQuery selects causes, those with the most entries first.
type GroupQuery struct {
	Status     Status `query:"status" enum:"PENDING,RETRYING,PARKED,RESOLVED,DISCARDED" doc:"Rank by the entries in this status, and omit groups without any. Defaults to all entries."`
	Handler    string `query:"handler"`
	ErrorClass string `query:"error_class"`
	CauseText  string `query:"cause" doc:"Text that occurs in the cause."`

	Fingerprint string `query:"fingerprint" doc:"Only this group."`
	// SeenSince, unless zero, selects the groups with a death since then, sorted by their first death, the latest first.
	SeenSince  time.Time
	TrendSince time.Time `query:"trend_since" doc:"Return the hours of each group since then."`

	Limit int `query:"limit" minimum:"1" maximum:"1000" default:"10" doc:"Maximum number."`
}

// DefaultGroups is how many groups a query without a limit returns.
const DefaultGroups = 10

// MaxGroups is the maximum number of groups of a query: more than a caller may request, so that those which look the
// same to it become one before its limit applies.
const MaxGroups = 10_000

// StatsQuery selects statistics.
type StatsQuery struct {
	Since time.Time `query:"since" doc:"The start of the hourly curve. Defaults to seven days ago."`
	// Now is the end of the curve. Defaults to the time of the call.
	Now       time.Time
	TopCauses int `query:"top_causes" minimum:"1" maximum:"1000" default:"10" doc:"Maximum number of causes."`
	// Recent requests Stats.Recent, which counts the entries of the last hour.
	Recent bool
}

// The spans of Stats.Recent: an hour of them, up to the current one.
const (
	RecentSpan  = 5 * time.Minute
	RecentSpans = 12
)

// Stats are the numbers of a dashboard. They are maintained with every change, so that reading them scans no entries,
// except for Recent.
type Stats struct {
	Counts         Counts        `json:"counts"`
	ByType         []NamedCounts `json:"by_type" nullable:"false"`
	ByTopic        []NamedCounts `json:"by_topic" nullable:"false"`
	TopCauses      []Group       `json:"top_causes" nullable:"false" doc:"The groups with the most PENDING entries."`
	Hourly         []HourCount   `json:"hourly" nullable:"false" doc:"Created in each hour, oldest first; hours without any are omitted."`
	OldestPending  time.Time     `json:"oldest_pending,omitzero" doc:"When the oldest PENDING entry was created."`
	MeanResolution Seconds       `json:"mean_resolution_seconds" doc:"Mean time from the first death to RESOLVED; 0 if nothing was resolved."`
	// Recent has the last RecentSpans spans, oldest first, including the current one; nil unless requested.
	Recent []SpanCount `json:"-"`
}

// SpanCount has how many deaths there were in the span that begins at From (UTC), how many entries were closed in it,
// and how many of the deaths were repeated ones.
type SpanCount struct {
	From                     time.Time
	Count, Closed, DiedAgain int64
}

// RecurringCause is a cause in a report.
type RecurringCause struct {
	Fingerprint string    `json:"fingerprint"`
	Cause       string    `json:"cause" doc:"The error without its numbers, ids and quoted values."`
	Handler     string    `json:"handler,omitempty"`
	Now         int64     `json:"now" doc:"Its dead letters in the period."`
	Before      int64     `json:"before" doc:"Its dead letters in the previous period."`
	Pending     int64     `json:"pending" doc:"Its PENDING entries now, of any age."`
	FirstSeen   time.Time `json:"first_seen"`
	LastSeen    time.Time `json:"last_seen"`
}

// Recurrence is how the causes have changed since the previous period. Each list begins with the most frequent cause.
type Recurrence struct {
	From       time.Time        `json:"from" doc:"The start of the period. The previous one is as long."`
	To         time.Time        `json:"to" doc:"Its end, not included: the end of this hour."`
	Now        int64            `json:"now" doc:"The dead letters of all causes in the period."`
	Before     int64            `json:"before" doc:"Those in the previous period."`
	New        []RecurringCause `json:"new" nullable:"false" doc:"Never seen before the period."`
	Growing    []RecurringCause `json:"growing" nullable:"false" doc:"At least 1.5 times as many as before, and at least 5 more."`
	Returning  []RecurringCause `json:"returning" nullable:"false" doc:"In this period and earlier, but not in the previous period."`
	Fixed      []RecurringCause `json:"fixed" nullable:"false" doc:"In the previous period, but not in this one."`
	Steady     []RecurringCause `json:"steady" nullable:"false" doc:"The rest."`
	Incomplete bool             `json:"incomplete,omitempty" doc:"There are more causes: the smallest are omitted."`
}

// Markdown renders the report for people: a chat, an issue, a mail. Texts from messages cannot break out of their
// cells.
func (r *Recurrence) Markdown() string {
	var b strings.Builder
	period := r.To.Sub(r.From)
	fmt.Fprintf(&b, "# Dead letters, %s to %s\n\n%d arrived, after %d in the %s before.", day(r.From), day(r.To), r.Now,
		r.Before, spell(period))
	if r.Incomplete {
		fmt.Fprintf(&b, " Only the %d largest causes were considered.", MaxPage)
	}
	b.WriteString("\n")
	for _, part := range []struct {
		title, none string
		causes      []RecurringCause
	}{
		{"New", "No cause is new.", r.New},
		{"Growing", "No cause is growing.", r.Growing},
		{"Returning", "No cause is back.", r.Returning},
		{"Fixed", "No cause is gone.", r.Fixed},
		{"Steady", "", r.Steady},
	} {
		if len(part.causes) == 0 {
			if part.none != "" {
				fmt.Fprintf(&b, "\n%s\n", part.none)
			}
			continue
		}
		fmt.Fprintf(&b, "\n## %s\n\n| cause | handler | now | before | pending | first seen | last seen | group "+
			"|\n|---|---|---:|---:|---:|---|---|---|\n", part.title)
		for i := range part.causes {
			c := &part.causes[i]
			fmt.Fprintf(&b, "| %s | %s | %d | %d | %d | %s | %s | %s |\n", cell(c.Cause), cell(c.Handler), c.Now, c.Before,
				c.Pending, day(c.FirstSeen), day(c.LastSeen), cell(c.Fingerprint))
		}
	}
	return b.String()
}

func day(t time.Time) string { return t.UTC().Format("2006-01-02 15:04") }

func spell(d time.Duration) string {
	hours := int(d / time.Hour)
	if hours%24 == 0 {
		return fmt.Sprintf("%d days", hours/24)
	}
	return fmt.Sprintf("%d hours", hours)
}

// cell escapes a text for one table cell: nothing in it is markup.
func cell(value string) string {
	const most = 160
	value = strings.Join(strings.Fields(text.Clean(value, most)), " ")
	var b strings.Builder
	for _, r := range value {
		switch {
		case strings.ContainsRune("\\`*_{}[]<>()#+!|~&", r):
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < ' ' || r == 0x7f:
			b.WriteRune('\ufffd')
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
