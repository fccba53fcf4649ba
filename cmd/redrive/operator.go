package main

import (
	"context"
	"io"
	"iter"
	"time"

	"github.com/redrive-go/redrive/dlq"
)

// operator is what the commands work with: a dlq.Manager on the store itself, or a server's API.
type operator interface {
	List(ctx context.Context, f dlq.Filter, p dlq.Page) (dlq.Listing, error)
	Count(ctx context.Context, f dlq.Filter, limit int64) (int64, error)
	Get(ctx context.Context, id int64) (*dlq.Entry, error)
	Groups(ctx context.Context, q dlq.GroupQuery) ([]dlq.Group, error)
	Stats(ctx context.Context, q dlq.StatsQuery) (dlq.Stats, error)
	Recurrence(ctx context.Context, q dlq.RecurrenceQuery) (*dlq.Recurrence, error)
	Audit(ctx context.Context, id int64) ([]dlq.AuditRecord, error)

	Redrive(ctx context.Context, id int64, by dlq.By) (*dlq.Entry, error)
	Resolve(ctx context.Context, id int64, by dlq.By) (*dlq.Entry, error)
	Discard(ctx context.Context, id int64, by dlq.By) (*dlq.Entry, error)
	Restore(ctx context.Context, id int64, by dlq.By) (*dlq.Entry, error)
	Park(ctx context.Context, id int64, by dlq.By) (*dlq.Entry, error)
	ResolveAll(ctx context.Context, f dlq.Filter, by dlq.By) (dlq.Bulk, error)
	DiscardAll(ctx context.Context, f dlq.Filter, by dlq.By) (dlq.Bulk, error)
	RestoreAll(ctx context.Context, f dlq.Filter, by dlq.By) (dlq.Bulk, error)
	ParkAll(ctx context.Context, f dlq.Filter, by dlq.By) (dlq.Bulk, error)
	PreviewEdit(ctx context.Context, id int64, edit dlq.Edit) (dlq.Diff, error)
	Edit(ctx context.Context, id int64, edit dlq.Edit, by dlq.By) (*dlq.Entry, dlq.Diff, error)

	Export(ctx context.Context, w io.Writer, f dlq.Filter) (int64, error)
	Import(ctx context.Context, r io.Reader, by dlq.By) (dlq.Imported, error)
	Purge(ctx context.Context, p dlq.Purge) (int, error)

	PreviewRun(ctx context.Context, spec dlq.RunSpec, sample int) (*dlq.RunPreview, error)
	StartRun(ctx context.Context, spec dlq.RunSpec, by dlq.By) (*dlq.Run, error)
	Run(ctx context.Context, id string) (*dlq.Run, error)
	Runs(ctx context.Context, f dlq.RunFilter, p dlq.Page) ([]dlq.Run, string, error)
	RunItems(ctx context.Context, id string, f dlq.ItemFilter) ([]dlq.RunItem, error)
	PauseRun(ctx context.Context, id string, by dlq.By) (*dlq.Run, error)
	ResumeRun(ctx context.Context, id string, by dlq.By) (*dlq.Run, error)
	CancelRun(ctx context.Context, id string, by dlq.By) (*dlq.Run, error)
	ApproveRun(ctx context.Context, id string, by dlq.By) (*dlq.Run, error)
	RejectRun(ctx context.Context, id string, by dlq.By) (*dlq.Run, error)
	WatchRun(ctx context.Context, id string, every time.Duration) iter.Seq2[*dlq.Run, error]
	// Drive carries a run on until it ends or needs a person; on a server it waits while the server does.
	Drive(ctx context.Context, id string) (*dlq.Run, error)
}

var (
	_ operator = (*dlq.Manager)(nil)
	_ operator = (*remote)(nil)
)
