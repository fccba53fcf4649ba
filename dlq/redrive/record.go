package redrive

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/internal/text"
)

// recordable reports whether anything has happened that is not in the store yet.
func (d *runDriver) recordable() bool {
	return len(d.step.Published)+len(d.step.Released)+len(d.step.Skipped) > 0
}

// advance does one step: it records the published entries and claims the next batch, which it starts to publish.
func (d *runDriver) advance(ctx context.Context, claims []Claim) error {
	s := d.step
	s.Run, s.Holder, s.At, s.Lease, s.Actor = d.run.ID, d.holder, d.runner.now(ctx), d.runner.runLease, d.run.CreatedBy
	s.ClosePublished, s.OutcomeTimeout, s.ClaimTimeout = d.run.Spec.CloseOnPublish, d.run.Spec.OutcomeTimeout.Duration(),
		2*d.runner.publishTime
	s.Claims = claims
	s.Known = maps.Clone(d.step.Known)
	if s.Known == nil {
		s.Known = make(map[int64]*dlq.Entry, len(claims))
	}
	for i := range d.ahead[:len(claims)] {
		if e := d.ahead[i].Entry; e != nil {
			s.Known[e.ID] = e
		}
	}
	began := time.Now()
	stepped, err := d.runner.runs.StepRun(ctx, s)
	if err != nil {
		return err
	}
	d.run, d.step = stepped.Run, Step{}
	if d.limiter != nil {
		d.limiter.AllowN(began, len(stepped.Claimed))
	}
	first := d.ahead[:len(claims)]
	d.send(ctx, len(claims), stepped.Claimed)
	if !d.warned && len(claims) > 0 {
		d.warned = true
		d.runner.warn(ctx, d.run, first) // while they are being published, so that it costs the run no time
	}
	return nil
}

// send publishes the claims among the first items ahead. The publish continues after the context ends: its result is
// awaited.
func (d *runDriver) send(ctx context.Context, claims int, claimed []dlq.Entry) {
	read := make(map[int64]*readItem, claims)
	for i := range d.ahead[:claims] {
		read[d.ahead[i].EntryID] = &d.ahead[i]
	}
	batch := make([]outgoing, 0, len(claimed))
	for i := range claimed {
		e := &claimed[i]
		if e.Body = read[e.ID].edited; e.Body == nil {
			e.Body = read[e.ID].Entry.Body
		}
		batch = append(batch, outgoing{entry: e, origin: d.runner.address(d.run, e), message: dlq.RedriveMessage(e)}) //nolint:contextcheck // the message has its own
		e.Body = nil
	}
	d.ahead = d.ahead[claims:]
	if len(batch) == 0 {
		return
	}
	d.under++
	go func() { d.out <- d.runner.publishAll(context.WithoutCancel(ctx), batch) }()
}

// collect takes the batches published since the last look.
func (d *runDriver) collect() {
	for d.under > 0 {
		select {
		case p := <-d.out:
			d.take(p)
		default:
			return
		}
	}
}

// take records a published batch in the next step. A message that the broker refuses while it accepts others is retried
// a few times and then given up; a broker that accepts none is given time, and the run stops if that does not help.
func (d *runDriver) take(p published) {
	d.under--
	d.resize(len(p.batch), p.took)
	if d.step.Known == nil {
		d.step.Known = make(map[int64]*dlq.Entry, len(p.batch))
	}
	var refused []Refusal
	for i, err := range p.errs {
		id := p.batch[i].entry.ID
		if err == nil {
			d.step.Published = append(d.step.Published, id)
			d.step.Known[id] = p.batch[i].entry
			delete(d.refused, id)
			continue
		}
		refused = append(refused, Refusal{EntryID: id, Detail: "not published: " + text.Clean(err.Error(), text.MaxName)})
	}
	if len(refused) == 0 {
		d.refusals = 0
		return
	}
	d.notBefore = time.Now().Add(refusalPause << min(d.refusals, 5))
	// A message that was refused while others were accepted may be alone in its next batch, which says nothing about the
	// broker.
	known := !slices.ContainsFunc(refused, func(r Refusal) bool { return d.refused[r.EntryID] == 0 })
	if len(refused) == len(p.batch) && !known {
		d.refusals++
		d.refusal = fmt.Sprintf("entry %d: %s", refused[0].EntryID, refused[0].Detail)
		d.step.Released = append(d.step.Released, refused...)
		return
	}
	d.refusals = 0
	for _, r := range refused {
		d.refused[r.EntryID]++
		if d.refused[r.EntryID] >= maxRunRefusals {
			d.step.Skipped = append(d.step.Skipped, r)
			continue
		}
		d.step.Released = append(d.step.Released, r)
	}
}

// resize makes batches larger while publishing is fast, because a transaction costs the same for any number of entries,
// and smaller when it is slow, because a run is paused and stopped between batches.
func (d *runDriver) resize(n int, took time.Duration) {
	switch {
	case took > batchSlow:
		d.size = max(1, d.size/2)
	case took < batchFast && n >= d.size:
		d.size = min(d.runner.batch, 2*d.size)
	}
}
