package rest

import (
	"context"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/wire"
)

type reportInput struct {
	Hours int `query:"hours" minimum:"1" maximum:"8784" default:"168" doc:"How long the period is; it is compared with as many hours before. A week, unless given."`
}

func (a *API) reportRoutes() {
	handle(a, readRoute("groups", "get-report", "/report", "Report which causes are new, grow, return or are fixed"),
		a.report)
}

func (a *API) report(ctx context.Context, in *reportInput) (*wire.Recurrence, error) {
	report, err := a.cfg.Manager.Recurrence(ctx, dlq.RecurrenceQuery{Period: time.Duration(in.Hours) * time.Hour})
	if err != nil {
		return nil, err
	}
	return new(a.visible(ctx).Recurrence(report)), nil
}
