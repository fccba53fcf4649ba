package main

import (
	"context"
	"io"
	"iter"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/payload"
	"github.com/redrive-go/redrive/dlq/redrive"
)

// operator is what the commands work with: a store, or a server's API.
type operator interface {
	List(ctx context.Context, f dlq.Filter, p dlq.Page) (driver.Listing, error)
	Count(ctx context.Context, f dlq.Filter, limit int64) (int64, error)
	Get(ctx context.Context, id int64) (*dlq.Entry, error)
	ListGroups(ctx context.Context, q dlq.GroupQuery) (groups []driver.Group, more bool, err error)
	Stats(ctx context.Context, q dlq.StatsQuery) (driver.Stats, error)
	Recurrence(ctx context.Context, q dlq.RecurrenceQuery) (*dlq.Recurrence, error)
	Audit(ctx context.Context, id int64) ([]driver.AuditRecord, error)
	AuditLog(ctx context.Context, f dlq.AuditFilter, p dlq.Page) ([]driver.AuditRecord, string, error)

	Mute(ctx context.Context, fingerprint string, period time.Duration, by dlq.By) (*driver.Mute, error)
	Unmute(ctx context.Context, fingerprint string, by dlq.By) error
	Mutes(ctx context.Context) ([]driver.Mute, error)

	Redrive(ctx context.Context, id int64, by dlq.By) (*dlq.Entry, error)
	Resolve(ctx context.Context, id int64, by dlq.By) (*dlq.Entry, error)
	Discard(ctx context.Context, id int64, by dlq.By) (*dlq.Entry, error)
	Restore(ctx context.Context, id int64, by dlq.By) (*dlq.Entry, error)
	Park(ctx context.Context, id int64, by dlq.By) (*dlq.Entry, error)
	Release(ctx context.Context, id int64, by dlq.By) (*dlq.Entry, error)
	ChangeAll(ctx context.Context, action driver.Action, f dlq.Filter, by dlq.By) (dlq.Bulk, error)
	PreviewEdit(ctx context.Context, id int64, edit dlq.Edit) (payload.Diff, error)
	Edit(ctx context.Context, id int64, edit dlq.Edit, by dlq.By) (*dlq.Entry, payload.Diff, error)

	Export(ctx context.Context, w io.Writer, f dlq.Filter) (int64, error)
	Import(ctx context.Context, r io.Reader, by dlq.By) (dlq.Imported, error)
	Purge(ctx context.Context, p dlq.Purge) (int, error)

	PreviewRun(ctx context.Context, spec redrive.Spec, sample int) (*redrive.Preview, error)
	StartRun(ctx context.Context, spec redrive.Spec, by dlq.By) (*redrive.Run, error)
	Run(ctx context.Context, id string) (*redrive.Run, error)
	Runs(ctx context.Context, f redrive.RunFilter, p dlq.Page) ([]redrive.Run, string, error)
	RunItems(ctx context.Context, id string, f redrive.ItemFilter) ([]redrive.Item, error)
	PauseRun(ctx context.Context, id string, by dlq.By) (*redrive.Run, error)
	ResumeRun(ctx context.Context, id string, by dlq.By) (*redrive.Run, error)
	CancelRun(ctx context.Context, id string, by dlq.By) (*redrive.Run, error)
	AdjustRun(ctx context.Context, id string, change redrive.Adjustment, by dlq.By) (*redrive.Run, error)
	ApproveRun(ctx context.Context, id string, by dlq.By) (*redrive.Run, error)
	RejectRun(ctx context.Context, id string, by dlq.By) (*redrive.Run, error)
	WatchRun(ctx context.Context, id string, every time.Duration) iter.Seq2[*redrive.Run, error]
	// Drive drives a run until it ends or needs a person; with a server it waits while the server does.
	Drive(ctx context.Context, id string) (*redrive.Run, error)
}

var (
	_ operator = (*local)(nil)
	_ operator = (*remote)(nil)
)
