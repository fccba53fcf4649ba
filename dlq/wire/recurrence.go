package wire

import (
	"fmt"
	"strings"
	"time"

	"github.com/redrive-go/redrive/dlq/internal/text"
)

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
