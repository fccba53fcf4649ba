package rest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/operations"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/visible"
	"github.com/redrive-go/redrive/dlq/wire"
)

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
	if failed || status == http.StatusTooManyRequests {
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

// readJSON decodes a request with a bounded number of values: huma decodes, checks and reports each of them, which
// takes several hundred times the memory of a body that consists of commas. Texts may be as long as the body.
func readJSON(data []byte, into any) error {
	values, text := 0, false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case c == '"':
			text = !text
		case c == '\\':
			i++ // only in texts
		case c == ',' && !text:
			values++
		}
	}
	if values > maxValues {
		return fmt.Errorf("more than %d values", maxValues)
	}
	return json.Unmarshal(data, into)
}

// explain is a huma.Transformer: it gives the first findings of a validation in detail, and echoes at most a line of
// the request.
func explain(_ huma.Context, _ string, value any) (any, error) {
	problem, ok := value.(*huma.ErrorModel)
	if !ok || len(problem.Errors) == 0 {
		return value, nil
	}
	problem.Errors = problem.Errors[:min(len(problem.Errors), maxFaults)]
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

const (
	maxValues = 20_000 // twice the ids of a filter
	maxFaults = 20
	maxEcho   = 200
)
