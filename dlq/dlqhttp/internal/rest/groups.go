package rest

import (
	"cmp"
	"context"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/wire"
)

type auditInput struct {
	wire.AuditQuery
	wire.Page
	Self
}

func (a *API) groupRoutes() {
	handle(a, readRoute("groups", "list-groups", "/groups", "List causes, those with the most dead letters first"),
		a.groups)
	handle(a, readRoute("groups", "get-report", "/report", "Report which causes are new, grow, return or are fixed"),
		a.report)
	handle(a, readRoute("groups", "get-stats", "/stats", "Count dead letters by status, topic, type, cause and hour"),
		a.stats)
	register(a, readRoute("groups", "list-audit", "/audit", "List the actions taken, by whom and why"), a.auditLog)
	handle(a, readRoute("groups", "list-mutes", "/mutes", "List the muted causes"), a.mutes)
	handle(a, changeRoute(access.Operator, "groups", "mute-group", "/groups/{fingerprint}/mute",
		"Stop the notifications of a cause, for a time or for good"), a.mute)
	handle(a, changeRoute(access.Operator, "groups", "unmute-group", "/groups/{fingerprint}/unmute",
		"Resume the notifications of a cause; returns what is still muted"), a.unmute)
}

// GroupID is the fingerprint of a cause in a path.
type GroupID struct {
	Fingerprint string `path:"fingerprint" maxLength:"64" doc:"The cause."`
}

type muteInput struct {
	GroupID
	Body *wire.MuteRequest
}

type unmuteInput struct {
	GroupID
	Body *wire.Note
}

func (a *API) mutes(ctx context.Context, _ *none) (*wire.MuteList, error) {
	mutes, err := a.cfg.Manager.Mutes(ctx)
	return &wire.MuteList{Mutes: a.visible(ctx).Mutes(mutes)}, err
}

func (a *API) mute(ctx context.Context, in *muteInput) (*wire.Mute, error) {
	body := cmp.Or(in.Body, &wire.MuteRequest{})
	if err := a.visible(ctx).SearchGroups(ctx, &dlq.GroupQuery{Fingerprint: in.Fingerprint}); err != nil {
		return nil, err
	}
	return a.cfg.Manager.Mute(ctx, in.Fingerprint, wire.SecondsOf(body.Seconds).Duration(),
		by(ctx, body.Note.Note))
}

func (a *API) unmute(ctx context.Context, in *unmuteInput) (*wire.MuteList, error) {
	if err := a.visible(ctx).SearchGroups(ctx, &dlq.GroupQuery{Fingerprint: in.Fingerprint}); err != nil {
		return nil, err
	}
	if err := a.cfg.Manager.Unmute(ctx, in.Fingerprint, noted(ctx, in.Body)); err != nil {
		return nil, err
	}
	return a.mutes(ctx, nil)
}

func (a *API) groups(ctx context.Context, in *wire.GroupQuery) (*wire.GroupList, error) {
	if err := a.visible(ctx).SearchGroups(ctx, in); err != nil {
		return nil, err
	}
	groups, more, err := a.cfg.Groups(ctx, *in)
	return &wire.GroupList{Groups: groups, Incomplete: more}, err
}

func (a *API) stats(ctx context.Context, in *wire.StatsQuery) (*wire.Stats, error) {
	return a.cfg.Stats(ctx, *in)
}

func (a *API) auditLog(ctx context.Context, in *auditInput) (*page[wire.AuditList], error) {
	if err := a.visible(ctx).Values(in.Actor, in.Run); err != nil {
		return nil, err
	}
	records, next, err := a.cfg.Manager.AuditLog(ctx, in.AuditFilter, in.Page)
	if err != nil {
		return nil, err
	}
	shown := a.visible(ctx).Audit(records)
	if in.Fold {
		shown = driver.FoldAudit(shown)
	}
	return &page[wire.AuditList]{Link: in.next(next), Body: wire.AuditList{Records: shown, Next: next}}, nil
}

type reportInput struct {
	Hours int `query:"hours" minimum:"1" maximum:"8784" default:"168" doc:"How long the period is; it is compared with as many hours before. A week, unless given."`
}

func (a *API) report(ctx context.Context, in *reportInput) (*wire.Recurrence, error) {
	return a.cfg.Recurrence(ctx, time.Duration(in.Hours)*time.Hour)
}
