//nolint:bodyclose // read, and Export, close the body of every answer; the linter does not look into them.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqclient"
)

// remote is the operator of a server, over its API.
type remote struct{ api *dlqclient.Client }

func newRemote(p *profile) (*remote, error) {
	web, err := p.client()
	if err != nil {
		return nil, err
	}
	opts := []dlqclient.ClientOption{dlqclient.WithHTTPClient(web), dlqclient.WithToken(p.Token)}
	if p.Token == "" && p.User != "" {
		opts = append(opts, dlqclient.WithPassword(p.User, p.Password))
	}
	api, err := dlqclient.NewClient(strings.TrimSuffix(p.Server, "/")+"/api/v1", opts...)
	if err != nil {
		return nil, err
	}
	return &remote{api}, nil
}

// refusal is an answer that is no success: it is what the manager's error was, in the server's words.
type refusal struct {
	cause  *dlqclient.Error
	is     error
	prefix string
}

// Error is what the server says.
func (r *refusal) Error() string { return r.prefix + r.cause.Error() }

// Unwrap is the error of dlq that it stands for.
func (r *refusal) Unwrap() error { return r.is }

// maxAnswer bounds what is read of an answer.
const maxAnswer = 1 << 30

// read takes an answer in.
func read[T any](response *http.Response, err error) (*T, error) {
	if err != nil {
		return nil, unreachable(err)
	}
	defer func() { _ = response.Body.Close() }() // it was read
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return nil, unreachable(err)
	}
	if err := refused(response, body); err != nil {
		return nil, err
	}
	into := new(T)
	if err := json.Unmarshal(body, into); err != nil {
		return nil, fmt.Errorf("the server answered what its API does not: is it a redrive server, and its URL right? %w", err)
	}
	return into, nil
}

func refused(response *http.Response, body []byte) error {
	cause, ok := errors.AsType[*dlqclient.Error](dlqclient.ErrorOf(response, body))
	if !ok {
		return nil
	}
	r := &refusal{cause: cause}
	switch cause.Status {
	case http.StatusNotFound:
		if cause.Problem.Status == nil {
			return errors.New("the server answered 404: is it a redrive server, and its URL right?")
		}
		r.is = dlq.ErrNotFound
	case http.StatusConflict, http.StatusPreconditionFailed:
		r.is = dlq.ErrConflict
	case http.StatusUnauthorized:
		r.is, r.prefix = dlq.ErrForbidden, "the server does not know who you are (set REDRIVE_TOKEN, or --profile): "
	case http.StatusForbidden:
		r.is = dlq.ErrForbidden
	case http.StatusBadRequest, http.StatusUnprocessableEntity, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType:
		r.is = dlq.ErrInvalid
	default:
		r.is = errServer
	}
	return r
}

var errServer = errors.New("the server could not do it")

// unreachable takes the URL out of an error, which says the same at twice the length.
func unreachable(err error) error {
	if wrapped, ok := errors.AsType[*url.Error](err); ok && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("the server does not answer: %w", wrapped.Err)
	}
	return err
}

// as says who does it, to a server that asks nobody.
func as(by dlq.By) dlqclient.RequestEditorFn {
	return func(_ context.Context, r *http.Request) error {
		r.Header.Set("X-Redrive-Actor", by.Actor)
		if by.Version != 0 {
			r.Header.Set("If-Match", fmt.Sprintf("%q", dlq.FormatID(by.Version)))
		}
		return nil
	}
}

func (r *remote) List(ctx context.Context, f dlq.Filter, p dlq.Page) (dlq.Listing, error) {
	params, err := paramsOf[dlqclient.ListEntriesParams](&f, pageOf(p))
	if err != nil {
		return dlq.Listing{}, err
	}
	list, err := read[dlqclient.EntryList](r.api.ListEntries(ctx, params))
	if err != nil {
		return dlq.Listing{}, err
	}
	listing := dlq.Listing{Next: value(list.Next)}
	for i := range list.Entries {
		e, err := entryFrom(&list.Entries[i])
		if err != nil {
			return listing, err
		}
		listing.Entries = append(listing.Entries, *e)
	}
	return listing, nil
}

func (r *remote) Count(ctx context.Context, f dlq.Filter, limit int64) (int64, error) {
	params, err := paramsOf[dlqclient.CountEntriesParams](&f, map[string]any{"up_to": limit})
	if err != nil {
		return 0, err
	}
	count, err := read[dlqclient.Count](r.api.CountEntries(ctx, params))
	if err != nil {
		return 0, err
	}
	return count.Count, nil
}

func (r *remote) Get(ctx context.Context, id int64) (*dlq.Entry, error) {
	detail, err := read[dlqclient.EntryDetail](r.api.GetEntry(ctx, id, nil))
	if err != nil {
		return nil, err
	}
	return detailFrom(detail)
}

func (r *remote) Groups(ctx context.Context, q dlq.GroupQuery) ([]dlq.Group, error) {
	params := &dlqclient.ListGroupsParams{
		Handler: given(q.Handler), ErrorClass: given(q.ErrorClass), Cause: given(q.CauseText), Limit: given(int64(q.Limit)),
		Status: given(dlqclient.ListGroupsParamsStatus(q.Status)), Fingerprint: given(q.Fingerprint), TrendSince: given(q.TrendSince),
	}
	list, err := read[dlqclient.GroupList](r.api.ListGroups(ctx, params))
	if err != nil {
		return nil, err
	}
	return groupsFrom(list.Groups), nil
}

func (r *remote) Stats(ctx context.Context, q dlq.StatsQuery) (dlq.Stats, error) {
	params := &dlqclient.GetStatsParams{Since: given(q.Since), TopCauses: given(int64(q.TopCauses))}
	stats, err := read[dlqclient.Stats](r.api.GetStats(ctx, params))
	if err != nil {
		return dlq.Stats{}, err
	}
	return statsFrom(stats), nil
}

// Recurrence is the server's report, which ends when it answers.
func (r *remote) Recurrence(ctx context.Context, q dlq.RecurrenceQuery) (*dlq.Recurrence, error) {
	return read[dlq.Recurrence](r.api.GetReport(ctx, &dlqclient.GetReportParams{Hours: given(int64(q.Period / time.Hour))}))
}

func (r *remote) Audit(ctx context.Context, id int64) ([]dlq.AuditRecord, error) {
	list, err := read[dlqclient.AuditList](r.api.GetEntryAudit(ctx, id))
	if err != nil {
		return nil, err
	}
	return auditFrom(list.Records), nil
}

func (r *remote) Redrive(ctx context.Context, id int64, by dlq.By) (*dlq.Entry, error) {
	return changed(r.api.RedriveEntry(ctx, id, nil, dlqclient.Note{Note: given(by.Note)}, as(by)))
}

func (r *remote) Resolve(ctx context.Context, id int64, by dlq.By) (*dlq.Entry, error) {
	return changed(r.api.ResolveEntry(ctx, id, nil, dlqclient.Note{Note: given(by.Note)}, as(by)))
}

func (r *remote) Discard(ctx context.Context, id int64, by dlq.By) (*dlq.Entry, error) {
	return changed(r.api.DiscardEntry(ctx, id, nil, dlqclient.Note{Note: given(by.Note)}, as(by)))
}

func (r *remote) Restore(ctx context.Context, id int64, by dlq.By) (*dlq.Entry, error) {
	return changed(r.api.RestoreEntry(ctx, id, nil, dlqclient.Note{Note: given(by.Note)}, as(by)))
}

func (r *remote) Park(ctx context.Context, id int64, by dlq.By) (*dlq.Entry, error) {
	return changed(r.api.ParkEntry(ctx, id, nil, dlqclient.Note{Note: given(by.Note)}, as(by)))
}

func changed(response *http.Response, err error) (*dlq.Entry, error) {
	entry, err := read[dlqclient.Entry](response, err)
	if err != nil {
		return nil, err
	}
	return entryFrom(entry)
}

func (r *remote) ResolveAll(ctx context.Context, f dlq.Filter, by dlq.By) (dlq.Bulk, error) {
	return r.bulk(ctx, dlqclient.Resolve, f, by)
}

func (r *remote) DiscardAll(ctx context.Context, f dlq.Filter, by dlq.By) (dlq.Bulk, error) {
	return r.bulk(ctx, dlqclient.Discard, f, by)
}

func (r *remote) RestoreAll(ctx context.Context, f dlq.Filter, by dlq.By) (dlq.Bulk, error) {
	return r.bulk(ctx, dlqclient.Restore, f, by)
}

func (r *remote) ParkAll(ctx context.Context, f dlq.Filter, by dlq.By) (dlq.Bulk, error) {
	return r.bulk(ctx, dlqclient.Park, f, by)
}

func (r *remote) bulk(ctx context.Context, action dlqclient.BulkRequestAction, f dlq.Filter, by dlq.By) (dlq.Bulk, error) {
	done, err := read[dlqclient.BulkResult](r.api.ChangeEntries(ctx, nil, dlqclient.BulkRequest{
		Action: action, Filter: filterTo(&f), Note: given(by.Note),
	}, as(by)))
	if err != nil {
		return dlq.Bulk{}, err
	}
	bulk := dlq.Bulk{Changed: done.Changed, Refused: done.Refused}
	for _, c := range done.Conflicts {
		bulk.Conflicts = append(bulk.Conflicts, &dlq.ConflictError{
			ID: value(c.EntryId), Action: dlq.Action(c.Action), Status: dlq.Status(c.Status), Version: c.Version, By: c.By, At: c.At,
			LeaseUntil: value(c.LeaseUntil),
		})
	}
	return bulk, nil
}

func (r *remote) PreviewEdit(ctx context.Context, id int64, edit dlq.Edit) (dlq.Diff, error) {
	diff, err := read[dlqclient.Diff](r.api.PreviewEdit(ctx, id, editTo(&edit)))
	if err != nil {
		return dlq.Diff{}, err
	}
	return diffFrom(diff), nil
}

func (r *remote) Edit(ctx context.Context, id int64, edit dlq.Edit, by dlq.By) (*dlq.Entry, dlq.Diff, error) {
	e := editTo(&edit)
	edited, err := read[dlqclient.Edited](r.api.EditEntry(ctx, id, nil, dlqclient.EditRequest{
		Jq: e.Jq, Payload: e.Payload, PayloadBase64: e.PayloadBase64, SetHeaders: e.SetHeaders, RemoveHeaders: e.RemoveHeaders, Note: given(by.Note),
	}, as(by)))
	if err != nil {
		return nil, dlq.Diff{}, err
	}
	entry, err := entryFrom(&edited.Entry)
	return entry, diffFrom(&edited.Diff), err
}

// Export copies what the server sends. A connection that breaks off is an error.
func (r *remote) Export(ctx context.Context, w io.Writer, f dlq.Filter) (int64, error) {
	params, err := paramsOf[dlqclient.ExportEntriesParams](&f, nil)
	if err != nil {
		return 0, err
	}
	response, err := r.api.ExportEntries(ctx, params)
	if err != nil {
		return 0, unreachable(err)
	}
	defer func() { _ = response.Body.Close() }() // it was read
	if response.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(response.Body, 1<<20)) // what is there of the reason
		return 0, refused(response, body)
	}
	lines := &lineCounter{w: w}
	if _, err := io.Copy(lines, response.Body); err != nil {
		return lines.n, fmt.Errorf("the export broke off: %w", unreachable(err))
	}
	return lines.n, nil
}

// lineCounter counts the lines that go through it.
type lineCounter struct {
	w io.Writer
	n int64
}

func (l *lineCounter) Write(p []byte) (int, error) {
	l.n += int64(strings.Count(string(p), "\n"))
	return l.w.Write(p)
}

func (r *remote) Import(ctx context.Context, from io.Reader, by dlq.By) (dlq.Imported, error) {
	params := &dlqclient.ImportEntriesParams{Note: given(by.Note)}
	imported, err := read[dlqclient.Imported](r.api.ImportEntriesWithBody(ctx, params, "application/jsonl", from, as(by)))
	if err != nil {
		return dlq.Imported{}, err
	}
	return dlq.Imported{Stored: imported.Stored, Seen: imported.Seen}, nil
}

func (r *remote) Purge(ctx context.Context, p dlq.Purge) (int, error) {
	var statuses []dlqclient.PurgeRequestStatuses
	for _, s := range p.Statuses {
		statuses = append(statuses, dlqclient.PurgeRequestStatuses(s))
	}
	purged, err := read[dlqclient.Purged](r.api.PurgeEntries(ctx, nil, dlqclient.PurgeRequest{
		ClosedBefore: p.ClosedBefore, Statuses: some(statuses), SkipArchive: given(p.SkipArchive), Note: given(p.Note),
	}, as(dlq.By{Actor: p.Actor})))
	if err != nil {
		return 0, err
	}
	return int(purged.Purged), nil
}

func (r *remote) PreviewRun(ctx context.Context, spec dlq.RunSpec, sample int) (*dlq.RunPreview, error) {
	s := specTo(&spec)
	preview, err := read[dlqclient.RunPreview](r.api.PreviewRun(ctx, dlqclient.RunPreviewRequest{
		Id: s.Id, Filter: s.Filter, Limit: s.Limit, Rate: s.Rate, MaxOut: s.MaxOut, Canary: s.Canary, Stop: s.Stop, Jq: s.Jq, Target: s.Target,
		CloseOnPublish: s.CloseOnPublish, OutcomeTimeoutSeconds: s.OutcomeTimeoutSeconds, Paused: s.Paused, Sample: given(int64(sample)),
	}))
	if err != nil {
		return nil, err
	}
	return previewFrom(preview)
}

func (r *remote) StartRun(ctx context.Context, spec dlq.RunSpec, by dlq.By) (*dlq.Run, error) {
	s := specTo(&spec)
	return ran(r.api.StartRun(ctx, nil, dlqclient.RunRequest{
		Id: s.Id, Filter: s.Filter, Limit: s.Limit, Rate: s.Rate, MaxOut: s.MaxOut, Canary: s.Canary, Stop: s.Stop, Jq: s.Jq, Target: s.Target,
		CloseOnPublish: s.CloseOnPublish, OutcomeTimeoutSeconds: s.OutcomeTimeoutSeconds, Paused: s.Paused, Note: given(by.Note),
	}, as(by)))
}

func ran(response *http.Response, err error) (*dlq.Run, error) {
	run, err := read[dlqclient.Run](response, err)
	if err != nil {
		return nil, err
	}
	return runFrom(run), nil
}

func (r *remote) Run(ctx context.Context, id string) (*dlq.Run, error) {
	return ran(r.api.GetRun(ctx, id))
}

func (r *remote) Runs(ctx context.Context, f dlq.RunFilter, p dlq.Page) ([]dlq.Run, string, error) {
	var states []dlqclient.ListRunsParamsState
	for _, s := range f.States {
		states = append(states, dlqclient.ListRunsParamsState(s))
	}
	list, err := read[dlqclient.RunList](r.api.ListRuns(ctx, &dlqclient.ListRunsParams{
		State: some(states), CreatedBy: given(f.CreatedBy), Active: given(f.Active), Limit: given(int64(p.Limit)),
		Order: given(dlqclient.ListRunsParamsOrder(p.Order)), Cursor: given(p.After),
	}))
	if err != nil {
		return nil, "", err
	}
	var runs []dlq.Run
	for i := range list.Runs {
		runs = append(runs, *runFrom(&list.Runs[i]))
	}
	return runs, value(list.Next), nil
}

func (r *remote) RunItems(ctx context.Context, id string, f dlq.ItemFilter) ([]dlq.RunItem, error) {
	list, err := read[dlqclient.ItemList](r.api.ListRunItems(ctx, id, &dlqclient.ListRunItemsParams{
		State: given(dlqclient.ListRunItemsParamsState(f.State)), After: given(f.After), Limit: given(int64(f.Limit)),
	}))
	if err != nil {
		return nil, err
	}
	return itemsFrom(list.Items), nil
}

func (r *remote) PauseRun(ctx context.Context, id string, by dlq.By) (*dlq.Run, error) {
	return ran(r.api.PauseRun(ctx, id, nil, dlqclient.Note{Note: given(by.Note)}, as(by)))
}

func (r *remote) ResumeRun(ctx context.Context, id string, by dlq.By) (*dlq.Run, error) {
	return ran(r.api.ResumeRun(ctx, id, nil, dlqclient.Note{Note: given(by.Note)}, as(by)))
}

func (r *remote) CancelRun(ctx context.Context, id string, by dlq.By) (*dlq.Run, error) {
	return ran(r.api.CancelRun(ctx, id, nil, dlqclient.Note{Note: given(by.Note)}, as(by)))
}

func (r *remote) ApproveRun(ctx context.Context, id string, by dlq.By) (*dlq.Run, error) {
	return ran(r.api.ApproveRun(ctx, id, nil, dlqclient.Note{Note: given(by.Note)}, as(by)))
}

func (r *remote) RejectRun(ctx context.Context, id string, by dlq.By) (*dlq.Run, error) {
	return ran(r.api.RejectRun(ctx, id, nil, dlqclient.Note{Note: given(by.Note)}, as(by)))
}

// WatchRun asks now and then; a stream would need a connection that no proxy on the way cuts.
func (r *remote) WatchRun(ctx context.Context, id string, every time.Duration) iter.Seq2[*dlq.Run, error] {
	return func(yield func(*dlq.Run, error) bool) {
		ticker := time.NewTicker(max(every, askEvery))
		defer ticker.Stop()
		for {
			run, err := r.Run(ctx, id)
			if !yield(run, err) || err != nil || run.State.Ended() && run.Counts.Open() == 0 {
				return
			}
			select {
			case <-ticker.C:
			case <-ctx.Done():
				yield(nil, ctx.Err())
				return
			}
		}
	}
}

// askEvery is how often a server is asked for a run at most.
const askEvery = 500 * time.Millisecond

// Drive waits while the server carries the run on, until it ends or needs a person.
func (r *remote) Drive(ctx context.Context, id string) (*dlq.Run, error) {
	var last *dlq.Run
	for run, err := range r.WatchRun(ctx, id, askEvery) {
		if err != nil {
			return last, err
		}
		if last = run; run.State != dlq.RunPreparing && run.State != dlq.RunRunning && run.Counts.Open() == 0 {
			break
		}
	}
	return last, nil
}
