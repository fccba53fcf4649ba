package rest

import (
	"context"
	"net/http"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/wire"
)

type reportInput struct {
	Hours int `query:"hours" minimum:"1" maximum:"8784" default:"168" doc:"How long the period is; it is compared with as many hours before. A week, unless given."`
}

func (a *API) reportRoutes() {
	handle(a, route{
		id: "get-report", method: http.MethodGet, path: "/report", tag: "groups", role: access.Viewer,
		summary: "Report which causes are new, grow, return or are fixed",
	}, a.report)
}

func (a *API) report(ctx context.Context, in *reportInput) (*output[wire.Recurrence], error) {
	report, err := a.cfg.Manager.Recurrence(ctx, dlq.RecurrenceQuery{Period: time.Duration(in.Hours) * time.Hour})
	if err != nil {
		return nil, a.fail(ctx, err, 0)
	}
	return &output[wire.Recurrence]{a.visible(ctx).Recurrence(report)}, nil
}
