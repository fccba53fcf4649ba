package redrive

import (
	"time"

	"github.com/redrive-go/redrive/dlq/internal/mirror"
	"github.com/redrive-go/redrive/dlq/wire"
)

// Fields whose JSON forms have other names; those with an empty name are copied by hand.
var (
	specs = mirror.New[Spec, wire.RunSpec](map[string]string{"Filter": ""})
	runs  = mirror.New[Run, wire.Run](map[string]string{
		"Spec": "", "Progress": "", "Abandoned": "", "AbandonedAt": "",
	})
	progress = mirror.New[Progress, wire.Progress](nil)
	items    = mirror.New[Item, wire.RunItem](map[string]string{"Entry": ""})
	previews = mirror.New[Preview, wire.RunPreview](map[string]string{"Spec": "", "Sample": ""})
	reviews  = mirror.New[Review, wire.RunReview](map[string]string{"Run": "", "Sample": ""})
)

// Wire is the spec's JSON form.
func (s *Spec) Wire() wire.RunSpec {
	w := specs.To(s)
	w.Filter = s.Filter.Wire()
	return w
}

// SetWire sets the spec from its JSON form. The error wraps [ErrInvalid] for a filter that cannot be read.
func (s *Spec) SetWire(w *wire.RunSpec) error {
	*s = specs.From(w)
	return s.Filter.SetWire(&w.Filter)
}

// Wire is the run's JSON form, with its progress at a time.
func (r *Run) Wire(now time.Time) wire.Run {
	w, p := runs.To(r), r.Progress(now)
	w.Spec, w.Progress = r.Spec.Wire(), progress.To(&p)
	return w
}

// SetWire sets the run from its JSON form, without the progress, which is computed.
func (r *Run) SetWire(w *wire.Run) error {
	*r = runs.From(w)
	return r.Spec.SetWire(&w.Spec)
}

// Wire is the item's JSON form, without its entry.
func (i *Item) Wire() wire.RunItem { return items.To(i) }

// SetWire sets the item from its JSON form.
func (i *Item) SetWire(w *wire.RunItem) { *i = items.From(w) }

// Wire is the preview's JSON form.
func (p *Preview) Wire() wire.RunPreview {
	w := previews.To(p)
	w.Spec, w.Sample = p.Spec.Wire(), samplesOf(p.Sample)
	return w
}

func samplesOf(samples []Sample) []wire.SampleEntry {
	list := make([]wire.SampleEntry, len(samples))
	for i := range samples {
		list[i] = samples[i].Wire()
	}
	return list
}

// Wire is the sample's JSON form.
func (s *Sample) Wire() wire.SampleEntry {
	w := wire.SampleEntry{Entry: s.Entry.Detail(), Problem: s.Problem}
	if !s.Diff.Empty() {
		w.Diff = &s.Diff
	}
	return w
}

// Wire is the review's JSON form, with the run's progress at a time.
func (r *Review) Wire(now time.Time) wire.RunReview {
	w := reviews.To(r)
	w.Run, w.Sample = r.Run.Wire(now), samplesOf(r.Sample)
	return w
}

// SetWire sets the preview from its JSON form.
func (p *Preview) SetWire(w *wire.RunPreview) error {
	*p = previews.From(w)
	for i := range w.Sample {
		s := Sample{Problem: w.Sample[i].Problem}
		if err := s.Entry.SetDetail(&w.Sample[i].Entry); err != nil {
			return err
		}
		if w.Sample[i].Diff != nil {
			s.Diff = *w.Sample[i].Diff
		}
		p.Sample = append(p.Sample, s)
	}
	return p.Spec.SetWire(&w.Spec)
}
