package rest

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/health"
)

// Me is who asks, and what the server does for them.
type Me struct {
	Name     string `json:"name" doc:"What stands in the audit log."`
	Role     string `json:"role" enum:"viewer,operator,approver,admin"`
	ReadOnly bool   `json:"read_only" doc:"The server changes nothing."`
	Redacted bool   `json:"redacted" doc:"Something is hidden from you."`
}

// Rule redrives dead letters of technical causes by itself.
type Rule struct {
	Name            string  `json:"name"`
	Reason          string  `json:"reason,omitempty"`
	ErrorClass      string  `json:"error_class,omitempty"`
	ErrorCode       string  `json:"error_code,omitempty"`
	Fingerprint     string  `json:"fingerprint,omitempty"`
	Handler         string  `json:"handler,omitempty"`
	Topic           string  `json:"topic,omitempty"`
	Cause           string  `json:"cause,omitempty"`
	AfterSeconds    float64 `json:"after_seconds" doc:"How long after its last death; doubled with each redrive."`
	MaxAfterSeconds float64 `json:"max_after_seconds"`
	Redrives        int     `json:"redrives" doc:"How often at most."`
	Rate            float64 `json:"rate" doc:"Messages a second at most."`
	CloseOnPublish  bool    `json:"close_on_publish,omitempty"`
}

// RuleList are the rules that the server applies.
type RuleList struct {
	Rules []Rule `json:"rules" nullable:"false"`
}

func (a *API) aboutRoutes() {
	about := func(id, path, summary string, role access.Role) route {
		return route{
			id: id, method: http.MethodGet, path: path, tag: "about", summary: summary, role: role,
		}
	}
	handle(a, about("get-me", "/me", "Show who you are and what you may do", access.Viewer), a.me)
	handle(a, about("get-health", "/health", "Show the state of each component", access.Viewer), a.health)
	handle(a, about("list-rules", "/rules", "List the rules by which the server redrives by itself", access.Viewer), a.rules)
	handle(a, about("get-topology", "/topology", "Show what the brokers have and what is planned", access.Viewer), a.topology)
	handle(a, about("get-settings", "/settings", "Show the configuration, without secrets", access.Admin), a.settings)
}

func (a *API) me(ctx context.Context, _ *none) (*output[Me], error) {
	who := access.From(ctx)
	return &output[Me]{Me{Name: who.Name, Role: who.Role.String(), ReadOnly: a.cfg.ReadOnly, Redacted: a.visible(ctx) != nil}}, nil
}

func (a *API) health(ctx context.Context, _ *none) (*output[health.Health], error) {
	return &output[health.Health]{a.cfg.Health(ctx)}, nil
}

func (a *API) rules(context.Context, *none) (*output[RuleList], error) {
	list := RuleList{Rules: []Rule{}}
	for i := range a.cfg.Rules {
		r := &a.cfg.Rules[i]
		list.Rules = append(list.Rules, Rule{
			Name: r.Name, Reason: string(r.Reason), ErrorClass: r.ErrorClass, ErrorCode: r.ErrorCode, Fingerprint: r.Fingerprint,
			Handler: r.Handler, Topic: r.Topic, Cause: r.CauseText, AfterSeconds: r.After.Seconds(), MaxAfterSeconds: r.MaxAfter.Seconds(),
			Redrives: r.Redrives, Rate: r.Rate, CloseOnPublish: r.CloseOnPublish,
		})
	}
	return &output[RuleList]{list}, nil
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
