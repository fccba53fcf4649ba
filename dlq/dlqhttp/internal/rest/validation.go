package rest

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/wire"
)

func (a *API) validationEvent(ctx context.Context, e *dlq.Entry) wire.ValidationEvent {
	shown := a.visible(ctx).Entry(e)
	return wire.ValidationEventOf(&shown)
}

type validationInput struct {
	Status string `query:"status" enum:"PENDING,RETRYING,PARKED,RESOLVED,DISCARDED" default:"PENDING"`
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"1000" doc:"At most this many, the newest first."`
	Cursor string `query:"cursor" maxLength:"200" doc:"From the Link header of the previous page."`
	Self
}

type validationOutput struct {
	Link
	Body []wire.ValidationEvent `nullable:"false"`
}

type resolveInput struct {
	ID
	ResolvedBy string `query:"resolvedBy" maxLength:"100" doc:"Who took care of it."`
}

// validationRoutes are the four routes of older services, for existing callers.
func (a *API) validationRoutes() {
	register(a, readRoute("validation", "validation-list", "/validation/dlq",
		"List dead letters in a status, the newest first"), a.validationList)
	retry := changeRoute(access.Operator, "validation", "validation-retry", "/validation/dlq/{id}/retry",
		"Send a dead letter back to its consumer")
	retry.Status = http.StatusAccepted
	handle(a, retry, func(ctx context.Context, in *ID) (*wire.ValidationEvent, error) {
		return a.validationChange(ctx, in.ID, by(ctx, ""), a.cfg.Manager.Redrive)
	})
	handle(a, route{
		ID: "validation-resolve", Method: http.MethodPut, Path: "/validation/dlq/{id}/resolve", Tag: "validation",
		Role: access.Operator, Changes: true, Summary: "Mark a dead letter as taken care of",
		Description: "The entry has resolvedBy as it was sent. The actor in the audit log is the authenticated caller," +
			" and the record has both names.",
	}, a.validationResolve)
	register(a, route{
		ID: "validation-discard", Method: http.MethodDelete, Path: "/validation/dlq/{id}", Tag: "validation",
		Role: access.Operator, Changes: true, Status: http.StatusNoContent,
		Summary: "Give a dead letter up; it is kept as DISCARDED and can be restored",
	}, func(ctx context.Context, in *ID) (*none, error) {
		_, err := a.validationChange(ctx, in.ID, by(ctx, ""), a.cfg.Manager.Discard)
		return nil, err
	})
}

func (a *API) validationList(ctx context.Context, in *validationInput) (*validationOutput, error) {
	listing, err := a.cfg.Manager.List(ctx, dlq.Filter{Statuses: []dlq.Status{dlq.Status(in.Status)}},
		dlq.Page{Limit: in.Limit, After: in.Cursor})
	if err != nil {
		return nil, err
	}
	out := &validationOutput{Link: in.next(listing.Next), Body: make([]wire.ValidationEvent, 0, len(listing.Entries))}
	for i := range listing.Entries {
		out.Body = append(out.Body, a.validationEvent(ctx, &listing.Entries[i]))
	}
	return out, nil
}

func (a *API) validationResolve(ctx context.Context, in *resolveInput) (*wire.ValidationEvent, error) {
	who := by(ctx, "")
	if in.ResolvedBy != "" && !access.Proper(in.ResolvedBy) {
		return nil, huma.NewError(http.StatusUnprocessableEntity, "validation failed",
			&huma.ErrorDetail{Location: "query.resolvedBy", Message: "expected a name without control characters"})
	}
	if who.ResolvedBy = in.ResolvedBy; in.ResolvedBy != "" && access.From(ctx).Unproven {
		who.Actor = in.ResolvedBy // no caller is authenticated here, so this is as good
	}
	return a.validationChange(ctx, in.ID.ID, who, a.cfg.Manager.Resolve)
}

func (a *API) validationChange(ctx context.Context, id int64, who dlq.By, do change) (*wire.ValidationEvent, error) {
	e, err := do(ctx, id, who)
	if err != nil {
		return nil, err
	}
	return new(a.validationEvent(ctx, e)), nil
}
