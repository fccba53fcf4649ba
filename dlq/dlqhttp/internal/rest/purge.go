package rest

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
)

// PurgeScope says what is purged.
type PurgeScope struct {
	Statuses     []dlq.Status `json:"statuses,omitempty" nullable:"false" enum:"RESOLVED,DISCARDED" doc:"Defaults to RESOLVED."`
	ClosedBefore time.Time    `json:"closed_before" doc:"Entries that were closed before it."`
}

// PurgeRequest asks to remove old closed entries.
type PurgeRequest struct {
	PurgeScope
	SkipArchive bool `json:"skip_archive,omitempty" doc:"Remove without a copy to the archive."`
	Note
}

// Purged is how many entries were removed.
type Purged struct {
	Purged int `json:"purged"`
}

// ArchiveRequest names entries to bring back from the archive.
type ArchiveRequest struct {
	IDs []int64 `json:"ids" nullable:"false" minItems:"1" maxItems:"1000"`
	Note
}

// ArchiveResult names the entries that are back.
type ArchiveResult struct {
	Restored []int64 `json:"restored" nullable:"false" doc:"Left out are those that are not in the archive, and those that died again since."`
}

// Retention is how long closed entries are kept, and what a purge would remove now.
type Retention struct {
	ResolvedSeconds  int64 `json:"resolved_seconds" doc:"How long RESOLVED entries are kept; 0 is for ever."`
	DiscardedSeconds int64 `json:"discarded_seconds" doc:"How long DISCARDED entries are kept; 0 is for ever."`
	SkipArchive      bool  `json:"skip_archive" doc:"Remove without a copy to the archive."`
	ResolvedDue      int64 `json:"resolved_due" doc:"RESOLVED entries that are older."`
	DiscardedDue     int64 `json:"discarded_due" doc:"DISCARDED entries that are older."`
}

type none struct{}

func (a *API) purgeRoutes() {
	handle(a, route{
		id: "preview-purge", method: http.MethodPost, path: "/purge/preview", tag: "maintenance", role: access.Viewer,
		summary: "Count what a purge would remove, and remove nothing",
	}, a.previewPurge)
	handle(a, route{
		id: "purge-entries", method: http.MethodPost, path: "/purge", tag: "maintenance", role: access.Admin, changes: true, slow: true,
		summary: "Remove closed dead letters that are old, after a copy to the archive",
	}, a.purge)
	handle(a, route{
		id: "restore-archived", method: http.MethodPost, path: "/archive/restore", tag: "maintenance", role: access.Admin, changes: true,
		summary: "Bring purged dead letters back from the archive",
	}, a.unarchive)
	handle(a, route{
		id: "get-retention", method: http.MethodGet, path: "/retention", tag: "maintenance", role: access.Viewer,
		summary: "Show how long closed dead letters are kept, and how many are due",
	}, a.retention)
}

func (s *PurgeScope) filter() (dlq.Filter, error) {
	if s.ClosedBefore.IsZero() {
		return dlq.Filter{}, huma.NewError(http.StatusUnprocessableEntity, "body.closed_before: say how old")
	}
	f := dlq.Filter{Statuses: s.Statuses, ResolvedBefore: s.ClosedBefore}
	if len(f.Statuses) == 0 {
		f.Statuses = []dlq.Status{dlq.Resolved}
	}
	return f, nil
}

func (a *API) previewPurge(ctx context.Context, in *struct{ Body PurgeScope }) (*output[Count], error) {
	filter, err := in.Body.filter()
	if err != nil {
		return nil, err
	}
	n, err := a.cfg.Manager.Count(ctx, filter, 0)
	if err != nil {
		return nil, a.fail(ctx, err, 0)
	}
	return &output[Count]{Count{n}}, nil
}

func (a *API) purge(ctx context.Context, in *struct{ Body PurgeRequest }) (*output[Purged], error) {
	if _, err := in.Body.filter(); err != nil {
		return nil, err
	}
	who := by(ctx, in.Body.Note.Note)
	n, err := a.cfg.Manager.Purge(ctx, dlq.Purge{
		Statuses: in.Body.Statuses, ClosedBefore: in.Body.ClosedBefore, SkipArchive: in.Body.SkipArchive, Actor: who.Actor, Note: who.Note,
	})
	if err != nil {
		return nil, a.fail(ctx, err, 0)
	}
	return &output[Purged]{Purged{n}}, nil
}

func (a *API) unarchive(ctx context.Context, in *struct{ Body ArchiveRequest }) (*output[ArchiveResult], error) {
	ids, err := a.cfg.Manager.Unarchive(ctx, by(ctx, in.Body.Note.Note), in.Body.IDs...)
	if err != nil {
		return nil, a.fail(ctx, err, 0)
	}
	if ids == nil {
		ids = []int64{}
	}
	return &output[ArchiveResult]{ArchiveResult{ids}}, nil
}

func (a *API) retention(ctx context.Context, _ *none) (*output[Retention], error) {
	r := a.cfg.Retention
	shown := Retention{
		ResolvedSeconds: int64(r.Resolved.Seconds()), DiscardedSeconds: int64(r.Discarded.Seconds()), SkipArchive: r.SkipArchive,
	}
	for _, due := range []struct {
		status dlq.Status
		keep   time.Duration
		count  *int64
	}{{dlq.Resolved, r.Resolved, &shown.ResolvedDue}, {dlq.Discarded, r.Discarded, &shown.DiscardedDue}} {
		if due.keep == 0 {
			continue
		}
		n, err := a.cfg.Manager.Count(ctx, dlq.Filter{Statuses: []dlq.Status{due.status}, ResolvedBefore: time.Now().Add(-due.keep)}, 0)
		if err != nil {
			return nil, a.fail(ctx, err, 0)
		}
		*due.count = n
	}
	return &output[Retention]{shown}, nil
}
