package rest

import (
	"context"
	"net/http"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
)

// RecurringCause is a cause in a report.
type RecurringCause struct {
	Fingerprint string    `json:"fingerprint"`
	Cause       string    `json:"cause" doc:"The error without its numbers, ids and quoted values."`
	Handler     string    `json:"handler,omitempty"`
	Now         int64     `json:"now" doc:"Its dead letters in the period."`
	Before      int64     `json:"before" doc:"Those in the period before."`
	Pending     int64     `json:"pending" doc:"Those that wait now, of any time."`
	FirstSeen   time.Time `json:"first_seen"`
	LastSeen    time.Time `json:"last_seen"`
}

// Recurrence says how the causes have changed since the last period. Each list begins with the cause that came most.
type Recurrence struct {
	From       time.Time        `json:"from" doc:"The start of the period; the one before begins as long before it."`
	To         time.Time        `json:"to" doc:"Its end, not included: the end of this hour."`
	Now        int64            `json:"now" doc:"The dead letters of all causes in the period."`
	Before     int64            `json:"before" doc:"Those in the period before."`
	New        []RecurringCause `json:"new" nullable:"false" doc:"Never seen before the period."`
	Growing    []RecurringCause `json:"growing" nullable:"false" doc:"At least half as often again as before, and five times more."`
	Returning  []RecurringCause `json:"returning" nullable:"false" doc:"In this period and earlier, but not in the one before."`
	Fixed      []RecurringCause `json:"fixed" nullable:"false" doc:"In the period before, and no more."`
	Steady     []RecurringCause `json:"steady" nullable:"false" doc:"The rest."`
	Incomplete bool             `json:"incomplete,omitempty" doc:"There are more causes than were looked at: the smallest are left out."`
}

type reportInput struct {
	Hours int `query:"hours" minimum:"1" maximum:"8784" default:"168" doc:"How long the period is; it is compared with as many hours before. A week, unless given."`
}

func (a *API) reportRoutes() {
	handle(a, route{
		id: "get-report", method: http.MethodGet, path: "/report", tag: "groups", role: access.Viewer,
		summary: "Report which causes are new, grow, return or are fixed",
	}, a.report)
}

func (a *API) report(ctx context.Context, in *reportInput) (*output[Recurrence], error) {
	report, err := a.cfg.Manager.Recurrence(ctx, dlq.RecurrenceQuery{Period: time.Duration(in.Hours) * time.Hour})
	if err != nil {
		return nil, a.fail(ctx, err, 0)
	}
	r := a.visible(ctx).Recurrence(report)
	return &output[Recurrence]{Recurrence{
		From: r.From, To: r.To, Now: r.Now, Before: r.Before, New: recurring(r.New), Growing: recurring(r.Growing),
		Returning: recurring(r.Returning), Fixed: recurring(r.Fixed), Steady: recurring(r.Steady), Incomplete: r.Incomplete,
	}}, nil
}

func recurring(causes []dlq.RecurringCause) []RecurringCause {
	shown := make([]RecurringCause, 0, len(causes))
	for i := range causes {
		shown = append(shown, RecurringCause(causes[i]))
	}
	return shown
}
