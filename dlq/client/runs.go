package client

import (
	"bufio"
	"context"
	"iter"
	"net/http"
	"strings"

	"github.com/redrive-go/redrive/dlq/wire"
)

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

// WatchRun returns a run now and whenever it has changed, until it has ended. A stream that ends earlier, because the
// server shuts down or a proxy closed it, ends without an error: watch again.
func (c *Client) WatchRun(ctx context.Context, id string) iter.Seq2[*wire.Run, error] {
	return func(yield func(*wire.Run, error) bool) {
		response, err := c.send(ctx, get(nil, "runs", id, "events"))
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
