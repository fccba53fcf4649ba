package wire

import (
	"fmt"
	"strings"
	"time"

	"github.com/redrive-go/redrive/dlq/internal/text"
)

// mostCauses is how many causes a report considers: the largest page.
const mostCauses = 1000

// Markdown renders the report for people: a chat, an issue, a mail. Texts from messages cannot break out of their
// cells.
func (r *Recurrence) Markdown() string {
	var b strings.Builder
	period := r.To.Sub(r.From)
	fmt.Fprintf(&b, "# Dead letters, %s to %s\n\n%d arrived, after %d in the %s before.", day(r.From), day(r.To), r.Now,
		r.Before, spell(period))
	if r.Incomplete {
		fmt.Fprintf(&b, " Only the %d largest causes were considered.", mostCauses)
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
				c.Pending,
				day(c.FirstSeen), day(c.LastSeen), cell(c.Fingerprint))
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
