package redrive

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/internal/guarded"
	"github.com/redrive-go/redrive/dlq/payload"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/scheme"
)

// Preview is what a run would do if it were started. Nothing is changed.
//
// Its Topics are the largest first. It needs approval no matter who starts it: someone who has already sent messages
// may need approval for fewer.
type Preview struct {
	wire.RunPreview

	// Sample are the first entries, with their bodies.
	Sample []Sample
}

// Sample is an entry of a preview.
type Sample struct {
	Entry dlq.Entry
	// Diff is what the spec's jq expression changes; Problem explains why the entry would be skipped, or, if it is
	// Unevaluated, tried again. All are empty without an expression.
	Diff        payload.Diff
	Problem     string
	Unevaluated bool
	// Before and After are the bodies that Diff compares; nil where it compares none.
	Before, After *dlq.Body
}

// PreviewRun is the dry run: how many entries the spec selects, of which topics, and what would happen to the first few
// (10 when sample is 0, at most 100, fewer if they are large).
func (rn *Runner) PreviewRun(ctx context.Context, spec Spec, sample int) (*Preview, error) {
	spec, err := rn.CheckSpec(spec)
	if err != nil {
		return nil, err
	}
	if sample <= 0 {
		sample = 10
	}
	p := &Preview{RunPreview: wire.RunPreview{Spec: spec}}
	if p.Count, err = rn.cfg.Store.Count(ctx, spec.Filter, 0); err != nil {
		return nil, err
	}
	if spec.Limit > 0 {
		p.Count = min(p.Count, spec.Limit)
	}
	if p.Topics, err = rn.runs.Split(ctx, spec.Filter); err != nil {
		return nil, err
	}
	run := Run{Run: wire.Run{Spec: spec, ApprovalAbove: -1, Counts: Counts{Waiting: p.Count}}}
	if rn.cfg.Approval != nil {
		run.ApprovalAbove = rn.cfg.Approval.Above
	}
	p.NeedsApproval = run.needsApproval()
	page := dlq.Page{Limit: int(min(int64(min(sample, 100)), max(1, p.Count))), Order: driver.OldestFirst}
	listing, err := rn.cfg.Store.List(ctx, spec.Filter, page)
	if err != nil {
		return nil, err
	}
	entries := make([]*dlq.Entry, 0, len(listing.Entries))
	var bytes int64
	for i := range listing.Entries {
		e := &listing.Entries[i]
		if bytes += e.Size; bytes > batchBytes && i > 0 {
			break
		}
		if e.Body, err = rn.cfg.Store.Body(ctx, e.ID, e.Revision); err != nil {
			return p, err
		}
		p.Sample, entries = append(p.Sample, rn.sample(ctx, e, spec.JQ, e.Body)), append(entries, e)
	}
	p.Destinations = rn.destinations(ctx, &run, entries)
	return p, nil
}

// sample is an entry as it would be sent after the jq expression, compared with the body before.
func (rn *Runner) sample(ctx context.Context, e *dlq.Entry, jq string, before *dlq.Body) Sample {
	s := Sample{Entry: *e}
	after := e.Body
	if jq != "" {
		edited, err := payload.Edit(ctx, rn.cfg.JQ, jq, e.Body)
		switch {
		case err != nil:
			s.Problem, s.Unevaluated = err.Error(), errors.Is(err, payload.ErrNotEvaluated)
		case edited != nil:
			after = edited
		}
	}
	if after != before {
		s.Diff, s.Before, s.After = payload.Compare(before, after), before, after
	}
	return s
}

// Review shows a run to the person who may approve it: its frozen set, not the entries that its filter selects now.
type Review struct {
	// Run has the specification, and its author's note.
	Run *Run
	// Topics and Causes split its entries, the largest first. The JSON form has the first 20 causes.
	Topics []TopicCount
	Causes []CauseCount
	// Sample are the first entries. Their difference is between the dead message and the one that would be sent, including
	// edits by hand and the jq expression.
	Sample []Sample
}

const reviewCauses = 20

// ReviewRun shows a run's frozen set: how many entries of which topics and causes, and the messages that would be sent
// for the first few (10 when sample is 0, at most 100, fewer if they are large).
func (rn *Runner) ReviewRun(ctx context.Context, id string, sample int) (*Review, error) {
	if sample <= 0 {
		sample = 10
	}
	run, err := rn.runs.Run(ctx, id)
	if err != nil {
		return nil, err
	}
	r := &Review{Run: run}
	if r.Topics, r.Causes, err = rn.runs.SplitRun(ctx, id, driver.MaxPage); err != nil {
		return nil, err
	}
	items, err := rn.runs.NextItems(ctx, id, 0, min(sample, 100), batchBytes)
	if err != nil {
		return nil, err
	}
	for i := range items {
		e := items[i].Entry
		if e == nil || e.Body == nil {
			continue
		}
		died := e.Body
		if e.Revision > 0 {
			if died, err = rn.cfg.Store.Body(ctx, e.ID, 0); err != nil {
				return nil, err
			}
		}
		r.Sample = append(r.Sample, rn.sample(ctx, e, run.Spec.JQ, died))
	}
	return r, nil
}

// Shown is the run's JSON form: with its progress at a time.
func (r *Run) Shown(now time.Time) wire.Run {
	shown := r.Run
	shown.Progress = r.Progress(now)
	return shown
}

// Wire is the preview's JSON form.
func (p *Preview) Wire() wire.RunPreview {
	shown := p.RunPreview
	shown.Topics, shown.Sample = append([]TopicCount{}, p.Topics...), samplesOf(p.Sample)
	return shown
}

// Wire is the review's JSON form, with the run's progress at a time.
func (r *Review) Wire(now time.Time) wire.RunReview {
	return wire.RunReview{
		Run: r.Run.Shown(now), Topics: append([]TopicCount{}, r.Topics...),
		Causes: append([]CauseCount{}, r.Causes[:min(len(r.Causes), reviewCauses)]...),
		Sample: samplesOf(r.Sample),
	}
}

func samplesOf(samples []Sample) []wire.SampleEntry {
	list := make([]wire.SampleEntry, len(samples))
	for i := range samples {
		s := &samples[i]
		list[i] = wire.SampleEntry{Entry: s.Entry.Detail(), Problem: s.Problem, Unevaluated: s.Unevaluated}
		if !s.Diff.Empty() {
			list[i].Diff = &s.Diff
		}
	}
	return list
}

// ReaderCounter is a [dlq.Redriver] that knows whether a consumer reads what it publishes to. It is optional: previews
// and runs find it by a type assertion.
type ReaderCounter interface {
	// Readers returns how many consumers now read the destination of a redrive to origin. It fails if that is not known,
	// with [ErrUnreachable] if a redrive would fail, such as when the broker is down or not configured. The context is
	// that of the message; see driver.CollectedFrom. Calls may be concurrent.
	Readers(ctx context.Context, origin envelope.Origin) (int, error)
}

// ErrUnreachable is the error of a [ReaderCounter] if a redrive would fail. Previews and runs show it with its reason.
var ErrUnreachable = errors.New("a redrive would fail")

// TopicRedriver is a [dlq.Redriver] that cannot reach every consumer alone. It is optional, as ReaderCounter is.
type TopicRedriver interface {
	// ToTopic reports whether a redrive to origin is for every group that reads its topic. The context is as for Readers.
	ToTopic(ctx context.Context, origin envelope.Origin) bool
}

// Destination is where messages of a run go. Without a reader, redriven messages wait there, and their entries until
// the outcome timeout.
type Destination = wire.RunDestination

const (
	// readersTime is how long a preview and the start of a run wait for all brokers: with one that is slow or frozen the
	// number of readers is unknown, but nothing is held up.
	readersTime = 2 * time.Second
	// maxDestinations is how many destinations are looked up, and readersAtOnce how many at the same time.
	maxDestinations = 100
	readersAtOnce   = 8
)

// question is a destination as a parameter of a ReaderCounter.
type question struct {
	origin    envelope.Origin
	collected envelope.Collected
}

// destinations are where entries go, each once, with their bodies for where they were collected.
func (rn *Runner) destinations(ctx context.Context, run *Run, entries []*dlq.Entry) []Destination {
	var found []Destination
	var asked []question
	known := map[Destination]bool{}
	for _, e := range entries {
		q := question{origin: rn.address(run, e)}
		if e.Body != nil {
			q.collected = e.Body.Collected
		}
		to := &q.origin
		d := Destination{
			Broker: cmp.Or(q.collected.Broker, to.Broker), Topic: to.Topic, Consumer: to.Consumer, RedriveTo: to.RedriveTo,
			Readers: -1,
		}
		if !scheme.Same(to.Broker, e.Origin.Broker) { // a target elsewhere
			d.Broker = cmp.Or(to.Broker, d.Broker)
		}
		if r, ok := rn.cfg.Redriver.(TopicRedriver); ok {
			d.EveryGroup = r.ToTopic(driver.WithCollected(ctx, q.collected), q.origin)
		}
		if known[d] {
			continue
		}
		if len(found) == maxDestinations {
			break
		}
		known[d] = true
		found, asked = append(found, d), append(asked, q)
	}
	if counter, ok := rn.cfg.Redriver.(ReaderCounter); ok {
		countReaders(ctx, counter, asked, found)
	}
	return found
}

// countReaders sets Readers, or Unreachable, of each destination whose answer arrives in time. Later ones are dropped.
func countReaders(ctx context.Context, counter ReaderCounter, asked []question, found []Destination) {
	ctx, cancel := context.WithTimeout(ctx, readersTime)
	defer cancel()
	type answer struct {
		i, readers int
		err        error
	}
	next, answers := make(chan int, len(asked)), make(chan answer, len(asked))
	for i := range asked {
		next <- i
	}
	close(next)
	for range min(readersAtOnce, len(asked)) {
		go func() {
			for i := range next {
				a := answer{i: i}
				a.err = guarded.Call(func() (err error) {
					a.readers, err = counter.Readers(driver.WithCollected(ctx, asked[i].collected), asked[i].origin)
					return err
				})
				answers <- a
			}
		}()
	}
	for range asked {
		select {
		case a := <-answers:
			switch {
			case a.err == nil:
				found[a.i].Readers = a.readers
			case errors.Is(a.err, ErrUnreachable):
				found[a.i].Unreachable = a.err.Error()
			}
		case <-ctx.Done():
			return
		}
	}
}

// warn logs the warnings about a run's destinations, judging by its first entries.
func (rn *Runner) warn(ctx context.Context, run *Run, read []readItem) {
	entries := make([]*dlq.Entry, 0, len(read))
	for i := range read {
		if read[i].Entry != nil {
			entries = append(entries, read[i].Entry)
		}
	}
	for _, d := range rn.destinations(ctx, run, entries) {
		if text := d.Warning(); text != "" {
			rn.cfg.Logger.WarnContext(ctx, "redrive run: check a destination", slog.String("warning", text),
				slog.String("run", run.ID), slog.String("broker", d.Broker), slog.String("topic", d.Topic),
				slog.String("consumer", d.Consumer))
		}
	}
}
