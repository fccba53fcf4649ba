package rest

import (
	"context"
	"net/http"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/wire"
)

type changeInput struct {
	ID
	Match
	Body *wire.Note
}

type bulkInput struct{ Body wire.BulkRequest }

// change is an action on one entry.
type change func(context.Context, int64, dlq.By) (*dlq.Entry, error)

func (a *API) changeRoutes() {
	m := a.cfg.Manager
	for _, c := range []struct {
		verb, summary string
		status        int
		role          access.Role
		do            change
	}{
		{"redrive", "Send a dead letter back to its consumer", http.StatusAccepted, access.Operator, m.Redrive},
		{"resolve", "Mark a dead letter as taken care of", http.StatusOK, access.Operator, m.Resolve},
		{"discard", "Give a dead letter up; it is kept and can be restored", http.StatusOK, access.Operator, m.Discard},
		{"restore", "Undo resolve, discard or park", http.StatusOK, access.Operator, m.Restore},
		{"park", "Set a dead letter aside for a person", http.StatusOK, access.Operator, m.Park},
		{
			"release", "End the wait for the outcome of a redrive; the note is required", http.StatusOK, access.Admin,
			m.Release,
		},
	} {
		r := changeRoute(c.role, "entries", c.verb+"-entry", "/entries/{id}/"+c.verb, c.summary)
		r.Status = c.status
		register(a, r, func(ctx context.Context, in *changeInput) (*tagged[wire.Entry], error) {
			return a.change(ctx, in, c.do)
		})
	}
	handle(a, route{
		ID: "change-entries", Method: http.MethodPost, Path: "/entries/bulk", Tag: "entries", Slow: true,
		Summary: "Resolve, discard, restore or park everything that a filter picks", Role: access.Operator, Changes: true,
		Description: "To send back what a filter picks, start a run. Changes made before an error remain; repeating the " +
			"request is safe.",
	}, a.bulk)
}

func (a *API) change(ctx context.Context, in *changeInput, do change) (*tagged[wire.Entry], error) {
	version, err := in.version()
	if err != nil {
		return nil, err
	}
	who := noted(ctx, in.Body)
	who.Version = version
	e, err := do(ctx, in.ID.ID, who)
	if err != nil {
		return nil, err
	}
	return &tagged[wire.Entry]{ETag: etag(e.Version), Body: a.visible(ctx).Entry(e)}, nil
}

func (a *API) bulk(ctx context.Context, in *bulkInput) (*wire.BulkResult, error) {
	filter, err := a.filtered(ctx, &in.Body.Filter)
	if err != nil {
		return nil, err
	}
	if err := picks(&filter); err != nil {
		return nil, err
	}
	done, err := a.cfg.Manager.ChangeAll(ctx, driver.Action(in.Body.Action), filter, by(ctx, in.Body.Note.Note))
	if err != nil {
		return nil, err
	}
	result := wire.BulkResult{Changed: done.Changed, Refused: done.Refused, Conflicts: []wire.Conflict{}}
	for _, c := range done.Conflicts {
		if conflict := a.conflict(ctx, c); conflict != nil {
			result.Conflicts = append(result.Conflicts, *conflict)
		}
	}
	return new(result), nil
}
