package redrive

import (
	"context"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/payload"
	"github.com/redrive-go/redrive/dlq/wire"
)

// Preview is what a run would do if it were started. Nothing is changed.
type Preview struct {
	// Spec is resolved.
	Spec Spec
	// Count is how many entries the run would take now, Topics splits them (before Spec.Limit), the largest first.
	Count  int64
	Topics []TopicCount
	// NeedsApproval means that a second person would have to approve it, no matter who starts it. Someone who has already
	// sent messages may need approval for fewer.
	NeedsApproval bool
	// Destinations are where the entries of Sample would go, and whether a consumer reads them now.
	Destinations []Destination
	// Sample are the first entries, with their bodies.
	Sample []Sample
}

// Sample is an entry of a preview.
type Sample struct {
	Entry dlq.Entry
	// Diff is what the spec's jq expression changes; Problem explains why the entry would be skipped. Both are empty
	// without an expression.
	Diff    payload.Diff
	Problem string
	// After is the edited body; nil if unchanged. Before is the original of that edit; nil for the entry's body.
	Before, After *dlq.Body
}

// PreviewRun is the dry run: how many entries the spec selects, of which topics, and what would happen to the first few
// (10 when sample is 0, at most 100).
func (rn *Runner) PreviewRun(ctx context.Context, spec Spec, sample int) (*Preview, error) {
	spec, err := rn.checkSpec(spec)
	if err != nil {
		return nil, err
	}
	if sample <= 0 {
		sample = 10
	}
	p := &Preview{Spec: spec}
	if p.Count, err = rn.store.Count(ctx, spec.Filter, 0); err != nil {
		return nil, err
	}
	if spec.Limit > 0 {
		p.Count = min(p.Count, spec.Limit)
	}
	if p.Topics, err = rn.runs.Split(ctx, spec.Filter); err != nil {
		return nil, err
	}
	run := Run{Run: wire.Run{Spec: spec, ApprovalAbove: -1, Counts: Counts{Waiting: p.Count}}}
	if rn.approval != nil {
		run.ApprovalAbove = rn.approval.Above
	}
	p.NeedsApproval = run.needsApproval()
	page := dlq.Page{Limit: int(min(int64(min(sample, 100)), max(1, p.Count))), Order: driver.OldestFirst}
	listing, err := rn.store.List(ctx, spec.Filter, page)
	if err != nil {
		return nil, err
	}
	if err := rn.sample(ctx, p, listing.Entries); err != nil {
		return p, err
	}
	entries := make([]*dlq.Entry, len(p.Sample))
	for i := range p.Sample {
		entries[i] = &p.Sample[i].Entry
	}
	p.Destinations = rn.destinations(ctx, &run, entries)
	return p, nil
}

func (rn *Runner) sample(ctx context.Context, p *Preview, entries []dlq.Entry) error {
	for i := range entries {
		s := Sample{Entry: entries[i]}
		body, err := rn.store.Body(ctx, s.Entry.ID, s.Entry.Revision)
		if err != nil {
			return err
		}
		s.Entry.Body = body
		if p.Spec.JQ != "" {
			after, err := payload.Edit(ctx, rn.jq, p.Spec.JQ, body)
			switch {
			case err != nil:
				s.Problem = err.Error()
			case after != nil:
				s.Diff, s.After = payload.Compare(body, after), after
			}
		}
		p.Sample = append(p.Sample, s)
	}
	return nil
}
