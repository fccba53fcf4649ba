package dashboard

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
)

// period is a choice of how long a report looks back; the URL accepts any whole hours up to maxPeriod.
type period struct{ Since, Label string }

const (
	defaultPeriod = "7d"
	// maxPeriod limits what one page reads from the store: every hour of twice the period.
	maxPeriod = 366 * 24 * time.Hour
)

// reportPart is a table of the report.
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
