package rest

import (
	"context"
	"net/http"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/wire"
)

type groupsInput struct {
	Status     string `query:"status" enum:"PENDING,RETRYING,PARKED,RESOLVED,DISCARDED" doc:"Rank by the entries in this status, and leave out groups without any. Defaults to all entries."`
	Handler    string `query:"handler"`
	ErrorClass string `query:"error_class"`
	Cause      string `query:"cause" doc:"Text that occurs in the cause."`

	Fingerprint string    `query:"fingerprint" doc:"This group alone."`
	TrendSince  time.Time `query:"trend_since" doc:"Give each group's hours since then."`

	Limit int `query:"limit" minimum:"1" maximum:"1000" default:"10" doc:"At most so many."`
}

type statsInput struct {
	Since     time.Time `query:"since" doc:"The start of the hourly curve. Defaults to seven days ago."`
	TopCauses int       `query:"top_causes" minimum:"1" maximum:"1000" default:"10" doc:"At most so many causes."`
}

type auditInput struct {
	EntryID int64     `query:"entry_id" minimum:"1"`
	Run     string    `query:"run"`
	Actor   string    `query:"actor"`
	Action  string    `query:"action" doc:"redrive, resolve, edit, run start, ..."`
	From    time.Time `query:"from" doc:"At or after."`
	To      time.Time `query:"to" doc:"Before."`
	Fold    bool      `query:"fold" doc:"Make one record of those of a page that say the same of entries of a run."`
	Page
	Self
}

type auditOutput struct {
	Link
	Body wire.AuditList
}

func (a *API) groupRoutes() {
	handle(a, route{
		id: "list-groups", method: http.MethodGet, path: "/groups", tag: "groups", role: access.Viewer,
		summary: "List causes, those with the most dead letters first",
	}, a.groups)
	handle(a, route{
		id: "get-stats", method: http.MethodGet, path: "/stats", tag: "groups", role: access.Viewer,
		summary: "Count dead letters by status, topic, type, cause and hour",
	}, a.stats)
	handle(a, route{
		id: "list-audit", method: http.MethodGet, path: "/audit", tag: "groups", role: access.Viewer,
		summary: "List what was done, by whom and why",
	}, a.auditLog)
	handle(a, route{
		id: "list-mutes", method: http.MethodGet, path: "/mutes", tag: "groups", role: access.Viewer,
		summary: "List the muted causes",
	}, a.mutes)
	handle(a, route{
		id: "mute-group", method: http.MethodPost, path: "/groups/{fingerprint}/mute", tag: "groups", role: access.Operator,
		changes: true,
		summary: "Stop the notifications of a cause, for a time or for good",
	}, a.mute)
	handle(a, route{
		id: "unmute-group", method: http.MethodPost, path: "/groups/{fingerprint}/unmute", tag: "groups",
		role: access.Operator, changes: true, summary: "Resume the notifications of a cause; returns what is still muted",
	}, a.unmute)
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

func (a *API) mutes(ctx context.Context, _ *struct{}) (*output[wire.MuteList], error) {
	mutes, err := a.cfg.Manager.Mutes(ctx)
	if err != nil {
		return nil, a.fail(ctx, err, 0)
	}
	return &output[wire.MuteList]{wire.MuteList{Mutes: a.visible(ctx).Mutes(mutes)}}, nil
}

func (a *API) mute(ctx context.Context, in *muteInput) (*output[wire.Mute], error) {
	var body wire.MuteRequest
	if in.Body != nil {
		body = *in.Body
	}
	if err := a.visible(ctx).SearchGroups(ctx, &dlq.GroupQuery{Fingerprint: in.Fingerprint}); err != nil {
		return nil, a.fail(ctx, err, 0)
	}
	mute, err := a.cfg.Manager.Mute(ctx, in.Fingerprint, time.Duration(body.Seconds*float64(time.Second)),
		by(ctx, body.Note.Note))
	if err != nil {
		return nil, a.fail(ctx, err, 0)
	}
	return &output[wire.Mute]{mute.Wire()}, nil
}

func (a *API) unmute(ctx context.Context, in *unmuteInput) (*output[wire.MuteList], error) {
	note := ""
	if in.Body != nil {
		note = in.Body.Note
	}
	if err := a.visible(ctx).SearchGroups(ctx, &dlq.GroupQuery{Fingerprint: in.Fingerprint}); err != nil {
		return nil, a.fail(ctx, err, 0)
	}
	if err := a.cfg.Manager.Unmute(ctx, in.Fingerprint, by(ctx, note)); err != nil {
		return nil, a.fail(ctx, err, 0)
	}
	return a.mutes(ctx, nil)
}

func (a *API) groups(ctx context.Context, in *groupsInput) (*output[wire.GroupList], error) {
	query := dlq.GroupQuery{
		Status: dlq.Status(in.Status), Handler: in.Handler, ErrorClass: in.ErrorClass, CauseText: in.Cause, Limit: in.Limit,
		Fingerprint: in.Fingerprint, TrendSince: in.TrendSince,
	}
	if err := a.visible(ctx).SearchGroups(ctx, &query); err != nil {
		return nil, a.fail(ctx, err, 0)
	}
	groups, more, err := a.cfg.Manager.ListGroups(ctx, query)
	if err != nil {
		return nil, a.fail(ctx, err, 0)
	}
	return &output[wire.GroupList]{wire.GroupList{Groups: a.visible(ctx).Groups(groups), Incomplete: more}}, nil
}

func (a *API) stats(ctx context.Context, in *statsInput) (*output[wire.Stats], error) {
	stats, err := a.cfg.Manager.Stats(ctx, dlq.StatsQuery{Since: in.Since, TopCauses: in.TopCauses})
	if err != nil {
		return nil, a.fail(ctx, err, 0)
	}
	return &output[wire.Stats]{a.visible(ctx).Stats(&stats)}, nil
}

func (a *API) auditLog(ctx context.Context, in *auditInput) (*auditOutput, error) {
	if err := a.visible(ctx).Values(in.Actor, in.Run); err != nil {
		return nil, a.fail(ctx, err, 0)
	}
	records, next, err := a.cfg.Manager.AuditLog(ctx, dlq.AuditFilter{
		EntryID: in.EntryID, Run: in.Run, Actor: in.Actor, Action: driver.Action(in.Action), From: in.From, To: in.To,
	}, in.page())
	if err != nil {
		return nil, a.fail(ctx, err, 0)
	}
	shown := a.visible(ctx).Audit(records)
	if in.Fold {
		shown = wire.FoldAudit(shown)
	}
	return &auditOutput{Link: in.next(next), Body: wire.AuditList{Records: shown, Next: next}}, nil
}
