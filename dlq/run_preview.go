package dlq

import (
	"context"
)

// RunPreview is what a run would do, before it is started. Nothing is changed.
type RunPreview struct {
	// Spec is resolved.
	Spec RunSpec
	// Count is how many entries the run would take now, Topics splits them (before Spec.Limit), the most first.
	Count  int64
	Topics []TopicCount
	// NeedsApproval says that a second person would have to approve it.
	NeedsApproval bool
	// Sample are the first entries, with their bodies.
	Sample []SampleEntry
}

// SampleEntry is an entry of a preview.
type SampleEntry struct {
	Entry Entry
	// Diff is what the spec's jq expression makes of it; Problem says why it would be skipped. Both are empty without an expression.
	Diff    Diff
	Problem string
	// After is the body with that difference; nil without one.
	After *Body
}

// PreviewRun is the dry run: how many entries the spec picks, of which topics, and what would become of the first few (10 when sample is
// 0, at most 100).
func (m *Manager) PreviewRun(ctx context.Context, spec RunSpec, sample int) (*RunPreview, error) {
	spec, err := m.checkSpec(spec)
	if err != nil {
		return nil, err
	}
	if sample <= 0 {
		sample = 10
	}
	p := &RunPreview{Spec: spec}
	if p.Count, err = m.store.Count(ctx, spec.Filter, 0); err != nil {
		return nil, err
	}
	if spec.Limit > 0 {
		p.Count = min(p.Count, spec.Limit)
	}
	if p.Topics, err = m.store.Split(ctx, spec.Filter); err != nil {
		return nil, err
	}
	run := Run{Spec: spec, ApprovalAbove: m.approvalAbove, Counts: RunCounts{Waiting: p.Count}}
	p.NeedsApproval = run.needsApproval()
	listing, err := m.store.List(ctx, spec.Filter, Page{Limit: int(min(int64(min(sample, 100)), max(1, p.Count))), Order: OldestFirst})
	if err != nil {
		return nil, err
	}
	return p, m.sample(ctx, p, listing.Entries)
}

func (m *Manager) sample(ctx context.Context, p *RunPreview, entries []Entry) error {
	var program *jqProgram
	if p.Spec.JQ != "" {
		var err error
		if program, err = compileJQ(p.Spec.JQ); err != nil {
			return err
		}
	}
	for i := range entries {
		s := SampleEntry{Entry: entries[i]}
		body, err := m.store.Body(ctx, s.Entry.ID, s.Entry.Revision)
		if err != nil {
			return err
		}
		s.Entry.Body = body
		if program != nil {
			after, err := program.edit(ctx, body)
			switch {
			case err != nil:
				s.Problem = err.Error()
			case after != nil:
				s.Diff, s.After = DiffBodies(body, after), after
			}
		}
		p.Sample = append(p.Sample, s)
	}
	return nil
}
