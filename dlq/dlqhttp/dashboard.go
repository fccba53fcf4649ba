package dlqhttp

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/dashboard"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/visible"
)

// dashboard is everything that is not the API.
func (h *Handler) dashboard() *access.Mux {
	var session func(*http.Request) bool
	if h.cfg.Login != nil {
		session = h.cfg.Login.HasSession
	}
	return dashboard.New(dashboard.Config{
		Manager: h.cfg.Manager, Runner: h.cfg.Runner, Prefix: h.cfg.Prefix, ReadOnly: h.cfg.ReadOnly, Visible: h.visible,
		Refused: h.trail.refused, Read: h.trail.read, Health: h.components,
		Topology: h.cfg.Topology, Depths: h.cfg.Depths, Settings: h.cfg.Settings, Rules: h.cfg.Rules,
		Retention: h.cfg.Retention, Rate: h.cfg.Rate, Session: session,
		Body: h.cfg.Limits.Body, Timeout: h.cfg.Limits.Timeout, Logger: h.cfg.Logger, Interval: h.cfg.interval,
	})
}

// visible is the caller's view.
func (h *Handler) visible(ctx context.Context) visible.View {
	if access.From(ctx).Role.Allows(h.cfg.RevealTo) {
		return visible.View{}
	}
	return visible.New(h.cfg.Redaction, h.cfg.RevealTo.String(), h.cfg.Manager.Groups)
}

// components are the health for the dashboard, failing components first.
func (h *Handler) components(ctx context.Context) []dashboard.Component {
	report := h.health(ctx)
	list := make([]dashboard.Component, 0, len(report.Components))
	for name, c := range report.Components {
		fault := c.Error
		if c.Status != StatusOK && fault == "" {
			fault = c.Status
		}
		list = append(list, dashboard.Component{Name: name, Error: fault})
	}
	slices.SortFunc(list, func(a, b dashboard.Component) int {
		if (a.Error == "") != (b.Error == "") {
			if a.Error != "" {
				return -1
			}
			return 1
		}
		return strings.Compare(a.Name, b.Name)
	})
	return list
}
