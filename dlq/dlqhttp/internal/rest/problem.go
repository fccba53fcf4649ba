package rest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/operations"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/visible"
	"github.com/redrive-go/redrive/dlq/wire"
)

const problemType = "application/problem+json"

// Problem is what went wrong, and what to do about it.
type Problem struct { //nolint:errname // the name of its schema
	huma.ErrorModel
	// Conflict names who won, for the one who came second.
	Conflict *wire.Conflict `json:"conflict,omitempty" doc:"Who was faster, on a conflict."`
	// Imported is what an import has stored before the error.
	Imported *wire.Imported `json:"imported,omitempty" doc:"What an import has stored before it."`
}

// fail makes the answer of an error. version is what If-Match asked for, 0 if it did not.
func (a *API) fail(ctx context.Context, err error, version int64) error {
	if _, ours := errors.AsType[huma.StatusError](err); ours {
		return err
	}
	if refused, ok := errors.AsType[*visible.RefusedError](err); ok {
		a.cfg.Refused(ctx, refused)
	}
	status, text := operations.FaultOf(ctx, err).Status, a.visible(ctx).Text(err.Error())
	failed := status == http.StatusServiceUnavailable || status == http.StatusGatewayTimeout
	if failed && !a.cfg.ShowFaults {
		a.cfg.Logger.ErrorContext(ctx, "request failed", "error", err)
		if !errors.Is(err, dlq.ErrPublish) { // a driver's words are for the log
			text = "the store does not answer, or not in time: try again; the server's log has the reason"
		}
	}
	problem := &Problem{ErrorModel: huma.ErrorModel{Detail: text}}
	if status == http.StatusConflict {
		problem.Conflict = a.conflict(ctx, err)
		if c := problem.Conflict; c != nil && version != 0 && c.Version != version {
			status = http.StatusPreconditionFailed
		}
	}
	if broken, ok := errors.AsType[*importError](err); ok {
		problem.Imported = &broken.imported
	}
	problem.Status, problem.Title = status, http.StatusText(status)
	if failed {
		return huma.ErrorWithHeaders(problem, http.Header{"Retry-After": {"5"}})
	}
	return problem
}

// conflict is the visible part of a conflict; nil if the error is none.
func (a *API) conflict(ctx context.Context, err error) *wire.Conflict {
	conflict, found := errors.AsType[*wire.Conflict](err)
	if !found {
		return nil
	}
	shown := *conflict
	shown.By = a.visible(ctx).Text(shown.By)
	return &shown
}

// explain is a huma.Transformer: it gives the findings of a validation in detail, and echoes at most a line of the
// request.
func explain(_ huma.Context, _ string, value any) (any, error) {
	problem, ok := value.(*huma.ErrorModel)
	if !ok || len(problem.Errors) == 0 {
		return value, nil
	}
	var faults []string
	for _, e := range problem.Errors {
		if e == nil {
			continue
		}
		if text := fmt.Sprint(e.Value); len(text) > maxEcho {
			e.Value = nil
		}
		if e.Location != "" {
			faults = append(faults, e.Location+": "+e.Message)
		} else {
			faults = append(faults, e.Message)
		}
	}
	if problem.Detail == "validation failed" {
		problem.Detail = strings.Join(faults, "; ")
	}
	return problem, nil
}

const maxEcho = 200

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
