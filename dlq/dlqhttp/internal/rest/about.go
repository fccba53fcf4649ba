package rest

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/wire"
)

func (a *API) aboutRoutes() {
	about := func(id, path, summary string, role access.Role) route {
		return route{
			id: id, method: http.MethodGet, path: path, tag: "about", summary: summary, role: role,
		}
	}
	handle(a, about("get-me", "/me", "Show who you are and what you may do", access.Viewer), a.me)
	handle(a, about("get-health", "/health", "Show the state of each component", access.Viewer), a.health)
	handle(a, about("list-rules", "/rules", "List the rules by which the server redrives automatically", access.Viewer),
		a.rules)
	handle(a, about("get-topology", "/topology", "Show what the brokers have and what is planned", access.Viewer),
		a.topology)
	handle(a, about("get-settings", "/settings", "Show the configuration, without secrets", access.Admin), a.settings)
}

func (a *API) me(ctx context.Context, _ *none) (*output[wire.Me], error) {
	who := access.From(ctx)
	return &output[wire.Me]{wire.Me{
		Name: who.Name, Role: who.Role.String(), ReadOnly: a.cfg.ReadOnly, Redacted: a.visible(ctx).Hides(),
	}}, nil
}

func (a *API) health(ctx context.Context, _ *none) (*output[wire.Health], error) {
	return &output[wire.Health]{a.cfg.Health(ctx)}, nil
}

func (a *API) rules(context.Context, *none) (*output[wire.RuleList], error) {
	list := wire.RuleList{Rules: []wire.Rule{}}
	for i := range a.cfg.Rules {
		r := &a.cfg.Rules[i]
		list.Rules = append(list.Rules, wire.Rule{
			Name: r.Name, Reason: string(r.Reason), ErrorClass: r.ErrorClass, ErrorCode: r.ErrorCode, Fingerprint: r.Fingerprint,
			Handler: r.Handler, Topic: r.Topic, Cause: r.CauseText, AfterSeconds: r.After.Seconds(),
			MaxAfterSeconds: r.MaxAfter.Seconds(),
			Redrives:        r.Redrives, Rate: r.Rate, CloseOnPublish: r.CloseOnPublish,
		})
	}
	return &output[wire.RuleList]{list}, nil
}

func (a *API) topology(ctx context.Context, _ *none) (*output[any], error) {
	if a.cfg.Topology == nil {
		return nil, huma.NewError(http.StatusNotFound, "this server has no topology to show")
	}
	shown, err := a.cfg.Topology(ctx)
	if err != nil {
		return nil, a.fail(ctx, err, 0)
	}
	return &output[any]{shown}, nil
}

func (a *API) settings(context.Context, *none) (*output[any], error) {
	if a.cfg.Settings == nil {
		return nil, huma.NewError(http.StatusNotFound, "this server has no settings to show")
	}
	return &output[any]{a.cfg.Settings}, nil
}
