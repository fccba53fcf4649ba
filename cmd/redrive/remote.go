package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/client"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/payload"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/internal/wait"
)

// remote is the operator of a server, over its API.
type remote struct{ api *client.Client }

func newRemote(p *profile) (*remote, error) {
	web, err := p.client()
	if err != nil {
		return nil, err
	}
	api, err := client.New(client.Config{Server: p.Server, Token: p.Token, User: p.User, Password: p.Password, HTTP: web})
	if err != nil {
		return nil, err
	}
	return &remote{api}, nil
}

// refusal is the server's error, as the manager's error that it stands for.
type refusal struct {
	cause  *client.Error
	is     error // nil if it stands for none
	prefix string
}

// Error is the server's error.
func (r *refusal) Error() string { return r.prefix + r.cause.Error() }

// Unwrap is the error of dlq that it stands for.
func (r *refusal) Unwrap() error { return r.is }

// refused turns an error of the client into the manager's error that it stands for.
func refused(err error) error {
	cause, ok := errors.AsType[*client.Error](err)
	if !ok {
		return err
	}
	r := &refusal{cause: cause}
	switch cause.Status {
	case http.StatusNotFound:
		if !cause.Ours() {
			return errors.New("the server answered 404: is it a redrive server, and its URL right?")
		}
		r.is = dlq.ErrNotFound
	case http.StatusConflict, http.StatusPreconditionFailed:
		r.is = dlq.ErrConflict
	case http.StatusUnauthorized:
		r.is, r.prefix = redrive.ErrForbidden, "the server does not know who you are (set REDRIVE_TOKEN, or --profile): "
	case http.StatusForbidden:
		r.is = redrive.ErrForbidden
	case http.StatusBadRequest, http.StatusUnprocessableEntity, http.StatusRequestEntityTooLarge,
		http.StatusUnsupportedMediaType:
		r.is = dlq.ErrInvalid
	}
	return r
}

// as is the author of a change for the API.
func as(by dlq.By) client.By { return client.By{Actor: by.Actor, Note: by.Note, Version: by.Version} }

// read converts a response of the API to the command's own type.
func read[W, T any](w *W, err error, set func(*T, *W) error) (*T, error) {
	if err != nil {
		return nil, refused(err)
	}
	into := new(T)
	return into, set(into, w)
}

// always is for conversions that cannot fail.
func always[T, W any](set func(*T, *W)) func(*T, *W) error {
	return func(into *T, w *W) error {
		set(into, w)
		return nil
	}
}

// list converts the list of a response, unless there was an error.
func list[W, T any](items []W, err error, set func(*T, *W) error) ([]T, error) {
	if err != nil {
		return nil, err
	}
	var all []T
	for i := range items {
		var into T
		if err := set(&into, &items[i]); err != nil {
			return nil, err
		}
		all = append(all, into)
	}
	return all, nil
}

// value is a response that needs no conversion; it is empty if there was an error.
func value[T any](w *T, err error) (T, error) {
	if err != nil {
		return *new(T), refused(err)
	}
	return *w, nil
}

func entry(w *wire.Entry, err error) (*dlq.Entry, error) {
	return read(w, err, always((*dlq.Entry).SetWire))
}

func ran(w *wire.Run, err error) (*redrive.Run, error) {
	if err != nil {
		return nil, refused(err)
	}
	return &redrive.Run{Run: *w}, nil
}

func (r *remote) List(ctx context.Context, f dlq.Filter, p dlq.Page) (driver.Listing, error) {
	page, err := value(r.api.ListEntries(ctx, f, p))
	entries, err := list(page.Entries, err, always((*dlq.Entry).SetWire))
	return driver.Listing{Entries: entries, Next: page.Next}, err
}

func (r *remote) Count(ctx context.Context, f dlq.Filter, limit int64) (int64, error) {
	n, err := r.api.CountEntries(ctx, f, limit)
	return n, refused(err)
}

func (r *remote) Get(ctx context.Context, id int64) (*dlq.Entry, error) {
	detail, err := r.api.GetEntry(ctx, id, 0)
	return read(detail, err, (*dlq.Entry).SetDetail)
}

func (r *remote) ListGroups(ctx context.Context, q dlq.GroupQuery) ([]driver.Group, bool, error) {
	page, err := value(r.api.ListGroups(ctx, q))
	return page.Groups, page.Incomplete, err
}

func (r *remote) Stats(ctx context.Context, q dlq.StatsQuery) (driver.Stats, error) {
	return value(r.api.GetStats(ctx, q))
}

// Recurrence is the server's report, up to now.
func (r *remote) Recurrence(ctx context.Context, q dlq.RecurrenceQuery) (*dlq.Recurrence, error) {
	report, err := r.api.GetReport(ctx, int(q.Period/time.Hour))
	return report, refused(err)
}

func (r *remote) Audit(ctx context.Context, id int64) ([]driver.AuditRecord, error) {
	records, err := value(r.api.GetEntryAudit(ctx, id))
	return records.Records, err
}

func (r *remote) AuditLog(ctx context.Context, f dlq.AuditFilter, p dlq.Page) ([]driver.AuditRecord, string, error) {
	page, err := value(r.api.ListAudit(ctx, wire.AuditQuery{AuditFilter: f}, p))
	return page.Records, page.Next, err
}

func (r *remote) Mute(ctx context.Context, fingerprint string, period time.Duration, by dlq.By) (*driver.Mute, error) {
	mute, err := r.api.MuteGroup(ctx, fingerprint, period, as(by))
	return mute, refused(err)
}

func (r *remote) Unmute(ctx context.Context, fingerprint string, by dlq.By) error {
	_, err := r.api.UnmuteGroup(ctx, fingerprint, as(by))
	return refused(err)
}

func (r *remote) Mutes(ctx context.Context) ([]driver.Mute, error) {
	mutes, err := value(r.api.ListMutes(ctx))
	return mutes.Mutes, err
}

func (r *remote) Redrive(ctx context.Context, id int64, by dlq.By) (*dlq.Entry, error) {
	return entry(r.api.RedriveEntry(ctx, id, as(by)))
}

func (r *remote) Resolve(ctx context.Context, id int64, by dlq.By) (*dlq.Entry, error) {
	return entry(r.api.ResolveEntry(ctx, id, as(by)))
}

func (r *remote) Discard(ctx context.Context, id int64, by dlq.By) (*dlq.Entry, error) {
	return entry(r.api.DiscardEntry(ctx, id, as(by)))
}

func (r *remote) Restore(ctx context.Context, id int64, by dlq.By) (*dlq.Entry, error) {
	return entry(r.api.RestoreEntry(ctx, id, as(by)))
}

func (r *remote) Release(ctx context.Context, id int64, by dlq.By) (*dlq.Entry, error) {
	return entry(r.api.ReleaseEntry(ctx, id, as(by)))
}

func (r *remote) Park(ctx context.Context, id int64, by dlq.By) (*dlq.Entry, error) {
	return entry(r.api.ParkEntry(ctx, id, as(by)))
}

func (r *remote) ChangeAll(ctx context.Context, action driver.Action, f dlq.Filter, by dlq.By) (dlq.Bulk, error) {
	done, err := value(r.api.ChangeEntries(ctx, string(action), f, as(by)))
	bulk := dlq.Bulk{Changed: done.Changed, Refused: done.Refused}
	for i := range done.Conflicts {
		bulk.Conflicts = append(bulk.Conflicts, &done.Conflicts[i])
	}
	return bulk, err
}

func (r *remote) PreviewEdit(ctx context.Context, id int64, edit dlq.Edit) (payload.Diff, error) {
	return value(r.api.PreviewEdit(ctx, id, edit.Wire()))
}

func (r *remote) Edit(ctx context.Context, id int64, edit dlq.Edit, by dlq.By) (*dlq.Entry, payload.Diff, error) {
	edited, err := value(r.api.EditEntry(ctx, id, edit.Wire(), false, as(by)))
	e, err := entry(&edited.Entry, err)
	return e, edited.Diff, err
}

// Export copies the server's export. A lost connection is an error.
func (r *remote) Export(ctx context.Context, w io.Writer, f dlq.Filter) (int64, error) {
	from, err := r.api.ExportEntries(ctx, f)
	if err != nil {
		return 0, refused(err)
	}
	defer func() { _ = from.Close() }() // it was read
	var n int64
	_, err = io.Copy(countLines(w, func(lines int64) { n += lines }), from)
	if err != nil {
		err = fmt.Errorf("the export broke off: %w", err)
	}
	return n, err
}

func (r *remote) Import(ctx context.Context, from io.Reader, by dlq.By) (dlq.Imported, error) {
	return value(r.api.ImportEntries(ctx, from, as(by)))
}

func (r *remote) Purge(ctx context.Context, p dlq.Purge) (int, error) {
	scope := wire.PurgeScope{ClosedBefore: p.ClosedBefore, Statuses: p.Statuses}
	n, err := r.api.PurgeEntries(ctx, scope, p.SkipArchive, client.By{Actor: p.Actor, Note: p.Note})
	return n, refused(err)
}

func (r *remote) PreviewRun(ctx context.Context, spec redrive.Spec, sample int) (*redrive.Preview, error) {
	preview, err := r.api.PreviewRun(ctx, spec, sample)
	return read(preview, err, (*redrive.Preview).SetWire)
}

func (r *remote) StartRun(ctx context.Context, spec redrive.Spec, by dlq.By) (*redrive.Run, error) {
	return ran(r.api.StartRun(ctx, spec, as(by)))
}

func (r *remote) Run(ctx context.Context, id string) (*redrive.Run, error) {
	return ran(r.api.GetRun(ctx, id))
}

func (r *remote) Runs(ctx context.Context, f redrive.RunFilter, p dlq.Page) ([]redrive.Run, string, error) {
	page, err := value(r.api.ListRuns(ctx, f, p))
	var runs []redrive.Run
	for i := range page.Runs {
		runs = append(runs, redrive.Run{Run: page.Runs[i]})
	}
	return runs, page.Next, err
}

func (r *remote) RunItems(ctx context.Context, id string, f redrive.ItemFilter) ([]redrive.Item, error) {
	page, err := value(r.api.ListRunItems(ctx, id, f))
	var items []redrive.Item
	for i := range page.Items {
		items = append(items, redrive.Item{RunItem: page.Items[i]})
	}
	return items, err
}

func (r *remote) PauseRun(ctx context.Context, id string, by dlq.By) (*redrive.Run, error) {
	return ran(r.api.PauseRun(ctx, id, as(by)))
}

func (r *remote) ResumeRun(ctx context.Context, id string, by dlq.By) (*redrive.Run, error) {
	return ran(r.api.ResumeRun(ctx, id, as(by)))
}

func (r *remote) CancelRun(ctx context.Context, id string, by dlq.By) (*redrive.Run, error) {
	return ran(r.api.CancelRun(ctx, id, as(by)))
}

func (r *remote) AdjustRun(ctx context.Context, id string, change redrive.Adjustment, by dlq.By) (*redrive.Run, error) {
	return ran(r.api.AdjustRun(ctx, id, wire.RunAdjustment{
		Rate: change.Rate, MaxOut: change.MaxOut, Stop: change.Stop,
	}, as(by)))
}

func (r *remote) ApproveRun(ctx context.Context, id string, by dlq.By) (*redrive.Run, error) {
	return ran(r.api.ApproveRun(ctx, id, as(by)))
}

func (r *remote) RejectRun(ctx context.Context, id string, by dlq.By) (*redrive.Run, error) {
	return ran(r.api.RejectRun(ctx, id, as(by)))
}

// WatchRun polls; a stream would need a connection that no proxy cuts.
func (r *remote) WatchRun(ctx context.Context, id string, every time.Duration) iter.Seq2[*redrive.Run, error] {
	return func(yield func(*redrive.Run, error) bool) {
		for {
			run, err := r.Run(ctx, id)
			if !yield(run, err) || err != nil || run.State.Ended() && run.Counts.Open() == 0 {
				return
			}
			if wait.For(ctx, max(every, askEvery)) != nil {
				yield(nil, ctx.Err())
				return
			}
		}
	}
}

// askEvery is the minimum interval for polling a server for a run.
const askEvery = 500 * time.Millisecond

// Drive waits while the server drives the run, until it ends or needs a person.
func (r *remote) Drive(ctx context.Context, id string) (*redrive.Run, error) {
	var last *redrive.Run
	for run, err := range r.WatchRun(ctx, id, askEvery) {
		if err != nil {
			return last, err
		}
		if last = run; atRest(run) {
			break
		}
	}
	return last, nil
}
