package rest

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/wire"
)

type none struct{}

func (a *API) purgeRoutes() {
	handle(a, route{
		ID: "preview-purge", Method: http.MethodPost, Path: "/purge/preview", Tag: "maintenance", Role: access.Viewer,
		Summary: "Count what a purge would remove, and remove nothing",
	}, a.previewPurge)
	handle(a, route{
		ID: "purge-entries", Method: http.MethodPost, Path: "/purge", Tag: "maintenance", Role: access.Admin, Changes: true,
		Slow: true, Summary: "Remove closed dead letters that are old, after a copy to the archive",
	}, a.purge)
	handle(a, changeRoute(access.Admin, "maintenance", "restore-archived", "/archive/restore",
		"Bring purged dead letters back from the archive"), a.unarchive)
	handle(a, readRoute("maintenance", "get-retention", "/retention",
		"Show how long closed dead letters are kept, and how many are due"), a.retention)
}

// purgeable is what a purge of the scope picks.
func purgeable(s *wire.PurgeScope) (dlq.Filter, error) {
	if s.ClosedBefore.IsZero() {
		return dlq.Filter{}, huma.NewError(http.StatusUnprocessableEntity, "body.closed_before: say how old")
	}
	f := dlq.Filter{Statuses: s.Statuses, ResolvedBefore: s.ClosedBefore}
	if len(f.Statuses) == 0 {
		f.Statuses = []dlq.Status{dlq.Resolved}
	}
	return f, nil
}

func (a *API) previewPurge(ctx context.Context, in *struct{ Body wire.PurgeScope }) (*wire.Count, error) {
	filter, err := purgeable(&in.Body)
	if err != nil {
		return nil, err
	}
	n, err := a.cfg.Manager.Count(ctx, filter, 0)
	return &wire.Count{Count: n}, err
}

func (a *API) purge(ctx context.Context, in *struct{ Body wire.PurgeRequest }) (*wire.Purged, error) {
	if _, err := purgeable(&in.Body.PurgeScope); err != nil {
		return nil, err
	}
	who := by(ctx, in.Body.Note.Note)
	n, err := a.cfg.Manager.Purge(ctx, dlq.Purge{
		Statuses: in.Body.Statuses, ClosedBefore: in.Body.ClosedBefore, SkipArchive: in.Body.SkipArchive,
		Actor: who.Actor, Note: who.Note,
	})
	return &wire.Purged{Purged: n}, err
}

func (a *API) unarchive(ctx context.Context, in *struct{ Body wire.ArchiveRequest }) (*wire.ArchiveResult, error) {
	ids, err := a.cfg.Manager.Unarchive(ctx, by(ctx, in.Body.Note.Note), in.Body.IDs...)
	return &wire.ArchiveResult{Restored: append([]int64{}, ids...)}, err
}

func (a *API) retention(ctx context.Context, _ *none) (*wire.Retention, error) {
	r := a.cfg.Retention
	shown := wire.Retention{
		ResolvedSeconds: int64(r.Resolved.Seconds()), DiscardedSeconds: int64(r.Discarded.Seconds()),
		SkipArchive: r.SkipArchive,
	}
	for _, due := range []struct {
		status dlq.Status
		keep   time.Duration
		count  *int64
	}{{dlq.Resolved, r.Resolved, &shown.ResolvedDue}, {dlq.Discarded, r.Discarded, &shown.DiscardedDue}} {
		if due.keep == 0 {
			continue
		}
		before := a.cfg.Manager.Now(ctx).Add(-due.keep)
		n, err := a.cfg.Manager.Count(ctx, dlq.Filter{Statuses: []dlq.Status{due.status}, ResolvedBefore: before}, 0)
		if err != nil {
			return nil, err
		}
		*due.count = n
	}
	return new(shown), nil
}
