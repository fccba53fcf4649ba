package redrive

import (
	"context"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/payload"
)

// Review is what a second person looks at before approving a run: what is frozen, not what its filter would select now.
type Review struct {
	// Run has the specification, and its author's note.
	Run *Run
	// Topics and Causes split its entries, the largest first; at most 20 causes.
	Topics []TopicCount
	Causes []CauseCount
	// Sample are the first entries. Their difference is between what died and what would be sent, including edits by hand
	// and the jq expression.
	Sample []Sample
}

const reviewCauses = 20

// ReviewRun shows what a run has frozen: how many entries of which topics and causes, and what would be sent for the
// first few (10 when sample is 0, at most 100).
func (rn *Runner) ReviewRun(ctx context.Context, id string, sample int) (*Review, error) {
	if sample <= 0 {
		sample = 10
	}
	run, err := rn.runs.Run(ctx, id)
	if err != nil {
		return nil, err
	}
	r := &Review{Run: run}
	if r.Topics, r.Causes, err = rn.runs.SplitRun(ctx, id, reviewCauses); err != nil {
		return nil, err
	}
	items, err := rn.runs.NextItems(ctx, id, 0, min(sample, 100), batchBytes)
	if err != nil {
		return nil, err
	}
	for i := range items {
		if e := items[i].Entry; e != nil && e.Body != nil {
			s, err := rn.reviewed(ctx, e, run.Spec.JQ)
			if err != nil {
				return nil, err
			}
			r.Sample = append(r.Sample, *s)
		}
	}
	return r, nil
}

// reviewed is an entry as it would be sent.
func (rn *Runner) reviewed(ctx context.Context, e *dlq.Entry, jq string) (*Sample, error) {
	s := &Sample{Entry: *e}
	after := e.Body
	if jq != "" {
		edited, err := payload.Edit(ctx, rn.jq, jq, e.Body)
		switch {
		case err != nil:
			s.Problem = err.Error()
		case edited != nil:
			after = edited
		}
	}
	if e.Revision > 0 {
		died, err := rn.store.Body(ctx, e.ID, 0)
		if err != nil {
			return nil, err
		}
		s.Before = died
	}
	if s.Before != nil || after != e.Body {
		before := e.Body
		if s.Before != nil {
			before = s.Before
		}
		s.Diff, s.After = payload.Compare(before, after), after
	}
	return s, nil
}
