package rest

import (
	"context"
	"net/http"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
)

// Counts are numbers of entries by status.
type Counts struct {
	Pending   int64 `json:"pending"`
	Retrying  int64 `json:"retrying"`
	Parked    int64 `json:"parked"`
	Resolved  int64 `json:"resolved"`
	Discarded int64 `json:"discarded"`
}

// Group is a cause: all entries with the same fingerprint.
type Group struct {
	Fingerprint string    `json:"fingerprint"`
	Cause       string    `json:"cause" doc:"The error without its numbers, ids and quoted values."`
	Sample      string    `json:"sample" doc:"One error as it was."`
	ErrorClass  string    `json:"error_class,omitempty"`
	Handler     string    `json:"handler,omitempty"`
	Counts      Counts    `json:"counts"`
	FirstSeen   time.Time `json:"first_seen"`
	LastSeen    time.Time `json:"last_seen"`
	LastEntry   int64     `json:"last_entry"`

	Trend []HourCount `json:"trend,omitempty" nullable:"false" doc:"Its hours since trend_since, where that was given."`
}

// GroupList are causes, those with the most entries first.
type GroupList struct {
	Groups []Group `json:"groups" nullable:"false"`
}

// NamedCounts are the counts of one topic or event type.
type NamedCounts struct {
	Name   string `json:"name"`
	Counts Counts `json:"counts"`
}

// HourCount is how many entries were created in an hour, and how many closed.
type HourCount struct {
	Hour   time.Time `json:"hour" doc:"Its beginning, in UTC."`
	Count  int64     `json:"count" doc:"Created."`
	Closed int64     `json:"closed" doc:"Resolved or discarded, whenever they came."`
}

// Stats are the numbers of a dashboard.
type Stats struct {
	Counts                Counts        `json:"counts"`
	ByType                []NamedCounts `json:"by_type" nullable:"false"`
	ByTopic               []NamedCounts `json:"by_topic" nullable:"false"`
	TopCauses             []Group       `json:"top_causes" nullable:"false" doc:"The groups with the most PENDING entries."`
	Hourly                []HourCount   `json:"hourly" nullable:"false" doc:"Created in each hour, oldest first; hours without any are left out."`
	OldestPending         time.Time     `json:"oldest_pending,omitzero" doc:"When the longest waiting PENDING entry was created."`
	MeanResolutionSeconds float64       `json:"mean_resolution_seconds" doc:"Mean time from the first death to RESOLVED; 0 when nothing was resolved."`
}

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
	Page
	Self
}

type auditOutput struct {
	Link
	Body AuditList
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
}

func (a *API) groups(ctx context.Context, in *groupsInput) (*output[GroupList], error) {
	groups, err := a.cfg.Manager.Groups(ctx, dlq.GroupQuery{
		Status: dlq.Status(in.Status), Handler: in.Handler, ErrorClass: in.ErrorClass, CauseText: in.Cause, Limit: in.Limit,
		Fingerprint: in.Fingerprint, TrendSince: in.TrendSince,
	})
	if err != nil {
		return nil, a.fail(ctx, err, 0)
	}
	return &output[GroupList]{GroupList{a.groupsOf(ctx, groups)}}, nil
}

func (a *API) groupsOf(ctx context.Context, groups []dlq.Group) []Group {
	rules := a.visible(ctx)
	shown := make([]Group, 0, len(groups))
	for i := range groups {
		g := rules.Group(groups[i])
		shown = append(shown, Group{
			Fingerprint: g.Fingerprint, Cause: g.Cause, Sample: g.Sample, ErrorClass: g.ErrorClass, Handler: g.Handler, Counts: Counts(g.Counts),
			FirstSeen: g.FirstSeen, LastSeen: g.LastSeen, LastEntry: g.LastEntry, Trend: hoursOf(g.Trend),
		})
	}
	return shown
}

func (a *API) stats(ctx context.Context, in *statsInput) (*output[Stats], error) {
	stats, err := a.cfg.Manager.Stats(ctx, dlq.StatsQuery{Since: in.Since, TopCauses: in.TopCauses})
	if err != nil {
		return nil, a.fail(ctx, err, 0)
	}
	shown := Stats{
		Counts: Counts(stats.Counts), ByType: namedOf(stats.ByType), ByTopic: namedOf(stats.ByTopic), TopCauses: a.groupsOf(ctx, stats.TopCauses),
		Hourly: append([]HourCount{}, hoursOf(stats.Hourly)...), OldestPending: stats.OldestPending, MeanResolutionSeconds: stats.MeanResolution.Seconds(),
	}
	return &output[Stats]{shown}, nil
}

func hoursOf(hours []dlq.HourCount) []HourCount {
	var shown []HourCount
	for _, h := range hours {
		shown = append(shown, HourCount(h))
	}
	return shown
}

func namedOf(named []dlq.NamedCounts) []NamedCounts {
	shown := make([]NamedCounts, 0, len(named))
	for _, n := range named {
		shown = append(shown, NamedCounts{n.Name, Counts(n.Counts)})
	}
	return shown
}

func (a *API) auditLog(ctx context.Context, in *auditInput) (*auditOutput, error) {
	records, next, err := a.cfg.Manager.AuditLog(ctx, dlq.AuditFilter{
		EntryID: in.EntryID, Run: in.Run, Actor: in.Actor, Action: dlq.Action(in.Action), From: in.From, To: in.To,
	}, in.page())
	if err != nil {
		return nil, a.fail(ctx, err, 0)
	}
	return &auditOutput{Link: in.next(next), Body: AuditList{Records: auditOf(a.records(ctx, records)), Next: next}}, nil
}
