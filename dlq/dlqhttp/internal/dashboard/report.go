package dashboard

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
)

// period is a choice of how long a report looks back.
type period struct{ Since, Label string }

// periods are the choices; the URL accepts any whole hours up to maxPeriod.
var periods = []period{{"24h", "Day"}, {"7d", "Week"}, {"30d", "30 days"}, {"90d", "90 days"}}

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
func (d *dashboard) recurrence(r *http.Request) (report *dlq.Recurrence, since string, at time.Time, err error) {
	if since = r.URL.Query().Get("since"); since == "" {
		since = defaultPeriod
	}
	length, err := parseAge(since)
	if err != nil {
		return nil, since, at, err
	}
	if length < time.Hour || length%time.Hour != 0 || length > maxPeriod {
		return nil, since, at, invalid("a report over %s: whole hours, from 1h to 366d", since)
	}
	report, at, err = cached(r.Context(), d.cache, "report "+length.String(),
		func(ctx context.Context) (*dlq.Recurrence, error) {
			return d.cfg.Manager.Recurrence(ctx, dlq.RecurrenceQuery{Period: length})
		})
	if err != nil {
		return nil, since, at, err
	}
	return new(d.cfg.Visible(r.Context()).Recurrence(report)), since, at, nil
}

// report shows which causes are new, growing, back, or gone.
func (d *dashboard) report(w http.ResponseWriter, r *http.Request) error {
	report, since, at, err := d.recurrence(r)
	if err != nil {
		return err
	}
	data := reportData{
		Recurrence: report, Since: since, Periods: periods, Earlier: report.From.Add(-report.To.Sub(report.From)),
		Most: driver.MaxPage,
		Parts: []reportPart{
			{"New", "Never seen before this period.", "No cause is new: all had been seen before.", report.New},
			{"Growing", "At least half as often again as before, and five times more.", "No cause is growing.", report.Growing},
			{
				"Returning", "Seen earlier, not in the period before, and here again.", "No cause is back.",
				report.Returning,
			},
			{
				"Fixed", "They occurred in the period before, but not in this one. Entries that still wait can be redriven.",
				"No cause is gone.", report.Fixed,
			},
			{"Steady", "They come about as often as before, or less.", "No cause is steady.", report.Steady},
		},
	}
	return d.page(w, r, "report", view{Title: "Report", Nav: "report", Live: true, At: at, Data: &data})
}

// reportMarkdown downloads the report for a chat, an issue or a mail.
func (d *dashboard) reportMarkdown(w http.ResponseWriter, r *http.Request) error {
	report, _, _, err := d.recurrence(r)
	if err != nil {
		return err
	}
	download(w, "text/markdown; charset=utf-8", reportName(report, "md"), []byte(report.Markdown()))
	return nil
}

// reportJSON downloads the report for a program.
func (d *dashboard) reportJSON(w http.ResponseWriter, r *http.Request) error {
	report, _, _, err := d.recurrence(r)
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return fmt.Errorf("dashboard: report: %w", err)
	}
	download(w, "application/json", reportName(report, "json"), append(text, '\n'))
	return nil
}

func reportName(r *dlq.Recurrence, extension string) string {
	return fmt.Sprintf("dead-letters-%s-to-%s.%s", r.From.Format(time.DateOnly), r.To.Format(time.DateOnly), extension)
}

// download responds with a file, which no browser renders.
func download(w http.ResponseWriter, contentType, name string, data []byte) {
	header := w.Header()
	header.Set("Content-Type", contentType)
	header.Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", name))
	header.Set("Content-Security-Policy", "default-src 'none'; sandbox")
	_, _ = w.Write(data) //nolint:gosec // G705: a file that no browser shows; no client is left to get the error
}
