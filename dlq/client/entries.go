package client

import (
	"context"
	"errors"
	"io"
	"iter"
	"net/http"
	"strconv"

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
	if err != nil {
		return 0, err
	}
	return count.Count, nil
}

// GetEntry returns an entry with its body. With a version other than 0 it returns nil if that is still the latest.
func (c *Client) GetEntry(ctx context.Context, id, version int64) (*wire.EntryDetail, error) {
	r := get(nil, "entries", number(id))
	r.version = version
	return ask[wire.EntryDetail](ctx, c, r)
}

// GetPayload returns the payload of an entry, byte for byte.
func (c *Client) GetPayload(ctx context.Context, id int64) ([]byte, error) {
	response, err := c.send(ctx, get(nil, "entries", number(id), "payload"))
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
	response, err := c.send(ctx, get(values(f), "entries", "export"))
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
		content: from, contentType: "application/jsonl",
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
	if err != nil {
		return 0, err
	}
	return purged.Purged, nil
}

// RestoreArchived restores purged entries, and returns their ids.
func (c *Client) RestoreArchived(ctx context.Context, ids []int64, by By) ([]int64, error) {
	restored, err := ask[wire.ArchiveResult](ctx, c,
		post(by, wire.ArchiveRequest{IDs: ids, Note: wire.Note{Note: by.Note}}, "archive", "restore"))
	if err != nil {
		return nil, err
	}
	return restored.Restored, nil
}
