package redrive

import (
	"context"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
)

// Observer is a [dlq.Observer] that is also notified of redrive runs. A [Runner] finds it through its store.
type Observer interface {
	// Stepped is called after a step of a redrive run was stored.
	Stepped(s Step)
	// Failed is called when the store did not respond; op is step.
	Failed(op string, err error)
}

// runStore finds the part of a store that keeps runs, and notifies its observer of their steps.
func runStore(s driver.Store) (Store, bool) {
	runs, ok := driver.As[Store](s)
	if !ok {
		return nil, false
	}
	if observed, ok := driver.As[interface{ Observer() dlq.Observer }](s); ok {
		if o, ok := observed.Observer().(Observer); ok {
			return &observedRuns{runs, o}, true
		}
	}
	return runs, true
}

type observedRuns struct {
	Store

	observer Observer
}

// StepRun implements [Store].
func (s *observedRuns) StepRun(ctx context.Context, step Step) (Stepped, error) {
	stepped, err := s.Store.StepRun(ctx, step)
	if err != nil {
		s.observer.Failed("step", err)
		return stepped, err
	}
	s.observer.Stepped(step)
	return stepped, nil
}
