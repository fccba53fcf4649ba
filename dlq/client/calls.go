package client

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-go/redrive/dlq/wire"
)

func number(id int64) string { return strconv.FormatInt(id, 10) }

// ListEntries returns a page of the entries that the filter selects.
func (c *Client) ListEntries(ctx context.Context, f wire.Filter, p wire.Page) (*wire.EntryList, error) {
	return ask[wire.EntryList](ctx, c, get(values(f, p), "entries"))
}

// Entries are all entries that the filter selects, page by page. An error ends them.
func (c *Client) Entries(ctx context.Context, f wire.Filter, p wire.Page) iter.Seq2[*wire.Entry, error] {
	return func(yield func(*wire.Entry, error) bool) {
		for {
			list, err := c.ListEntries(ctx, f, p)
			if err != nil {
				yield(nil, err)
				return
			}
			for i := range list.Entries {
				if !yield(&list.Entries[i], nil) {
					return
				}
			}
			if p.After = list.Next; p.After == "" {
				return
			}
		}
	}
}

// CountEntries counts the entries that the filter selects, but no further than upTo; 0 counts all.
func (c *Client) CountEntries(ctx context.Context, f wire.Filter, upTo int64) (int64, error) {
	return c.count(ctx, get(values(f, struct {
		UpTo int64 `query:"up_to"`
	}{upTo}), "entries", "count"))
}

func (c *Client) count(ctx context.Context, r request) (int64, error) {
	count, err := ask[wire.Count](ctx, c, r)
	return cmp.Or(count, &wire.Count{}).Count, err
}

// GetEntry returns an entry with its body. With a version other than 0 it returns nil if that is still the latest.
func (c *Client) GetEntry(ctx context.Context, id, version int64) (*wire.EntryDetail, error) {
	r := get(nil, "entries", number(id))
	r.version = version
	return ask[wire.EntryDetail](ctx, c, r)
}

// GetPayload returns the payload of an entry, byte for byte.
func (c *Client) GetPayload(ctx context.Context, id int64) ([]byte, error) {
	r := get(nil, "entries", number(id), "payload")
	r.answer = "application/octet-stream"
	response, err := c.send(ctx, r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }() // it was read
	return io.ReadAll(io.LimitReader(response.Body, maxResponse))
}

// GetRevision returns one revision of an entry's body: 0 is the original.
func (c *Client) GetRevision(ctx context.Context, id int64, revision int) (*wire.Body, error) {
	return ask[wire.Body](ctx, c, get(nil, "entries", number(id), "revisions", strconv.Itoa(revision)))
}

// DiffRevisions compares two revisions of an entry's body. A negative to is what a redrive would send.
func (c *Client) DiffRevisions(ctx context.Context, id int64, from, to int) (*wire.Diff, error) {
	asked := struct {
		From int  `query:"from"`
		To   *int `query:"to"`
	}{From: from}
	if to >= 0 {
		asked.To = &to
	}
	return ask[wire.Diff](ctx, c, get(values(asked), "entries", number(id), "diff"))
}

// GetEntryAudit returns the changes of an entry, oldest first.
func (c *Client) GetEntryAudit(ctx context.Context, id int64) (*wire.AuditList, error) {
	return ask[wire.AuditList](ctx, c, get(nil, "entries", number(id), "audit"))
}

// RedriveEntry sends an entry back to its consumer.
func (c *Client) RedriveEntry(ctx context.Context, id int64, by By) (*wire.Entry, error) {
	return c.change(ctx, "redrive", id, by)
}

// ResolveEntry marks an entry as taken care of.
func (c *Client) ResolveEntry(ctx context.Context, id int64, by By) (*wire.Entry, error) {
	return c.change(ctx, "resolve", id, by)
}

// DiscardEntry gives up on an entry; it is kept and can be restored.
func (c *Client) DiscardEntry(ctx context.Context, id int64, by By) (*wire.Entry, error) {
	return c.change(ctx, "discard", id, by)
}

// RestoreEntry undoes resolve, discard or park.
func (c *Client) RestoreEntry(ctx context.Context, id int64, by By) (*wire.Entry, error) {
	return c.change(ctx, "restore", id, by)
}

// ParkEntry sets an entry aside for a person.
func (c *Client) ParkEntry(ctx context.Context, id int64, by By) (*wire.Entry, error) {
	return c.change(ctx, "park", id, by)
}

// ReleaseEntry ends the wait for the outcome of a redrive. It needs a note, and an admin.
func (c *Client) ReleaseEntry(ctx context.Context, id int64, by By) (*wire.Entry, error) {
	return c.change(ctx, "release", id, by)
}

func (c *Client) change(ctx context.Context, verb string, id int64, by By) (*wire.Entry, error) {
	return ask[wire.Entry](ctx, c, post(by, wire.Note{Note: by.Note}, "entries", number(id), verb))
}

// ChangeEntries changes everything that the filter selects: resolve, discard, restore or park.
func (c *Client) ChangeEntries(ctx context.Context, action string, f wire.Filter, by By) (*wire.BulkResult, error) {
	return ask[wire.BulkResult](ctx, c, post(by,
		wire.BulkRequest{Action: action, Filter: f, Note: wire.Note{Note: by.Note}}, "entries", "bulk"))
}

// PreviewEdit returns what an edit would change, and changes nothing.
func (c *Client) PreviewEdit(ctx context.Context, id int64, edit wire.Edit) (*wire.Diff, error) {
	return ask[wire.Diff](ctx, c, preview(edit, "entries", number(id), "edit", "preview"))
}

// EditEntry changes an entry's message, and sends it back when redrive is set.
func (c *Client) EditEntry(ctx context.Context, id int64, edit wire.Edit, redrive bool, by By) (*wire.Edited, error) {
	return ask[wire.Edited](ctx, c, post(by,
		wire.EditRequest{Edit: edit, Note: wire.Note{Note: by.Note}, Redrive: redrive}, "entries", number(id), "edit"))
}

// ExportEntries returns the entries that the filter selects as JSON lines (see wire.Letter), oldest first. The caller
// closes the reader. A lost connection is an error of the reader.
func (c *Client) ExportEntries(ctx context.Context, f wire.Filter) (io.ReadCloser, error) {
	r := get(values(f), "entries", "export")
	r.answer = wire.LinesType
	response, err := c.send(ctx, r)
	if err != nil {
		return nil, err
	}
	return response.Body, nil
}

// ImportEntries stores an export. It is sent once; it is safe to repeat. Along with an error it returns how many
// lines were stored before it, if that is known.
func (c *Client) ImportEntries(ctx context.Context, from io.Reader, by By) (*wire.Imported, error) {
	imported, err := ask[wire.Imported](ctx, c, request{
		method: http.MethodPost, path: join("entries", "import"), query: values(wire.Note{Note: by.Note}), by: &by,
		content: from, contentType: wire.LinesType,
	})
	if refused, ok := errors.AsType[*Error](err); ok {
		imported = refused.Problem.Imported
	}
	return imported, err
}

// PreviewPurge counts what a purge would remove.
func (c *Client) PreviewPurge(ctx context.Context, scope wire.PurgeScope) (int64, error) {
	return c.count(ctx, preview(scope, "purge", "preview"))
}

// PurgeEntries removes old closed entries, and returns how many.
func (c *Client) PurgeEntries(ctx context.Context, scope wire.PurgeScope, skipArchive bool, by By) (int, error) {
	purged, err := ask[wire.Purged](ctx, c,
		post(by, wire.PurgeRequest{PurgeScope: scope, SkipArchive: skipArchive, Note: wire.Note{Note: by.Note}}, "purge"))
	return cmp.Or(purged, &wire.Purged{}).Purged, err
}

// RestoreArchived restores purged entries, and returns their ids.
func (c *Client) RestoreArchived(ctx context.Context, ids []int64, by By) ([]int64, error) {
	restored, err := ask[wire.ArchiveResult](ctx, c,
		post(by, wire.ArchiveRequest{IDs: ids, Note: wire.Note{Note: by.Note}}, "archive", "restore"))
	return cmp.Or(restored, &wire.ArchiveResult{}).Restored, err
}

// ListRuns returns a page of the redrive runs.
func (c *Client) ListRuns(ctx context.Context, q wire.RunFilter, p wire.Page) (*wire.RunList, error) {
	return ask[wire.RunList](ctx, c, get(values(q, p), "runs"))
}

// StartRun starts a run. With By.Key, or the spec's ID, it is one run no matter how often it is sent.
func (c *Client) StartRun(ctx context.Context, spec wire.RunSpec, by By) (*wire.Run, error) {
	return ask[wire.Run](ctx, c, post(by, wire.RunRequest{RunSpec: spec, Note: wire.Note{Note: by.Note}}, "runs"))
}

// PreviewRun returns what a run would do, with a sample of its entries, and does nothing.
func (c *Client) PreviewRun(ctx context.Context, spec wire.RunSpec, sample int) (*wire.RunPreview, error) {
	return ask[wire.RunPreview](ctx, c, preview(wire.RunPreviewRequest{RunSpec: spec, Sample: sample}, "runs", "preview"))
}

// GetRun returns a run with its progress.
func (c *Client) GetRun(ctx context.Context, id string) (*wire.Run, error) {
	return ask[wire.Run](ctx, c, get(nil, "runs", id))
}

// ReviewRun returns what a run would send, for an approver.
func (c *Client) ReviewRun(ctx context.Context, id string, q wire.ReviewQuery) (*wire.RunReview, error) {
	return ask[wire.RunReview](ctx, c, get(values(q), "runs", id, "review"))
}

// ListRunItems returns a page of a run's entries.
func (c *Client) ListRunItems(ctx context.Context, id string, q wire.ItemFilter) (*wire.ItemList, error) {
	return ask[wire.ItemList](ctx, c, get(values(q), "runs", id, "items"))
}

// PauseRun pauses a run; what is in flight is still recorded.
func (c *Client) PauseRun(ctx context.Context, id string, by By) (*wire.Run, error) {
	return c.steer(ctx, "pause", id, by)
}

// ResumeRun continues a run that was paused or has stopped automatically.
func (c *Client) ResumeRun(ctx context.Context, id string, by By) (*wire.Run, error) {
	return c.steer(ctx, "resume", id, by)
}

// CancelRun ends a run; its waiting entries are left as they were.
func (c *Client) CancelRun(ctx context.Context, id string, by By) (*wire.Run, error) {
	return c.steer(ctx, "cancel", id, by)
}

// ApproveRun approves a run that another person has requested.
func (c *Client) ApproveRun(ctx context.Context, id string, by By) (*wire.Run, error) {
	return c.steer(ctx, "approve", id, by)
}

// RejectRun cancels a run that waits for approval.
func (c *Client) RejectRun(ctx context.Context, id string, by By) (*wire.Run, error) {
	return c.steer(ctx, "reject", id, by)
}

func (c *Client) steer(ctx context.Context, verb, id string, by By) (*wire.Run, error) {
	return ask[wire.Run](ctx, c, post(by, wire.Note{Note: by.Note}, "runs", id, verb))
}

// AdjustRun changes the speed and the bounds of a run. By.Note replaces that of the change.
func (c *Client) AdjustRun(ctx context.Context, id string, change wire.RunAdjustment, by By) (*wire.Run, error) {
	change.Note = wire.Note{Note: by.Note}
	return ask[wire.Run](ctx, c, request{method: http.MethodPatch, path: join("runs", id), by: &by, body: change})
}

// WatchRun returns a run now and whenever it has changed, until it has ended. A stream that ends earlier, after five
// minutes, because the server shuts down, or because a proxy closed it, ends without an error: watch again.
func (c *Client) WatchRun(ctx context.Context, id string) iter.Seq2[*wire.Run, error] {
	return func(yield func(*wire.Run, error) bool) {
		r := get(nil, "runs", id, "events")
		r.answer = "text/event-stream"
		response, err := c.send(ctx, r)
		if err != nil {
			yield(nil, err)
			return
		}
		defer func() { _ = response.Body.Close() }() // it was read as far as it goes
		lines := bufio.NewScanner(response.Body)
		lines.Buffer(nil, 16<<20)
		for lines.Scan() {
			data, ok := strings.CutPrefix(lines.Text(), "data: ")
			if !ok {
				continue
			}
			run := new(wire.Run)
			if err := c.decode(strings.NewReader(data), run); err != nil {
				yield(nil, err)
				return
			}
			if !yield(run, nil) {
				return
			}
		}
		if ctx.Err() != nil {
			yield(nil, ctx.Err())
		}
	}
}

// ListGroups returns causes, those with the most entries first.
func (c *Client) ListGroups(ctx context.Context, q wire.GroupQuery) (*wire.GroupList, error) {
	return ask[wire.GroupList](ctx, c, get(values(q), "groups"))
}

// GetStats returns the numbers of a dashboard.
func (c *Client) GetStats(ctx context.Context, q wire.StatsQuery) (*wire.Stats, error) {
	return ask[wire.Stats](ctx, c, get(values(q), "stats"))
}

// ListAudit returns a page of the audit log.
func (c *Client) ListAudit(ctx context.Context, q wire.AuditQuery, p wire.Page) (*wire.AuditList, error) {
	return ask[wire.AuditList](ctx, c, get(values(q, p), "audit"))
}

// ListMutes returns the causes without notifications.
func (c *Client) ListMutes(ctx context.Context) (*wire.MuteList, error) {
	return ask[wire.MuteList](ctx, c, get(nil, "mutes"))
}

// MuteGroup stops the notifications of a cause for a time; 0 means permanently.
func (c *Client) MuteGroup(ctx context.Context, fingerprint string, period time.Duration, by By) (*wire.Mute, error) {
	body := wire.MuteRequest{Seconds: period.Seconds(), Note: wire.Note{Note: by.Note}}
	return ask[wire.Mute](ctx, c, post(by, body, "groups", fingerprint, "mute"))
}

// UnmuteGroup resumes the notifications of a cause, and returns what is still muted.
func (c *Client) UnmuteGroup(ctx context.Context, fingerprint string, by By) (*wire.MuteList, error) {
	return ask[wire.MuteList](ctx, c, post(by, wire.Note{Note: by.Note}, "groups", fingerprint, "unmute"))
}

// GetReport returns which causes are new, grow, return or are fixed, over some hours; 0 is a week.
func (c *Client) GetReport(ctx context.Context, hours int) (*wire.Recurrence, error) {
	return ask[wire.Recurrence](ctx, c, get(values(struct {
		Hours int `query:"hours"`
	}{hours}), "report"))
}

// GetRetention returns how long closed entries are kept, and how many are due.
func (c *Client) GetRetention(ctx context.Context) (*wire.Retention, error) {
	return ask[wire.Retention](ctx, c, get(nil, "retention"))
}

// GetMe returns the caller and what it may do.
func (c *Client) GetMe(ctx context.Context) (*wire.Me, error) {
	return ask[wire.Me](ctx, c, get(nil, "me"))
}

// GetHealth returns the state of each component.
func (c *Client) GetHealth(ctx context.Context) (*wire.Health, error) {
	return ask[wire.Health](ctx, c, get(nil, "health"))
}

// ListRules returns the rules by which the server redrives automatically.
func (c *Client) ListRules(ctx context.Context) (*wire.RuleList, error) {
	return ask[wire.RuleList](ctx, c, get(nil, "rules"))
}

// GetTopology returns the existing and the planned topology of the brokers, as the server's program shows it.
func (c *Client) GetTopology(ctx context.Context) (*json.RawMessage, error) {
	return ask[json.RawMessage](ctx, c, get(nil, "topology"))
}

// GetSettings returns the server's configuration, without secrets.
func (c *Client) GetSettings(ctx context.Context) (*json.RawMessage, error) {
	return ask[json.RawMessage](ctx, c, get(nil, "settings"))
}
