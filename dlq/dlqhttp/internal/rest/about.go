package rest

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/wire"
)

func (a *API) aboutRoutes() {
	handle(a, readRoute("about", "get-me", "/me", "Show who you are and what you may do"), a.me)
	handle(a, readRoute("about", "get-health", "/health", "Show the state of each component"), a.health)
	handle(a, readRoute("about", "list-rules", "/rules", "List the rules by which the server redrives automatically"),
		a.rules)
	handle(a, readRoute("about", "get-topology", "/topology", "Show what the brokers have and what is planned"),
		a.topology)
	settings := readRoute("about", "get-settings", "/settings", "Show the configuration, without secrets")
	settings.Role = access.Admin
	handle(a, settings, a.settings)
}

func (a *API) me(ctx context.Context, _ *none) (*wire.Me, error) {
	who := access.From(ctx)
	return &wire.Me{
		Name: who.Name, Role: who.Role.String(), ReadOnly: a.cfg.ReadOnly, Redacted: a.visible(ctx).Hides(),
	}, nil
}

func (a *API) health(ctx context.Context, _ *none) (*wire.Health, error) {
	return new(a.cfg.Health(ctx)), nil
}

func (a *API) rules(ctx context.Context, _ *none) (*wire.RuleList, error) {
	list := wire.RuleList{Rules: []wire.Rule{}}
	for _, r := range a.visible(ctx).Rules(a.cfg.Rules) {
		list.Rules = append(list.Rules, wire.Rule{
			Name: r.Name, Reason: string(r.Reason), ErrorClass: r.ErrorClass, ErrorCode: r.ErrorCode, Fingerprint: r.Fingerprint,
			Handler: r.Handler, Topic: r.Topic, Cause: r.CauseText, AfterSeconds: r.After.Seconds(),
			MaxAfterSeconds: r.MaxAfter.Seconds(), Redrives: r.Redrives, Rate: r.Rate, CloseOnPublish: r.CloseOnPublish,
		})
	}
	return new(list), nil
}

func (a *API) topology(ctx context.Context, _ *none) (*any, error) {
	if a.cfg.Topology == nil {
		return nil, huma.NewError(http.StatusNotFound, "this server has no topology to show")
	}
	shown, err := a.cfg.Topology(ctx)
	return &shown, err
}

func (a *API) settings(context.Context, *none) (*any, error) {
	if a.cfg.Settings == nil {
		return nil, huma.NewError(http.StatusNotFound, "this server has no settings to show")
	}
	return &a.cfg.Settings, nil
}
